// SPDX-License-Identifier: Apache-2.0
#include "stats/path_stats.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdmatensor.h"

namespace rdmatensor {
namespace {

constexpr const char* kPathNames[kPathCount] = {"static",  "bounded", "inline",
                                                "dynamic", "bounce",  "rpc"};
constexpr char kNoTransport[] = "none";

}  // namespace

const char* PathName(Path path) { return kPathNames[static_cast<int>(path)]; }

struct Traffic {
  struct Counter {
    std::atomic<uint64_t> tensors{0};
    std::atomic<uint64_t> bytes{0};
    void Add(uint64_t size) {
      tensors.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(size, std::memory_order_relaxed);
    }
    Totals Read() const { return {tensors.load(), bytes.load()}; }
    void Reset() {
      tensors.store(0, std::memory_order_relaxed);
      bytes.store(0, std::memory_order_relaxed);
    }
  };

  Counter sent, received;
  Traffic* whole = nullptr;  // of the transport; RPC has none
  SentReceived Read() const { return {sent.Read(), received.Read()}; }
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
  std::string told;  // what the log says of it
  uint64_t failbacks = 0, moves = 0;
  std::chrono::steady_clock::time_point retry{};  // if the state is rpc; none if at the epoch
  std::map<std::string, std::unique_ptr<Traffic>> traffic;  // by transport
};

struct Stats {
  Traffic::Counter sent[kPathCount];
  Traffic::Counter received[kPathCount];
  Traffic::Counter in_place, read;
  std::atomic<uint64_t> plan[kPlanEventCount] = {};
  std::mutex mutex;
  std::vector<std::string> servers;
  std::map<std::string, std::unique_ptr<Traffic>> transports;
  std::map<std::string, uint64_t> rpc_reasons;
  std::map<PeerId, Peer> peers;
  uint64_t failbacks = 0, moves = 0;
};

// Never destroyed: the progress thread may count while static destructors run.
Stats& GlobalStats() {
  static Stats* stats = new Stats;
  return *stats;
}

// Tasks have names in sessions, which any admitted peer may make up. What is beyond shares one entry.
constexpr size_t kMostPeers = 4096;
constexpr char kOtherTasks[] = "others";

Peer& PeerLocked(Stats* stats, Direction direction, absl::string_view task) {
  PeerId id(direction, std::string(task));
  if (stats->peers.size() >= kMostPeers && stats->peers.find(id) == stats->peers.end()) {
    id.second = kOtherTasks;
  }
  return stats->peers[id];
}

constexpr char kStateRpc[] = "rpc";
constexpr char kStateConnecting[] = "connecting";
constexpr char kStateReady[] = "ready";

void SetPeer(Direction direction, absl::string_view task, const char* state,
             absl::string_view transport, absl::string_view why) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  Peer& peer = PeerLocked(&stats, direction, task);
  // Meanwhile tensors of the process that is known go on by RPC.
  if (state == kStateConnecting && peer.state == kStateRpc) return;
  peer.state = state;
  peer.transport = std::string(transport);
  peer.why = std::string(why);
}

}  // namespace

Traffic* TrafficOf(Direction direction, absl::string_view task, absl::string_view transport) {
  Stats& stats = GlobalStats();
  const std::string name(transport);
  std::lock_guard<std::mutex> lock(stats.mutex);
  Peer& peer = PeerLocked(&stats, direction, task);
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

void CountFetch(Via via, uint64_t bytes) {
  (via == Via::kRead ? GlobalStats().read : GlobalStats().in_place).Add(bytes);
}

void CountPlan(PlanEvent event, uint64_t by) {
  GlobalStats().plan[static_cast<int>(event)].fetch_add(by, std::memory_order_relaxed);
}

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
  if (absence != Absence::kLost) return;
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  PeerLocked(&stats, direction, task).told.clear();  // that it is there again is news
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
  if (news) {
    // Each session that begins says this anew.
    Stats& stats = GlobalStats();
    std::lock_guard<std::mutex> lock(stats.mutex);
    std::string& told = PeerLocked(&stats, direction, task).told;
    news = told != line;
    told = line;
  }
  const rdt_log_level level = degraded ? RDT_LOG_WARN : RDT_LOG_INFO;
  rdt_log_line(news ? level : RDT_LOG_DEBUG, line.c_str());
}

void RecordRetry(absl::string_view task, std::chrono::steady_clock::time_point when) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  PeerLocked(&stats, Direction::kReceive, task).retry = when;
}

void CountFailback(absl::string_view task) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++stats.failbacks;
  ++PeerLocked(&stats, Direction::kReceive, task).failbacks;
}

void CountMove(absl::string_view task) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++stats.moves;
  ++PeerLocked(&stats, Direction::kReceive, task).moves;
}

PathCounts ReadPathCounts() {
  Stats& stats = GlobalStats();
  PathCounts counts;
  for (int i = 0; i < kPathCount; ++i) {
    counts.paths[i] = {stats.sent[i].Read(), stats.received[i].Read()};
  }
  counts.in_place = stats.in_place.Read();
  counts.read = stats.read.Read();
  for (int i = 0; i < kPlanEventCount; ++i) counts.plan[i] = stats.plan[i].load();
  std::lock_guard<std::mutex> lock(stats.mutex);
  for (const auto& [name, traffic] : stats.transports) counts.transports[name] = traffic->Read();
  counts.servers = stats.servers;
  counts.rpc_reasons = stats.rpc_reasons;
  counts.failbacks = stats.failbacks;
  counts.moves = stats.moves;
  for (const auto& [id, peer] : stats.peers) {
    PeerCounts each;
    std::tie(each.direction, each.task) = id;
    each.state = peer.state;
    each.transport = peer.transport;
    each.why = peer.why;
    each.failbacks = peer.failbacks;
    each.moves = peer.moves;
    if (peer.state == kStateRpc) each.retry = peer.retry;
    for (const auto& [transport, traffic] : peer.traffic) {
      const SentReceived both = traffic->Read();
      const Totals& totals = each.direction == Direction::kReceive ? both.received : both.sent;
      each.tensors.tensors += totals.tensors;
      each.tensors.bytes += totals.bytes;
      if (transport == kRpcTransport) each.rpc_bytes = totals.bytes;
    }
    counts.peers.push_back(std::move(each));
  }
  return counts;
}

void ResetPathCounts() {
  Stats& stats = GlobalStats();
  for (Traffic::Counter& counter : stats.sent) counter.Reset();
  for (Traffic::Counter& counter : stats.received) counter.Reset();
  stats.in_place.Reset();
  stats.read.Reset();
  for (auto& counter : stats.plan) counter.store(0, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(stats.mutex);
  for (auto& [name, traffic] : stats.transports) traffic->Reset();
  for (auto& [id, peer] : stats.peers) {
    for (auto& [name, traffic] : peer.traffic) traffic->Reset();
    peer.failbacks = peer.moves = 0;
  }
  stats.failbacks = stats.moves = 0;
  stats.rpc_reasons.clear();
}

}  // namespace rdmatensor
