// SPDX-License-Identifier: Apache-2.0
//
// The collective groups of one server: TensorFlow's group keys and their members on one side, groups of
// our devices on the other.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_GROUPS_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_GROUPS_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "rdmatensor.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/collective.h"

namespace rdmatensor {

class Endpoint;

// Of a clock that nobody sets.
using Deadline = std::chrono::steady_clock::time_point;

// One group of tasks. Formed once, on a thread of its own; then either all members have a group of
// devices, or all leave its operations to TensorFlow's algorithms. Thread-safe.
class CollectiveGroup {
 public:
  // `params` has its members; `rank` is this task's place among them.
  CollectiveGroup(Endpoint* endpoint, tensorflow::WorkerCacheInterface* workers,
                  const tensorflow::CollGroupParams& params, uint32_t rank);
  // Ends what is under way. Not on a progress thread.
  ~CollectiveGroup();
  CollectiveGroup(const CollectiveGroup&) = delete;
  CollectiveGroup& operator=(const CollectiveGroup&) = delete;

  // Agrees with the other members, within a few times the time-out for connections.
  void Form();

  // Waits until it is formed, which takes the slowest member's first operation: DeadlineExceeded, what
  // `stop` returns once that is an error, or, where the policy forbids TensorFlow's algorithms and ours
  // cannot run, FailedPrecondition.
  absl::Status Await(Deadline deadline, const std::function<absl::Status()>& stop);
  // Whether Await returns at once.
  bool formed() const { return formed_.load(std::memory_order_acquire); }
  // The devices' group; nullptr: TensorFlow's algorithms. Only once formed.
  rdt_group* handle() const { return handle_; }

  // Ends it at all members, at once or when it is formed: operations fail with `why`, an error, from now on.
  // The first call counts.
  void Abort(const absl::Status& why);
  // Why one of its members aborted it. Only of a group with a handle.
  absl::Status WhyAborted() const;

  const tensorflow::CollGroupParams& params() const { return params_; }
  uint32_t rank() const { return rank_; }
  // The same members, none of them restarted.
  bool IsOf(const tensorflow::CollGroupParams& params) const;

  // Number of earlier operations called `key` here: together with the key it names an operation, as
  // TensorFlow uses keys again, for the next execution of a graph.
  uint64_t CountOf(uint64_t key);

  // For the statistics.
  std::string AsJson() const;
  void ResetCounts();

 private:
  struct Outcome {
    rdt_group* handle = nullptr;
    std::string why_not;
  };
  Outcome TryForm();
  std::string MissingPlugin() const;
  std::string Question(const char* phase) const;
  struct Answer {
    bool yes = false;
    std::string text;
  };
  Answer Ask(const char* phase, const std::string& why_not, const std::string& text) const;
  void Decide(Outcome outcome);
  // Under mutex_.
  void EndForAll();

  Endpoint* const endpoint_;
  tensorflow::WorkerCacheInterface* const workers_;
  const tensorflow::CollGroupParams params_;
  const uint32_t rank_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> formed_{false};
  rdt_group* handle_ = nullptr;  // written before formed_
  std::string why_not_;
  absl::Status status_;
  absl::Status aborted_;
  rdt_group_info counted_{};  // when the counters were last reset

  std::mutex count_mutex_;
  absl::flat_hash_map<uint64_t, uint64_t> counts_, older_counts_;
};

// Thread-safe. Belongs to one collective manager, as TensorFlow's group keys do.
class CollectiveGroups {
 public:
  CollectiveGroups(Endpoint* endpoint, tensorflow::WorkerCacheInterface* workers)
      : endpoint_(endpoint), workers_(workers) {}

  // The group of these members, which begins to be formed if it is new.
  std::shared_ptr<CollectiveGroup> Find(const tensorflow::CollGroupParams& params, int rank);
  // The group that this key meant last, if it is formed and ours; nullptr otherwise.
  std::shared_ptr<CollectiveGroup> FindFormed(int32_t group_key);
  // Aborts all groups, also those that are found later: nothing more comes from this task, as TensorFlow
  // keeps an error until the program is restarted. The first call counts.
  void Abort(const absl::Status& why);

 private:
  Endpoint* const endpoint_;
  tensorflow::WorkerCacheInterface* const workers_;
  std::mutex mutex_;
  absl::Status aborted_;
  absl::flat_hash_map<int32_t, std::shared_ptr<CollectiveGroup>> groups_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_GROUPS_H_
