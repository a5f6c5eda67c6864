// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_manager.h"

#include <string>
#include <utility>

#include "base/task_name.h"
#include "collective/collective_executor.h"
#include "collective/collective_groups.h"
#include "service/tensor_service.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/nccl/collective_communicator.h"

namespace rdmatensor {
namespace {

using tensorflow::CollectiveParamResolverDistributed;
using tensorflow::CollectiveRemoteAccessDistributed;
using tensorflow::DeviceResolverDistributed;

class CollectiveManager : public tensorflow::RpcCollectiveExecutorMgr {
 public:
  CollectiveManager(const tensorflow::ConfigProto& config, const tensorflow::DeviceMgr* devices,
                    std::unique_ptr<DeviceResolverDistributed> device_resolver,
                    std::unique_ptr<CollectiveParamResolverDistributed> param_resolver,
                    std::unique_ptr<tensorflow::NcclCommunicatorInterface> nccl,
                    tensorflow::WorkerCacheInterface* workers, const std::string& task,
                    TensorService* service)
      : RpcCollectiveExecutorMgr(config, devices, std::move(device_resolver),
                                 std::move(param_resolver), std::move(nccl), workers, task),
        groups_(service, workers),
        nccl_(config.experimental().collective_nccl()) {}

 protected:
  tensorflow::CollectiveExecutor* Create(int64_t step_id) override {
    auto* remote_access = new CollectiveRemoteAccessDistributed(
        dev_mgr_, dev_resolver_.get(), work_queue_, worker_cache_, step_id, task_name_);
    return new CollectiveExecutor(this, remote_access, step_id, dev_mgr_, work_queue_, &groups_,
                                  nccl_);
  }

 private:
  CollectiveGroups groups_;
  const bool nccl_;
};

}  // namespace

std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface> NewCollectiveManager(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
    tensorflow::WorkerCacheInterface* workers, TensorService* service) {
  const std::string task(TaskOf(env->device_mgr->ListDevices()[0]->name()));
  auto nccl = tensorflow::MaybeCreateNcclCommunicator(config);
  auto device_resolver = std::make_unique<DeviceResolverDistributed>(env->device_mgr);
  auto param_resolver = std::make_unique<CollectiveParamResolverDistributed>(
      config, env->device_mgr, device_resolver.get(), nccl.get(), workers, task);
  return std::make_unique<CollectiveManager>(config, env->device_mgr, std::move(device_resolver),
                                             std::move(param_resolver), std::move(nccl), workers,
                                             task, service);
}

}  // namespace rdmatensor
