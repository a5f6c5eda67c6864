// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_executor.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "collective/collective_failure.h"
#include "collective/collective_operation.h"
#include "collective/collective_stats.h"
#include "collective/host_tensors.h"
#include "farmhash.h"
#include "tensorflow/core/common_runtime/collective_util.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/process_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::CollectiveParams;

// Whether this thread runs a closure of the work queue, which adds threads as needed, so that they may block.
thread_local bool may_block = false;

// The period of looking for an abort until TensorFlow's resolver has answered.
constexpr int64_t kLookForAbortUs = 50'000;

bool IsCancelled(tensorflow::CancellationManager* cancellation) {
  return cancellation != nullptr && (cancellation->IsCancelled() || cancellation->IsCancelling());
}

// The deadline of an operation that may take this many seconds; 0 means no limit.
Deadline DeadlineAfter(float seconds) {
  if (!(seconds > 0)) return Deadline::max();
  const std::chrono::duration<double> wanted(seconds);
  constexpr std::chrono::hours kLong(24 * 365);
  if (wanted > kLong) return Deadline::max();
  return Deadline::clock::now() + std::chrono::duration_cast<Deadline::duration>(wanted);
}

// The rank of the member on `device`; -1 if there is none.
int RankOf(const tensorflow::CollGroupParams& group, const std::string& device) {
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (group.members[i].device.name() == device) return static_cast<int>(i);
  }
  return -1;
}

// The group's size in the operation's type, as the divisor of a mean.
tensorflow::Tensor SizeAs(tensorflow::DataType dtype, int size) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return tensorflow::Tensor(static_cast<float>(size));
    case tensorflow::DT_DOUBLE:
      return tensorflow::Tensor(static_cast<double>(size));
    case tensorflow::DT_HALF:
      return tensorflow::Tensor(static_cast<Eigen::half>(size));
    case tensorflow::DT_BFLOAT16:
      return tensorflow::Tensor(static_cast<tensorflow::bfloat16>(size));
    case tensorflow::DT_INT32:
      return tensorflow::Tensor(static_cast<int32_t>(size));
    case tensorflow::DT_INT64:
      return tensorflow::Tensor(static_cast<int64_t>(size));
    default:
      return tensorflow::Tensor();
  }
}

}  // namespace

// Lives from ExecuteAsync to the call of `done`.
struct CollectiveExecutor::Operation {
  tensorflow::OpKernelContext* context;
  const CollectiveParams* params;
  std::string exec_key;
  tensorflow::StatusCallback done;
  std::shared_ptr<CollectiveGroup> group;
  Deadline deadline;
};

CollectiveExecutor::CollectiveExecutor(tensorflow::CollectiveExecutorMgrInterface* manager,
                                       tensorflow::CollectiveRemoteAccess* remote_access,
                                       int64_t step_id, const tensorflow::DeviceMgr* devices,
                                       std::shared_ptr<tensorflow::UnboundedWorkQueue> work_queue,
                                       CollectiveGroups* groups, bool nccl)
    : BaseCollectiveExecutor(manager, remote_access, step_id, devices, std::move(work_queue)),
      groups_(groups),
      nccl_(nccl) {}

void CollectiveExecutor::RunClosure(std::function<void()> closure) {
  BaseCollectiveExecutor::RunClosure([closure = std::move(closure)] {
    may_block = true;
    closure();
    may_block = false;
  });
}

bool CollectiveExecutor::KnowsParams(const tensorflow::DeviceAttributes& device,
                                     CollectiveParams* params) {
  // Only TensorFlow's group leader knows who broadcasts.
  if (params->instance.type == tensorflow::BROADCAST_COLLECTIVE || WhyStock(*params, nccl_))
    return false;
  const std::shared_ptr<CollectiveGroup> group = groups_->FindFormed(params->group.group_key);
  if (group == nullptr) return false;
  const tensorflow::CollGroupParams& known = group->params();
  const int rank = RankOf(known, device.name());
  if (rank < 0 || known.group_size != params->group.group_size ||
      known.device_type != params->group.device_type) {
    return false;  // TensorFlow reports the mismatch
  }
  const int user_specified_rank = params->group.user_specified_rank;
  params->group = known;
  params->group.user_specified_rank = user_specified_rank;
  params->default_rank = rank;
  return true;
}

void CollectiveExecutor::CompleteParamsAsync(const tensorflow::DeviceAttributes& device,
                                             CollectiveParams* params,
                                             tensorflow::CancellationManager* cancellation,
                                             tensorflow::StatusCallback done) {
  if (KnowsParams(device, params)) {
    done(AbortStatus());
    return;
  }
  // Other operations may wait for their answers behind `done`: see CompleteGroupLocal.
  may_block = false;
  // TensorFlow has no reduce-scatter but NCCL's and therefore refuses to resolve one.
  if (params->instance.type == tensorflow::REDUCE_SCATTER_COLLECTIVE && !WhyStock(*params, nccl_)) {
    params->instance.type = tensorflow::REDUCTION_COLLECTIVE;
    done = [params, done = std::move(done)](const absl::Status& status) {
      params->instance.type = tensorflow::REDUCE_SCATTER_COLLECTIVE;
      done(status);
    };
  }
  done = [this, device, params, done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) Abandon(device, *params);
    done(status);
  };
  if (std::shared_ptr<CollectiveGroup> group = groups_->FindFormed(params->group.group_key)) {
    auto answered = std::make_shared<std::atomic<bool>>(false);
    done = [answered, done = std::move(done)](const absl::Status& status) {
      answered->store(true);
      done(status);
    };
    WatchGroup(std::move(group), std::move(answered));
  }
  BaseCollectiveExecutor::CompleteParamsAsync(device, params, cancellation, std::move(done));
}

void CollectiveExecutor::WatchGroup(std::shared_ptr<CollectiveGroup> group,
                                    std::shared_ptr<std::atomic<bool>> answered) {
  if (answered->load()) return;
  if (const absl::Status why = group->WhyAborted(); !why.ok()) {
    StartAbort(why);
    return;
  }
  Ref();
  tensorflow::SchedNonBlockingClosureAfter(kLookForAbortUs, [this, group, answered] {
    WatchGroup(group, answered);
    Unref();
  });
}

void CollectiveExecutor::Abandon(const tensorflow::DeviceAttributes& device,
                                 const CollectiveParams& params) {
  const int rank = RankOf(params.group, device.name());
  const bool known = static_cast<int>(params.group.members.size()) == params.group.group_size;
  if (rank < 0 || !known || WhyStock(params.group)) return;
  // An aborted one joins it only to tell the others.
  std::shared_ptr<CollectiveGroup> group = groups_->Find(params.group, rank);
  if (!AbortStatus().ok()) return;
  // As TensorFlow's kernels name an operation that is in no loop.
  const Tag tag = TagOf(
      *group, absl::StrCat(params.group.group_key, ":", params.instance.instance_key, ":0:0"));
  tsl::Env::Default()->SchedClosure([group = std::move(group), tag] {
    (void)group->Await(Deadline::max(), [] { return absl::OkStatus(); });
    if (group->handle() != nullptr) (void)rdt_group_cancel(group->handle(), tag.data());
  });
}

void CollectiveExecutor::ExecuteAsync(tensorflow::OpKernelContext* context,
                                      const CollectiveParams* params, const std::string& exec_key,
                                      tensorflow::StatusCallback done) {
  const bool blocks = std::exchange(may_block, false);
  if (const char* reason = WhyStock(*params, nccl_)) {
    CountStockCollective(reason);
    BaseCollectiveExecutor::ExecuteAsync(context, params, exec_key, std::move(done));
    return;
  }
  const float timeout_s = params->instance.impl_details.timeout_seconds;
  auto operation = std::make_unique<Operation>(
      Operation{context, params, exec_key, std::move(done),
                groups_->Find(params->group, params->default_rank), DeadlineAfter(timeout_s)});
  if (blocks) {
    Run(std::move(operation));
    return;
  }
  BaseCollectiveExecutor::RunClosure(
      [this, raw = operation.release()] { Run(std::unique_ptr<Operation>(raw)); });
}

void CollectiveExecutor::Run(std::unique_ptr<Operation> operation) {
  absl::Status status = operation->group->Await(operation->deadline, [&] {
    return IsCancelled(operation->context->cancellation_manager())
               ? absl::CancelledError("rdmatensor: the step was cancelled")
               : AbortStatus();
  });
  if (status.ok() && operation->group->handle() == nullptr) {
    CountStockCollective("group");
    if (operation->params->instance.type == tensorflow::REDUCE_SCATTER_COLLECTIVE) {
      status = absl::UnimplementedError(
          "reduce-scatter without NCCL needs grpc+rdma on all members of the group");
    } else {
      BaseCollectiveExecutor::ExecuteAsync(operation->context, operation->params,
                                           operation->exec_key, std::move(operation->done));
      return;
    }
  } else if (status.ok()) {
    status = RunOnGroup(*operation);
  }
  Finish(*operation, std::move(status));
}

CollectiveExecutor::Tag CollectiveExecutor::TagOf(CollectiveGroup& group,
                                                  const std::string& exec_key) const {
  const std::string name = absl::StrCat(step_id_, ":", exec_key);
  // Equal in all processes, unlike absl's hashes.
  const auto hash = util::Fingerprint128(name.data(), name.size());
  const uint64_t count = group.CountOf(util::Uint128Low64(hash));
  return {util::Uint128Low64(hash) + count, util::Uint128High64(hash) | 1};
}

absl::Status CollectiveExecutor::RunOnGroup(const Operation& operation) {
  HostTensors tensors(operation.context, *operation.params);
  absl::Status status = CheckSizes(*operation.params, tensors.input(), *tensors.output());
  if (status.ok()) status = tensors.TakeInput();
  if (!status.ok()) return status;
  rdt_collective collective{};
  Describe(*operation.params, tensors.input(), tensors.output(), &collective);
  const Tag tag = TagOf(*operation.group, operation.exec_key);
  std::copy(tag.begin(), tag.end(), collective.tag);
  const std::string detail = DetailOf(*operation.params);
  collective.detail = detail.c_str();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(operation.deadline -
                                                                          Deadline::clock::now());
  collective.timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
  {
    tsl::profiler::TraceMe span(
        [&] {
          return tsl::profiler::TraceMeEncode(
              "rdmatensor::collective",
              {{"kind", NameOf(collective.kind)},
               {"bytes", collective.count * rdt_dtype_size(collective.dtype)},
               {"members", operation.params->group.group_size}});
        },
        kSpanLevel);
    status = RunCancellable(operation, collective);
  }
  if (status.ok()) status = tensors.GiveOutput();
  tensorflow::OpKernel* const final_op = operation.params->final_op;
  if (!status.ok() || final_op == nullptr) return status;
  tensorflow::Tensor* const output = operation.context->mutable_output(0);
  tensorflow::Tensor divisor = SizeAs(output->dtype(), operation.params->group.group_size);
  if (status = tensors.MoveToDevice(&divisor); !status.ok()) return status;
  return tensorflow::collective_util::ComputeBinOp(
      operation.context, CtxParams(operation.context),
      static_cast<tensorflow::Device*>(operation.context->device()), final_op, output, &divisor);
}

absl::Status CollectiveExecutor::RunCancellable(const Operation& operation,
                                                const rdt_collective& collective) {
  rdt_group* const group = operation.group->handle();
  const Tag tag{collective.tag[0], collective.tag[1]};
  std::list<CollectiveGroup*>::iterator running;
  {
    tensorflow::mutex_lock lock(status_mu_);
    running = running_.insert(running_.end(), operation.group.get());
  }
  tensorflow::CancellationManager* const cancellation = operation.context->cancellation_manager();
  tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
  bool cancelled = false;
  if (cancellation != nullptr) {
    token = cancellation->get_cancellation_token();
    cancelled = !cancellation->RegisterCallback(
        token, [group, tag] { (void)rdt_group_cancel(group, tag.data()); });
  }
  absl::Status status = AbortStatus();
  if (cancelled) status = absl::CancelledError("rdmatensor: the step was cancelled");
  if (status.ok()) {
    const rdt_status ran = rdt_group_run(group, &collective);
    status = CollectiveStatus(ran, ran == RDT_OK ? "" : rdt_last_error(), *operation.params,
                              operation.context->device()->name());
  } else {
    (void)rdt_group_cancel(group, tag.data());  // the other members wait for this member
  }
  // Afterwards no callback cancels any more, so the tag may be used again.
  if (cancellation != nullptr && !cancelled) cancellation->DeregisterCallback(token);
  tensorflow::mutex_lock lock(status_mu_);
  running_.erase(running);
  return status;
}

absl::Status CollectiveExecutor::AbortStatus() {
  tensorflow::mutex_lock lock(status_mu_);
  return status_;
}

void CollectiveExecutor::StartAbort(const absl::Status& status) {
  BaseCollectiveExecutor::StartAbort(status);
  groups_->Abort(status);
  // Groups whose members were restarted are only in this list, which they cannot leave while they are aborted.
  tensorflow::mutex_lock lock(status_mu_);
  for (CollectiveGroup* group : running_) group->Abort(status);
}

// Like TensorFlow's executor: a failure that is not the step's own cancellation aborts all later operations.
void CollectiveExecutor::Finish(const Operation& operation, absl::Status status) {
  if (status.ok()) {
    const rdt_collective_kind kind = KindOf(*operation.params);
    CountCollective(kind, operation.context->mutable_output(0)->TotalBytes());
  } else {
    CountFailedCollective();
    if (!IsCancelled(operation.context->cancellation_manager())) StartAbort(status);
    if (absl::Status aborted = AbortStatus(); !aborted.ok()) status = aborted;
  }
  operation.done(status);
}

}  // namespace rdmatensor
