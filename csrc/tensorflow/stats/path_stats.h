// SPDX-License-Identifier: Apache-2.0
//
// Counts, per process, by which path tensors left and arrived, and why some went by RPC.
#ifndef RDMATENSOR_TENSORFLOW_STATS_PATH_STATS_H_
#define RDMATENSOR_TENSORFLOW_STATS_PATH_STATS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rdmatensor {

enum class Path { kStatic, kBounded, kInline, kDynamic, kBounce, kRpc };
inline constexpr int kPathCount = 6;
const char* PathName(Path path);

enum class Direction { kReceive, kSend };
// Counters of the tensors that go between this process and a peer by one transport, which count for the
// transport as a whole too. All tensors count by their path besides.
struct Traffic;
inline constexpr char kRpcTransport[] = "grpc";
// Those of `transport` from (kReceive) or to (kSend) `task`; valid for ever.
Traffic* TrafficOf(Direction direction, absl::string_view task, absl::string_view transport);

// All functions may be called from any thread.
void CountSent(Path path, uint64_t bytes, Traffic* traffic = nullptr);
void CountReceived(Path path, uint64_t bytes, Traffic* traffic = nullptr);
// How the receiver got the bytes of a tensor: inside the message, in a slot, in the slot of a group, in place, that is, in
// the sender's memory, or by a read from there.
enum class Via { kMessage, kSlot, kGroupSlot, kInPlace, kRead };
// One tensor that lay in the sender's memory when it was announced. `via`: kInPlace or kRead.
void CountFetch(Via via, uint64_t bytes);
// One tensor that was offered to a peer by RPC instead of a push, for `reason`.
void CountRpcReason(absl::string_view reason);

// What happens to planned tensors.
enum class PlanEvent {
  kBusy,        // no place was free: the tensor went the dynamic way
  kUnfit,       // it was larger than its place, or of another shape
  kCopied,      // it did not lie in registered memory, and was copied there first
  kFused,       // it travelled in a group
  kGroup,       // groups sent
  kMismatch,    // edges that the ends understand differently
  kOverBudget,  // edges that got no place because of the limit
  kPromoted,    // edges that got a place because of what was seen
  kDemoted,     // and lost it again
  kOperation,   // operations run that send or receive several tensors
  kInOperation  // tensors that they sent or received
};
inline constexpr int kPlanEventCount = 11;
void CountPlan(PlanEvent event, uint64_t by = 1);

// One server of this process, whatever its policy.
void RecordServer(absl::string_view task);

// The transport now used from (kReceive) or to (kSend) `task`, and why that one. Logged at INFO, or
// at WARN when `degraded`: something that the user asked for is not in force.
// Unless that is not `news`.
void RecordPeer(Direction direction, absl::string_view task, absl::string_view transport,
                absl::string_view why, bool degraded, bool news = true);
// What is received from `task` by RPC at present is tried otherwise with the first tensor after `when`;
// at the epoch: never.
void RecordRetry(absl::string_view task, std::chrono::steady_clock::time_point when);
// What came from `task` by RPC goes otherwise again.
void CountFailback(absl::string_view task);
// What comes from `task` moved to a better transport, without a failure.
void CountMove(absl::string_view task);
// None is used at present: one is being looked for, or the peer is gone. Not logged.
enum class Absence { kConnecting, kLost };
void RecordAbsence(Direction direction, absl::string_view task, Absence absence,
                   absl::string_view why);

// The counts of one moment.
struct Totals {
  uint64_t tensors = 0, bytes = 0;
};
struct SentReceived {
  Totals sent, received;
};
struct PeerCounts {
  std::string task;
  Direction direction = Direction::kReceive;
  std::string state, transport, why;
  Totals tensors;  // in this direction, by all transports
  uint64_t rpc_bytes = 0;
  uint64_t failbacks = 0, moves = 0;
  std::chrono::steady_clock::time_point retry{};  // at the epoch: never
};
struct PathCounts {
  SentReceived paths[kPathCount];
  Totals in_place, read;  // of those that lay in the sender's memory
  uint64_t plan[kPlanEventCount] = {};
  std::map<std::string, SentReceived> transports;
  std::vector<std::string> servers;
  std::map<std::string, uint64_t> rpc_reasons;
  uint64_t failbacks = 0, moves = 0;
  std::vector<PeerCounts> peers;
};
PathCounts ReadPathCounts();
// Sets counts to zero; peers stay.
void ResetPathCounts();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_PATH_STATS_H_
