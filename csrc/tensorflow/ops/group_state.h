// SPDX-License-Identifier: Apache-2.0
//
// A group of the core as the resource of TensorFlow's operations.
#ifndef RDMATENSOR_TENSORFLOW_OPS_GROUP_STATE_H_
#define RDMATENSOR_TENSORFLOW_OPS_GROUP_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/buffer_pool.h"
#include "ops/operation_stats.h"
#include "ops/started.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Thread-safe. Made by std::make_shared.
class GroupState : public std::enable_shared_from_this<GroupState> {
 public:
  // `device` and `group` live until Leave and Release, respectively. Operations end after `timeout_ms`.
  GroupState(rdt_device* device, rdt_group* group, int timeout_ms);

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  std::string Description() const {
    return absl::StrCat("rdmatensor group, rank ", rank_, " of ", size_);
  }
  // Whether an all-reduce of so many bytes may put its result in the place of its input without a copy. Members on
  // other hosts could not write there, and with FLAT the others read the input until the end.
  bool ReducesInPlace(uint64_t bytes);
  BufferPool& pool() { return *pool_; }

  // Starts the operation that `collective` describes but for its tag. Members start their operations in the same
  // order; `detail` is equal at all of them, or the operation fails. An error means that nothing was started; the
  // other members get it, too.
  absl::Status Start(const std::shared_ptr<Started>& started, rdt_collective* collective,
                     const std::string& detail);
  // In place of Start if this member cannot take part: the others get the error `why`, and do not wait. Returns it
  // with the name of the operation.
  absl::Status Refuse(const std::string& name, const absl::Status& why);
  void Cancel(const uint64_t tag[2]);
  // An operation that went on after Start is over.
  void Ended(Started* started, rdt_status status);
  // Ends what is under way, and nothing starts any more. Then the group may be closed. Idempotent.
  void Leave();
  // Withdraws the memory of operations, which have ended with the group. Then the device may be closed.
  void Release() { pool_->Close(); }

  // JSON for rdmatensor.train.statistics().
  std::string Statistics();
  // Whether Leave was called.
  bool Left();

 private:
  // The tag of the next operation. Call it under mutex_.
  void Number(uint64_t tag[2]);

  rdt_group* const group_;
  const int timeout_ms_;
  uint32_t rank_ = 0, size_ = 1, hosts_ = 1;
  double latency_ns_ = 0, byte_ns_ = 0;  // of a message, as the group measured when it was joined
  const std::shared_ptr<BufferPool> pool_;
  std::unique_ptr<OperationStats> stats_;
  std::mutex mutex_;
  bool left_ = false;
  std::atomic<int> under_way_{0};
  uint64_t started_ = 0;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_GROUP_STATE_H_
