// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's manager of collective operations, with the plugin's executors.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_MANAGER_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_MANAGER_H_

#include <memory>

#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace rdmatensor {

class TensorService;

// TensorFlow's manager of collective operations with our executors. `env` and `workers` must outlive it, as with
// TensorFlow's own.
std::unique_ptr<tensorflow::CollectiveExecutorMgrInterface> NewCollectiveManager(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
    tensorflow::WorkerCacheInterface* workers, TensorService* service);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_MANAGER_H_
