// SPDX-License-Identifier: Apache-2.0
//
// Maps TensorFlow's group keys and their members to groups of devices, for one server.
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
#include "collective/collective_stats.h"
#include "rdmatensor.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/collective.h"

namespace rdmatensor {

class TensorService;

// A time of a monotonic clock.
using Deadline = std::chrono::steady_clock::time_point;

// One group of tasks. It is formed once, on a thread of its own. Then either all members have a group of devices,
// or all leave its operations to TensorFlow's algorithms. Thread-safe.
class CollectiveGroup : public ShownGroup {
 public:
  // `params` lists the members; `rank` is this task's position among them.
  CollectiveGroup(TensorService* service, tensorflow::WorkerCacheInterface* workers,
                  const tensorflow::CollGroupParams& params, uint32_t rank);
  // Ends operations under way. Must not run on a progress thread.
  ~CollectiveGroup();
  CollectiveGroup(const CollectiveGroup&) = delete;
  CollectiveGroup& operator=(const CollectiveGroup&) = delete;

  // Agrees with the other members. Takes at most a few times the time-out for connections.
  void Form();

  // Waits until the group is formed, which needs the first operation of every member. Returns DeadlineExceeded, the
  // result of `stop` once that is an error, or FailedPrecondition if no group of devices could be formed and the
  // policy forbids TensorFlow's algorithms.
  absl::Status Await(Deadline deadline, const std::function<absl::Status()>& stop);
  // Whether Await returns at once.
  bool formed() const { return formed_.load(std::memory_order_acquire); }
  // The group of devices; nullptr means TensorFlow's algorithms. Valid once formed.
  rdt_group* handle() const { return handle_; }

  // Ends the group at all members, at once or when it is formed. From now on operations fail with the error `why`.
  // Only the first call counts.
  void Abort(const absl::Status& why);
  // The error with which a member aborted the group. Requires a handle.
  absl::Status WhyAborted() const;

  const tensorflow::CollGroupParams& params() const { return params_; }
  uint32_t rank() const { return rank_; }
  // Whether `params` has the same members, none of them restarted.
  bool IsOf(const tensorflow::CollGroupParams& params) const;

  // The number of earlier operations with this key. Together with the key it identifies an operation, because
  // TensorFlow reuses keys for the next execution of a graph.
  uint64_t CountOf(uint64_t key);

  Json AsJson() const override;
  void ResetCounts() override;

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

  TensorService* const service_;
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
  CollectiveGroups(TensorService* service, tensorflow::WorkerCacheInterface* workers)
      : service_(service), workers_(workers) {}

  // The group of these members. If it is new, this starts to form it.
  std::shared_ptr<CollectiveGroup> Find(const tensorflow::CollGroupParams& params, int rank);
  // The latest group of this key if it is formed and has a handle; nullptr otherwise.
  std::shared_ptr<CollectiveGroup> FindFormed(int32_t group_key);
  // Aborts all groups, including those that are found later: this task sends nothing more, because TensorFlow keeps
  // an error until the program restarts. Only the first call counts.
  void Abort(const absl::Status& why);

 private:
  TensorService* const service_;
  tensorflow::WorkerCacheInterface* const workers_;
  std::mutex mutex_;
  absl::Status aborted_;
  absl::flat_hash_map<int32_t, std::shared_ptr<CollectiveGroup>> groups_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_GROUPS_H_
