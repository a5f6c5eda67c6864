// SPDX-License-Identifier: Apache-2.0
#include "path_stats.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "arena.h"
#include "include/rdmatensor.h"

namespace rdmatensor {
namespace {

constexpr const char* kPathNames[kPathCount] = {"inline", "dynamic", "bounce", "rpc"};

struct Counter {
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> bytes{0};
  void Add(uint64_t size) {
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
  void Reset() {
    tensors.store(0, std::memory_order_relaxed);
    bytes.store(0, std::memory_order_relaxed);
  }
};

struct Peer {
  std::string transport;
  std::string why;
};

struct Stats {
  Counter sent[kPathCount];
  Counter received[kPathCount];
  std::mutex mutex;
  std::map<std::string, uint64_t> rpc_reasons;
  std::map<std::pair<Direction, std::string>, Peer> peers;
};

// Never destroyed: the progress thread may count while static destructors run.
Stats& GlobalStats() {
  static Stats* stats = new Stats;
  return *stats;
}

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

const char* Name(Direction direction) {
  return direction == Direction::kReceive ? "receive" : "send";
}

}  // namespace

void CountSent(Path path, uint64_t bytes) { GlobalStats().sent[static_cast<int>(path)].Add(bytes); }

void CountReceived(Path path, uint64_t bytes) {
  GlobalStats().received[static_cast<int>(path)].Add(bytes);
}

void CountRpcReason(absl::string_view reason) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++stats.rpc_reasons[std::string(reason)];
}

void RecordPeer(Direction direction, absl::string_view task, absl::string_view transport,
                absl::string_view why, bool degraded) {
  {
    Stats& stats = GlobalStats();
    std::lock_guard<std::mutex> lock(stats.mutex);
    stats.peers[{direction, std::string(task)}] = {std::string(transport), std::string(why)};
  }
  const std::string line = absl::StrCat(
      "tensorflow: ", direction == Direction::kReceive ? "tensors from " : "tensors to ", task,
      " go by ", transport, ": ", why);
  rdt_log_line(degraded ? RDT_LOG_WARN : RDT_LOG_INFO, line.c_str());
}

std::string StatsAsJson() {
  Stats& stats = GlobalStats();
  std::string out = "{\"paths\":{";
  for (int i = 0; i < kPathCount; ++i) {
    absl::StrAppend(&out, i ? "," : "", Quoted(kPathNames[i]),
                    ":{\"sent_tensors\":", stats.sent[i].tensors.load(),
                    ",\"sent_bytes\":", stats.sent[i].bytes.load(),
                    ",\"received_tensors\":", stats.received[i].tensors.load(),
                    ",\"received_bytes\":", stats.received[i].bytes.load(), "}");
  }
  const Arena::Usage arena = Arena::Get()->GetUsage();
  absl::StrAppend(&out, "},\"arena\":{\"active\":", arena.active ? "true" : "false",
                  ",\"limit_bytes\":", arena.limit_bytes, ",\"used_bytes\":", arena.used_bytes,
                  ",\"peak_bytes\":", arena.peak_bytes,
                  ",\"exhausted_allocations\":", arena.exhausted_allocations,
                  ",\"exhausted_bytes\":", arena.exhausted_bytes, "},\"rpc_reasons\":{");
  std::lock_guard<std::mutex> lock(stats.mutex);
  const char* separator = "";
  for (const auto& [reason, count] : stats.rpc_reasons) {
    absl::StrAppend(&out, separator, Quoted(reason), ":", count);
    separator = ",";
  }
  absl::StrAppend(&out, "},\"peers\":[");
  separator = "";
  for (const auto& [id, peer] : stats.peers) {
    absl::StrAppend(&out, separator, "{\"task\":", Quoted(id.second),
                    ",\"direction\":", Quoted(Name(id.first)),
                    ",\"transport\":", Quoted(peer.transport), ",\"why\":", Quoted(peer.why), "}");
    separator = ",";
  }
  absl::StrAppend(&out, "]}");
  return out;
}

void ResetStats() {
  Stats& stats = GlobalStats();
  for (Counter& counter : stats.sent) counter.Reset();
  for (Counter& counter : stats.received) counter.Reset();
  Arena::Get()->ResetUsage();
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.rpc_reasons.clear();
}

}  // namespace rdmatensor

size_t rdt_tf_stats_json(char* out, size_t size) {
  const std::string json = rdmatensor::StatsAsJson();
  if (out != nullptr && json.size() < size) std::memcpy(out, json.c_str(), json.size() + 1);
  return json.size() + 1;
}

void rdt_tf_stats_reset(void) { rdmatensor::ResetStats(); }
