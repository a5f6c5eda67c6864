// SPDX-License-Identifier: Apache-2.0
#include "stats/path_stats.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collective/collective_stats.h"
#include "memory/arena.h"
#include "memory/placement.h"
#include "plan/plan_book.h"
#include "rdmatensor.h"
#include "stats/checksum.h"
#include "stats/edge_waits.h"

namespace rdmatensor {
namespace {

constexpr const char* kPathNames[kPathCount] = {"static",  "bounded", "inline",
                                                "dynamic", "bounce",  "rpc"};
constexpr const char* kPlanNames[kPlanEventCount] = {"busy",        "unfit",    "copied",
                                                     "fused",       "groups",   "mismatched",
                                                     "over_budget", "promoted", "demoted"};
constexpr const char* kFetchNames[kFetchKindCount] = {"in_place", "read"};
constexpr char kNoTransport[] = "none";

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

const char* PathName(Path path) { return kPathNames[static_cast<int>(path)]; }

struct Traffic {
  Counter sent, received;
  Traffic* whole = nullptr;  // of the transport; RPC has none
  void Reset() {
    sent.Reset();
    received.Reset();
  }
};

namespace {

using PeerId = std::pair<Direction, std::string>;

struct Peer {
  const char* state = "";
  std::string transport;
  std::string why;
  uint64_t failbacks = 0;
  std::chrono::steady_clock::time_point retry{};  // if the state is rpc; none if at the epoch
  std::map<std::string, std::unique_ptr<Traffic>> traffic;  // by transport
};

struct Stats {
  Counter sent[kPathCount];
  Counter received[kPathCount];
  Counter fetched[kFetchKindCount];
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> plan[kPlanEventCount] = {};
  std::atomic<int64_t> place_bytes{0};
  std::mutex mutex;
  std::vector<std::string> servers;
  std::map<std::string, std::unique_ptr<Traffic>> transports;
  std::map<std::string, uint64_t> rpc_reasons;
  std::map<PeerId, Peer> peers;
  uint64_t failbacks = 0;
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

namespace {

constexpr char kStateRpc[] = "rpc";
constexpr char kStateConnecting[] = "connecting";
constexpr char kStateReady[] = "ready";

void SetPeer(Direction direction, absl::string_view task, const char* state,
             absl::string_view transport, absl::string_view why) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  Peer& peer = stats.peers[PeerId(direction, std::string(task))];
  // Meanwhile tensors of the process that is known go on by RPC.
  if (state == kStateConnecting && peer.state == kStateRpc) return;
  peer.state = state;
  peer.transport = std::string(transport);
  peer.why = std::string(why);
}

std::string RetryInMs(const Peer& peer) {
  using Clock = std::chrono::steady_clock;
  if (peer.state != kStateRpc || peer.retry == Clock::time_point()) return "null";
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(peer.retry - Clock::now());
  return absl::StrCat(std::max<int64_t>(0, left.count()));
}

std::string AsJson(const PeerId& id, const Peer& peer) {
  const bool receives = id.first == Direction::kReceive;
  uint64_t tensors = 0, bytes = 0, rpc_bytes = 0;
  for (const auto& [transport, traffic] : peer.traffic) {
    const Counter& counter = receives ? traffic->received : traffic->sent;
    tensors += counter.tensors.load();
    bytes += counter.bytes.load();
    if (transport == kRpcTransport) rpc_bytes = counter.bytes.load();
  }
  const WaitSum waited = receives ? WaitsFor(id.second) : WaitSum();
  return absl::StrCat(
      "{\"task\":", Quoted(id.second), ",\"direction\":", receives ? "\"receive\"" : "\"send\"",
      ",\"state\":", Quoted(peer.state), ",\"transport\":", Quoted(peer.transport),
      ",\"why\":", Quoted(peer.why), ",\"tensors\":", tensors, ",\"bytes\":", bytes,
      ",\"rpc_bytes\":", rpc_bytes, ",\"failbacks\":", peer.failbacks, ",\"waits\":", waited.waits,
      ",\"wait_us\":", waited.nanoseconds / 1000, ",\"retry_in_ms\":", RetryInMs(peer), "}");
}

}  // namespace

Traffic* TrafficOf(Direction direction, absl::string_view task, absl::string_view transport) {
  Stats& stats = GlobalStats();
  const std::string name(transport);
  std::lock_guard<std::mutex> lock(stats.mutex);
  Peer& peer = stats.peers[PeerId(direction, std::string(task))];
  // A receiver without a channel is not announced: it asks by RPC.
  if (direction == Direction::kSend && name == kRpcTransport && peer.state != kStateReady) {
    peer.state = kStateRpc;
    peer.transport = name;
    peer.why = "the receiver asks by RPC";
  }
  std::unique_ptr<Traffic>& traffic = peer.traffic[name];
  if (traffic != nullptr) return traffic.get();
  traffic = std::make_unique<Traffic>();
  if (name != kRpcTransport) {
    std::unique_ptr<Traffic>& whole = stats.transports[name];
    if (whole == nullptr) whole = std::make_unique<Traffic>();
    traffic->whole = whole.get();
  }
  return traffic.get();
}

void CountSent(Path path, uint64_t bytes, Traffic* traffic) {
  GlobalStats().sent[static_cast<int>(path)].Add(bytes);
  for (; traffic != nullptr; traffic = traffic->whole) traffic->sent.Add(bytes);
}

void CountReceived(Path path, uint64_t bytes, Traffic* traffic) {
  GlobalStats().received[static_cast<int>(path)].Add(bytes);
  for (; traffic != nullptr; traffic = traffic->whole) traffic->received.Add(bytes);
}

void CountRequest() { GlobalStats().requests.fetch_add(1, std::memory_order_relaxed); }

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

void RecordServer(absl::string_view task) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.servers.emplace_back(task);
}

void RecordAbsence(Direction direction, absl::string_view task, Absence absence,
                   absl::string_view why) {
  SetPeer(direction, task, absence == Absence::kLost ? "lost" : kStateConnecting, kNoTransport,
          why);
}

void RecordPeer(Direction direction, absl::string_view task, absl::string_view transport,
                absl::string_view why, bool degraded, bool news) {
  const char* const state = transport == kNoTransport    ? "refused"
                            : transport == kRpcTransport ? kStateRpc
                                                         : kStateReady;
  SetPeer(direction, task, state, transport, why);
  const std::string line = absl::StrCat(
      "tensorflow: ", direction == Direction::kReceive ? "tensors from " : "tensors to ", task,
      " go by ", transport, ": ", why);
  const rdt_log_level level = degraded ? RDT_LOG_WARN : RDT_LOG_INFO;
  rdt_log_line(news ? level : RDT_LOG_DEBUG, line.c_str());
}

void RecordRetry(absl::string_view task, std::chrono::steady_clock::time_point when) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.peers[PeerId(Direction::kReceive, std::string(task))].retry = when;
}

void CountFailback(absl::string_view task) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++stats.failbacks;
  ++stats.peers[PeerId(Direction::kReceive, std::string(task))].failbacks;
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
  absl::StrAppend(&out, "},\"requests\":", stats.requests.load());
  absl::StrAppend(&out, ",\"plan\":{\"place_bytes\":", PlaceBytes());
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
                  "},\"placement\":", PlacementAsJson(), ",\"collectives\":", CollectivesAsJson(),
                  ",\"checksums\":", ChecksumsAsJson(), ",\"slow_edges\":", SlowEdgesAsJson(),
                  ",\"devices\":", PlanBook::Get()->DevicesAsJson(), ",\"transports\":{");
  std::lock_guard<std::mutex> lock(stats.mutex);
  const char* separator = "";
  for (const auto& [name, traffic] : stats.transports) {
    absl::StrAppend(&out, separator, Quoted(name), ":", BothWays(traffic->sent, traffic->received));
    separator = ",";
  }
  absl::StrAppend(&out, "},\"servers\":[");
  separator = "";
  for (const std::string& task : stats.servers) {
    absl::StrAppend(&out, separator, Quoted(task));
    separator = ",";
  }
  absl::StrAppend(&out, "],\"rpc_reasons\":{");
  separator = "";
  for (const auto& [reason, count] : stats.rpc_reasons) {
    absl::StrAppend(&out, separator, Quoted(reason), ":", count);
    separator = ",";
  }
  absl::StrAppend(&out, "},\"failbacks\":", stats.failbacks, ",\"peers\":[");
  separator = "";
  for (const auto& [id, peer] : stats.peers) {
    absl::StrAppend(&out, separator, AsJson(id, peer));
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
  stats.requests.store(0);
  for (auto& counter : stats.plan) counter.store(0, std::memory_order_relaxed);
  Arena::Get()->ResetUsage();
  ResetPlacement();
  ResetCollectives();
  ResetChecksums();
  ResetWaits();
  std::lock_guard<std::mutex> lock(stats.mutex);
  for (auto& [name, traffic] : stats.transports) traffic->Reset();
  for (auto& [id, peer] : stats.peers) {
    for (auto& [name, traffic] : peer.traffic) traffic->Reset();
    peer.failbacks = 0;
  }
  stats.failbacks = 0;
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
