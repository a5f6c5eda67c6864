// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's connections to the tasks of a cluster, of which those messages that start and end steps go over
// channels where channels are up.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_WORKER_CACHE_H_
#define RDMATENSOR_TENSORFLOW_CALLS_WORKER_CACHE_H_

#include <memory>

#include "calls/calls.h"
#include "service/tensor_service.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdmatensor {

// Wraps `stock`, TensorFlow's own connections. `local`: the server's own worker, which stays as it is. The caller
// owns the result, as TensorFlow's servers do.
tensorflow::WorkerCacheInterface* NewControlWorkerCache(
    TensorService* service, Schedule schedule, const tensorflow::WorkerInterface* local,
    std::unique_ptr<tensorflow::WorkerCacheInterface> stock);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_WORKER_CACHE_H_
