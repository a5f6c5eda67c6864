// SPDX-License-Identifier: Apache-2.0
//
// Which steps failed, at peers and here, and which tensors will not come any more.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_STEP_FAILURES_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_STEP_FAILURES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/recent_map.h"
#include "graph/planned_edge.h"

namespace rdmatensor {

// Remembers which steps failed, and of which a peer will not send single tensors any more. Thread-safe, and cheap to
// ask while nothing has failed.
class StepFailures {
 public:
  // Keeps the first cause of each step.
  void AddStep(int64_t step_id, const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    steps_.Add(step_id, status);
    any_.store(true, std::memory_order_release);
  }

  void AddTensor(int64_t step_id, const KeyId& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    tensors_.Add({step_id, key});
    any_.store(true, std::memory_order_release);
  }

  bool Any() const { return any_.load(std::memory_order_acquire); }

  // OK if it has not failed.
  absl::Status OfStep(int64_t step_id) const {
    if (!Any()) return absl::OkStatus();
    std::lock_guard<std::mutex> lock(mutex_);
    const absl::Status* failed = steps_.Find(step_id);
    return failed == nullptr ? absl::OkStatus() : *failed;
  }

  bool LacksTensor(int64_t step_id, const KeyId& key) const {
    if (!Any()) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    return tensors_.Contains({step_id, key});
  }

 private:
  static constexpr size_t kRemembered = 1024;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  RecentMap<int64_t, absl::Status> steps_{kRemembered};
  RecentMap<std::pair<int64_t, KeyId>> tensors_{kRemembered};
};

// Remembers the steps that failed here until they are cleaned up. A receiver that announces itself in the meantime
// waits for tensors that will not come, and must be told. Thread-safe, and cheap while nothing has failed.
class FailedHere {
 public:
  struct Failure {
    std::string session;
    absl::Status status;
  };

  // Keeps the first cause of each step.
  void Add(const std::string& session, int64_t step_id, const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    steps_.Add(step_id, {session, status});
    any_.store(true, std::memory_order_release);
  }

  void Forget(int64_t step_id) {
    if (!any_.load(std::memory_order_acquire)) return;
    std::lock_guard<std::mutex> lock(mutex_);
    steps_.Remove(step_id);
    any_.store(!steps_.empty(), std::memory_order_release);
  }

  // The failed steps of a session, from the oldest to the newest.
  std::vector<std::pair<int64_t, absl::Status>> Of(const std::string& session) const {
    std::vector<std::pair<int64_t, absl::Status>> failed;
    std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t step_id : steps_.keys()) {
      const Failure& failure = *steps_.Find(step_id);
      if (failure.session == session) failed.emplace_back(step_id, failure.status);
    }
    return failed;
  }

 private:
  static constexpr size_t kRemembered = 1024;

  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  RecentMap<int64_t, Failure> steps_{kRemembered};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_STEP_FAILURES_H_
