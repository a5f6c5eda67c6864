// SPDX-License-Identifier: Apache-2.0
//
// The stock worker, which also answers peers' questions about this task's device.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
#define RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "channel/task_call.h"
#include "service/tensor_service.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"

namespace rdmatensor {

// Answers the questions of other tasks (channel/task_call.h), by their keys. Any thread may call it.
using Questions =
    std::map<std::string, std::function<void(const std::string& question, TaskAnswered answer)>>;

// Makes the stock worker, which also answers questions: `more`, how this task votes, and what its plan is.
std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      TensorService* service, Questions more);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
