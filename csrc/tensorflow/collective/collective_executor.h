// SPDX-License-Identifier: Apache-2.0
//
// Runs the collective operations of a step on groups of devices.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_EXECUTOR_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_EXECUTOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "collective/collective_groups.h"
#include "rdmatensor.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"

namespace rdmatensor {

// Runs the collective operations of one step (in TensorFlow 2, of all steps) on groups of devices, and leaves
// operations that these cannot run to TensorFlow's own executor. Thread-safe, like that executor.
class CollectiveExecutor : public tensorflow::BaseCollectiveExecutor {
 public:
  // Takes over `remote_access`. The manager owns `groups` and outlives its executors. `nccl`: the program wants NCCL
  // for all operations on GPUs.
  CollectiveExecutor(tensorflow::CollectiveExecutorMgrInterface* manager,
                     tensorflow::CollectiveRemoteAccess* remote_access, int64_t step_id,
                     const tensorflow::DeviceMgr* devices,
                     std::shared_ptr<tensorflow::UnboundedWorkQueue> work_queue,
                     CollectiveGroups* groups, bool nccl);

  void RunClosure(std::function<void()> closure) override;
  // TensorFlow asks the group's leader about every operation. Except for broadcasts that is needed only until the
  // group is known.
  void CompleteParamsAsync(const tensorflow::DeviceAttributes& device,
                           tensorflow::CollectiveParams* params,
                           tensorflow::CancellationManager* cancellation,
                           tensorflow::StatusCallback done) override;
  void ExecuteAsync(tensorflow::OpKernelContext* context,
                    const tensorflow::CollectiveParams* params, const std::string& exec_key,
                    tensorflow::StatusCallback done) override;
  void StartAbort(const absl::Status& status) override;

 private:
  using Tag = std::array<uint64_t, 2>;
  struct Operation;

  bool KnowsParams(const tensorflow::DeviceAttributes& device,
                   tensorflow::CollectiveParams* params);
  // Looks whether a member has aborted, until TensorFlow's resolver, which waits for all members, has `answered`.
  void WatchGroup(std::shared_ptr<CollectiveGroup> group,
                  std::shared_ptr<std::atomic<bool>> answered);
  void Run(std::unique_ptr<Operation> operation);
  absl::Status RunOnGroup(const Operation& operation);
  absl::Status RunCancellable(const Operation& operation, const rdt_collective& collective);
  // Tells the other members of an operation that TensorFlow refuses here why, because they wait for this member.
  void Abandon(const tensorflow::DeviceAttributes& device,
               const tensorflow::CollectiveParams& params);
  Tag TagOf(CollectiveGroup& group, const std::string& exec_key) const;
  absl::Status AbortStatus();
  void Finish(const Operation& operation, absl::Status status);

  CollectiveGroups* const groups_;
  const bool nccl_;
  std::list<CollectiveGroup*> running_;  // the groups of operations under way; under status_mu_
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_EXECUTOR_H_
