// SPDX-License-Identifier: Apache-2.0
#include "calls/recv_tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rendezvous_mgr_interface.h"

namespace rdmatensor {
namespace {

using tensorflow::RecvTensorResponse;
using tensorflow::Rendezvous;
using tensorflow::Tensor;

// The key of the tensor beside the answer.
constexpr char kTensorKey[] = "tensor";

// Where memory can be mapped, the answer was copied out when it was taken; otherwise it was read as it is.
absl::Status CopyOut(const CallBody& answer, bool was_copied,
                     tensorflow::TensorResponse* response) {
  RecvTensorResponse message;
  if (absl::Status status = Unpack(answer, &message); !status.ok()) return status;
  if (answer.tensors.empty() || answer.tensors.front().key != kTensorKey) {
    return response->InitFrom(&message);
  }
  const Tensor& taken = answer.tensors.front().tensor;
  message.mutable_tensor()->set_dtype(taken.dtype());
  taken.shape().AsProto(message.mutable_tensor()->mutable_tensor_shape());
  response->InitPartial(message, {});
  // TensorFlow has no other way to give a response its tensor.
  auto& tensor = const_cast<Tensor&>(response->tensor());
  if (was_copied || !tensor.IsInitialized()) {
    tensor = taken;
  } else if (taken.TotalBytes() > 0) {
    std::memcpy(tensor.data(), taken.data(), taken.TotalBytes());
  }
  return absl::OkStatus();
}

// Checks that the device of `key` is this process's, as TensorFlow's worker does.
absl::Status CheckDevice(const tensorflow::WorkerEnv& env, const Rendezvous::ParsedKey& key) {
  tensorflow::Device* device = nullptr;
  absl::Status status = env.device_mgr->LookupDevice(key.src_device, &device);
  if (status.ok() && device->attributes().incarnation() != key.src_incarnation) {
    status = absl::AbortedError(
        absl::StrCat("RecvTensor expects a different device incarnation: ", key.src_incarnation,
                     " vs. ", device->attributes().incarnation()));
  }
  return status;
}

void Answer(ArrivedCall* call, const absl::Status& received, const Tensor& tensor, bool is_dead) {
  CallBody body;
  absl::Status status = received;
  if (status.ok()) {
    RecvTensorResponse message;
    message.set_is_dead(is_dead);
    if (!is_dead && MayGoBeside(tensor)) {
      body.tensors.push_back({tensor, kTensorKey, Use::kCopied});
    } else {
      (is_dead ? Tensor() : tensor).AsProtoTensorContent(message.mutable_tensor());
    }
    if (!Pack(message, &body)) status = absl::InternalError("the tensor is too long");
  }
  call->Answer(status, status.ok() ? body : CallBody());
}

void Receive(const tensorflow::WorkerEnv* env, std::shared_ptr<ArrivedCall> call) {
  tensorflow::RecvTensorRequest request;
  Rendezvous::ParsedKey key;
  absl::Status status = Unpack(call->request(), &request);
  if (status.ok()) status = Rendezvous::ParseKey(request.rendezvous_key(), &key);
  if (status.ok()) status = CheckDevice(*env, key);
  if (!status.ok()) {
    call->Answer(status, {});
    return;
  }
  env->rendezvous_mgr->RecvLocalAsync(
      request.step_id(), key,
      [call](const absl::Status& received, const Rendezvous::Args&, const Rendezvous::Args&,
             const Tensor& tensor,
             bool is_dead) { Answer(call.get(), received, tensor, is_dead); });
}

}  // namespace

bool CallRecvTensor(const std::shared_ptr<Calls>& calls, const std::string& task,
                    tensorflow::CallOptions* options, const tensorflow::RecvTensorRequest& request,
                    tensorflow::TensorResponse* response, const tensorflow::StatusCallback& done) {
  CallBody body;
  Calls::Done answered = [response, done, was_copied = calls->channel()->can_map()](
                             const absl::Status& status, const CallBody& answer) {
    done(status.ok() ? CopyOut(answer, was_copied, response) : status);
  };
  return Pack(request, &body) && calls->Call(Method::kRecvTensor, task, body, options,
                                             Calls::DoneRuns::kAnywhere, &answered);
}

void ServeRecvTensor(const tensorflow::WorkerEnv* env, CallTable* table) {
  table->Serve(Method::kRecvTensor, CallTable::Order::kAny,
               [env](std::shared_ptr<ArrivedCall> call) { Receive(env, std::move(call)); });
}

}  // namespace rdmatensor
