// SPDX-License-Identifier: Apache-2.0
#include "path_stats.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "arena.h"
#include "include/rdmatensor.h"
#include "placement.h"
#include "plan_book.h"

namespace rdmatensor {
namespace {

constexpr const char* kPathNames[kPathCount] = {"static",  "bounded", "inline",
                                                "dynamic", "bounce",  "rpc"};
constexpr const char* kPlanNames[kPlanEventCount] = {"busy",        "unfit",    "copied",
                                                     "fused",       "groups",   "mismatched",
                                                     "over_budget", "promoted", "demoted"};
constexpr const char* kFetchNames[kFetchKindCount] = {"in_place", "read"};

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

}  // namespace

struct Traffic {
  Counter sent, received;
};

namespace {

struct Peer {
  std::string transport;
  std::string why;
};

struct Stats {
  Counter sent[kPathCount];
  Counter received[kPathCount];
  Counter fetched[kFetchKindCount];
  std::atomic<uint64_t> plan[kPlanEventCount] = {};
  std::atomic<int64_t> place_bytes{0};
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Traffic>> transports;
  std::map<std::string, uint64_t> rpc_reasons;
  std::map<std::pair<Direction, std::string>, Peer> peers;
};

// Never destroyed: the progress thread may count while static destructors run.
Stats& GlobalStats() {
  static Stats* stats = new Stats;
  return *stats;
}

std::string BothWays(const Counter& sent, const Counter& received) {
  return absl::StrCat("{\"sent_tensors\":", sent.tensors.load(),
                      ",\"sent_bytes\":", sent.bytes.load(),
                      ",\"received_tensors\":", received.tensors.load(),
                      ",\"received_bytes\":", received.bytes.load(), "}");
}

const char* Name(Direction direction) {
  return direction == Direction::kReceive ? "receive" : "send";
}

}  // namespace

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

Traffic* TrafficOf(const std::string& name) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  std::unique_ptr<Traffic>& traffic = stats.transports[name];
  if (traffic == nullptr) traffic = std::make_unique<Traffic>();
  return traffic.get();
}

void CountSent(Path path, uint64_t bytes, Traffic* traffic) {
  GlobalStats().sent[static_cast<int>(path)].Add(bytes);
  if (traffic != nullptr) traffic->sent.Add(bytes);
}

void CountReceived(Path path, uint64_t bytes, Traffic* traffic) {
  GlobalStats().received[static_cast<int>(path)].Add(bytes);
  if (traffic != nullptr) traffic->received.Add(bytes);
}

void CountFetch(FetchKind kind, uint64_t bytes) {
  GlobalStats().fetched[static_cast<int>(kind)].Add(bytes);
}

void CountPlan(PlanEvent event, uint64_t by) {
  GlobalStats().plan[static_cast<int>(event)].fetch_add(by, std::memory_order_relaxed);
}

void CountPlaceBytes(int64_t by) { GlobalStats().place_bytes.fetch_add(by); }

uint64_t PlaceBytes() { return static_cast<uint64_t>(GlobalStats().place_bytes.load()); }

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
    absl::StrAppend(&out, i ? "," : "", Quoted(kPathNames[i]), ":",
                    BothWays(stats.sent[i], stats.received[i]));
  }
  absl::StrAppend(&out, "},\"fetched\":{");
  for (int i = 0; i < kFetchKindCount; ++i) {
    absl::StrAppend(&out, i ? "," : "", Quoted(kFetchNames[i]),
                    ":{\"tensors\":", stats.fetched[i].tensors.load(),
                    ",\"bytes\":", stats.fetched[i].bytes.load(), "}");
  }
  absl::StrAppend(&out, "},\"plan\":{\"place_bytes\":", PlaceBytes());
  for (int i = 0; i < kPlanEventCount; ++i) {
    absl::StrAppend(&out, ",", Quoted(kPlanNames[i]), ":", stats.plan[i].load());
  }
  const Arena::Usage arena = Arena::Get()->GetUsage();
  absl::StrAppend(&out, "},\"arena\":{\"active\":", arena.active ? "true" : "false",
                  ",\"limit_bytes\":", arena.limit_bytes, ",\"regions\":", arena.regions,
                  ",\"reserved_bytes\":", arena.reserved_bytes,
                  ",\"used_bytes\":", arena.used_bytes, ",\"peak_bytes\":", arena.peak_bytes,
                  ",\"exhausted_allocations\":", arena.exhausted_allocations,
                  ",\"exhausted_bytes\":", arena.exhausted_bytes,
                  "},\"placement\":", PlacementAsJson(), ",\"transports\":{");
  std::lock_guard<std::mutex> lock(stats.mutex);
  const char* separator = "";
  for (const auto& [name, traffic] : stats.transports) {
    absl::StrAppend(&out, separator, Quoted(name), ":", BothWays(traffic->sent, traffic->received));
    separator = ",";
  }
  absl::StrAppend(&out, "},\"rpc_reasons\":{");
  separator = "";
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
  for (Counter& counter : stats.fetched) counter.Reset();
  for (auto& counter : stats.plan) counter.store(0, std::memory_order_relaxed);
  Arena::Get()->ResetUsage();
  ResetPlacement();
  std::lock_guard<std::mutex> lock(stats.mutex);
  for (auto& entry : stats.transports) {
    entry.second->sent.Reset();
    entry.second->received.Reset();
  }
  stats.rpc_reasons.clear();
}

}  // namespace rdmatensor

size_t rdt_tf_stats_json(char* out, size_t size) {
  const std::string json = rdmatensor::StatsAsJson();
  if (out != nullptr && json.size() < size) std::memcpy(out, json.c_str(), json.size() + 1);
  return json.size() + 1;
}

size_t rdt_tf_plan_json(const char* task, char* out, size_t size) {
  rdmatensor::PlanBook* const book = rdmatensor::PlanBook::Get();
  rdmatensor::Endpoint* const endpoint =
      task != nullptr ? book->EndpointOf(task) : book->OnlyEndpoint();
  if (endpoint == nullptr) return 0;
  const std::string json = book->AsJson(endpoint);
  if (out != nullptr && json.size() < size) std::memcpy(out, json.c_str(), json.size() + 1);
  return json.size() + 1;
}

void rdt_tf_stats_reset(void) { rdmatensor::ResetStats(); }
