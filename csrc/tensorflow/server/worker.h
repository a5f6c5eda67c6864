// SPDX-License-Identifier: Apache-2.0
//
// The stock worker, which also answers peers' questions about this task's device.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
#define RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_

#include <memory>

#include "peer/tensor_service.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "wire/message.h"

namespace rdmatensor {

// Makes the stock worker, which also tells peers where this task's device is. They ask by a RecvBuf call with a
// key of the plugin's own, because TensorFlow's connection is the only one that exists before a channel does.
// If `service` is nullptr, the answer is that there is no device.
AddressAnswer AnswerOf(const TensorService* service, const tensorflow::WorkerEnv& env);
std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      TensorService* service);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
