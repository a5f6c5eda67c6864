// SPDX-License-Identifier: Apache-2.0
//
// The devices of one task that sends, by TensorFlow's incarnations: behind the channel to it, or left to RPC.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_INCARNATIONS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_INCARNATIONS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "stats/path_stats.h"

namespace rdmatensor {

// Not thread-safe: its Sender's lock guards it.
class Incarnations {
 public:
  using All = std::vector<uint64_t>;
  Incarnations(std::string task, Backoff::Milliseconds failback)
      : task_(std::move(task)), backoff_(failback) {}

  bool IsBehindChannel(uint64_t each) const {
    return std::find(behind_.begin(), behind_.end(), each) != behind_.end();
  }
  bool AreBehindChannel(const All& all) const {
    return std::all_of(all.begin(), all.end(),
                       [this](uint64_t each) { return IsBehindChannel(each); });
  }
  // Left to RPC until the process can be reached otherwise.
  bool IsRetried(uint64_t each) const { return retried_.contains(each); }
  bool RetryIsDue() const { return backoff_.Due(); }
  // Left to RPC for good, or gone.
  bool IsLeft(uint64_t each) const { return left_.contains(each); }

  // A channel leads to them. True if they were left to RPC before.
  bool Reach(const All& all) {
    returned_ = false;
    for (uint64_t each : all) returned_ |= retried_.erase(each) != 0;
    reached_ = Backoff::Clock::now();
    behind_ = all;
    return returned_;
  }
  Backoff::Clock::time_point reached() const { return reached_; }
  void DropChannel() { behind_.clear(); }
  // The peer opens a channel itself.
  void TakeBack(const All& all) {
    for (uint64_t each : all) left_.erase(each);
  }

  // The task has answered with `all`, asked because of `wanted`. False if a channel to them is needed.
  bool Keep(const All& all, uint64_t wanted) {
    // The process with the wanted incarnation is gone.
    if (std::find(all.begin(), all.end(), wanted) == all.end()) Leave({wanted});
    const bool left =
        std::any_of(all.begin(), all.end(), [this](uint64_t each) { return IsLeft(each); });
    if (left) left_.insert(all.begin(), all.end());
    return left || AreBehindChannel(all);
  }

  void Leave(const All& all) {
    for (uint64_t each : all) retried_.erase(each);
    left_.insert(all.begin(), all.end());
  }
  // Leaves them to RPC: until an attempt succeeds, or for good if there will be none. Returns the end of the log line
  // about it.
  std::string LeaveForNow(const All& all) {
    if (!backoff_.enabled()) {
      left_.insert(all.begin(), all.end());
      return "";
    }
    DelayRetry();
    retried_.insert(all.begin(), all.end());
    return absl::StrCat("; tried again in ", backoff_.delay().count(), " ms");
  }
  std::string LeaveForNow() { return LeaveForNow(behind_); }
  void DelayRetry() {
    backoff_.Failed();
    if (backoff_.enabled()) RecordRetry(task_, backoff_.next());
  }
  // An attempt failed for another reason.
  void OnUnavailable() {
    if (!retried_.empty()) DelayRetry();
  }
  // The channel is down. True if it was lost soon after RPC: then RPC follows at once, because each loss costs a step.
  bool OnLost() {
    if (returned_ && backoff_.enabled() && !backoff_.IsStable(reached_)) return true;
    backoff_.Reset();
    return false;
  }

 private:
  const std::string task_;
  All behind_;
  absl::flat_hash_set<uint64_t> left_, retried_;
  Backoff backoff_;  // of retried_
  bool returned_ = false;
  Backoff::Clock::time_point reached_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_INCARNATIONS_H_
