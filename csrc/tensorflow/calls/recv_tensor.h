// SPDX-License-Identifier: Apache-2.0
//
// ABLATION=2, for measurements only: TensorFlow's RecvTensor over channels for calls, which is the paper's RPC over
// RDMA. The sender copies each larger tensor into a message in registered memory, and the receiver copies it out.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_RECV_TENSOR_H_
#define RDMATENSOR_TENSORFLOW_CALLS_RECV_TENSOR_H_

#include <memory>
#include <string>

#include "calls/callee.h"
#include "calls/calls.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdmatensor {

// Fetches a tensor from `task`. False if the channel is down: then nothing was sent, and `done` is not called.
bool CallRecvTensor(const std::shared_ptr<Calls>& calls, const std::string& task,
                    tensorflow::CallOptions* options, const tensorflow::RecvTensorRequest& request,
                    tensorflow::TensorResponse* response, const tensorflow::StatusCallback& done);

// Answers such calls. `env` must outlive `table`.
void ServeRecvTensor(const tensorflow::WorkerEnv* env, CallTable* table);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_RECV_TENSOR_H_
