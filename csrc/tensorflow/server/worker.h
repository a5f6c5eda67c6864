// SPDX-License-Identifier: Apache-2.0
#ifndef RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
#define RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_

#include <memory>

#include "peer/endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "wire/message.h"

namespace rdmatensor {

// The stock worker, which also tells peers where this task's device is. They ask by a RecvBuf call
// with a key of ours, because TensorFlow's is the one connection that exists before ours.
// `endpoint` may be nullptr: the answer is then that there is no device.
AddressAnswer AnswerOf(const Endpoint* endpoint, const tensorflow::WorkerEnv& env);
std::unique_ptr<tensorflow::GrpcWorker> NewRdmaWorker(tensorflow::WorkerEnv* env,
                                                      const tensorflow::ConfigProto& config,
                                                      Endpoint* endpoint);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_WORKER_H_
