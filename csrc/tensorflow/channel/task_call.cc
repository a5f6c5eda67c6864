// SPDX-License-Identifier: Apache-2.0
#include "channel/task_call.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdmatensor {
namespace {

struct Call {
  tensorflow::CallOptions options;
  tensorflow::RecvBufRequest request;
  tensorflow::RecvBufResponse response;
};

}  // namespace

void AskTask(tensorflow::WorkerCacheInterface* workers, const std::string& task,
             const std::string& from, const std::string& key, const std::string& value,
             int timeout_ms, TaskAnswered done) {
  tensorflow::WorkerInterface* worker =
      workers != nullptr ? workers->GetOrCreateWorker(task) : nullptr;
  if (worker == nullptr) {
    done(absl::UnavailableError(
        "it is not in this task's cluster: name the same tasks in all of them"));
    return;
  }
  auto* call = new Call;
  call->options.SetTimeout(timeout_ms);
  call->request.set_request_id(tensorflow::GetUniqueRequestId());
  call->request.set_buf_rendezvous_key(key);
  // No such device: a server without the plugin answers with an error at once.
  call->request.set_src_device(key);
  call->request.set_dst_device(from);
  call->request.mutable_transport_options()->set_type_url(key);
  call->request.mutable_transport_options()->set_value(value);
  worker->RecvBufAsync(&call->options, &call->request, &call->response,
                       [call, workers, worker, task, key, done](const absl::Status& status) {
                         std::unique_ptr<Call> owned(call);
                         workers->ReleaseWorker(task, worker);
                         if (!status.ok()) {
                           done(status);
                         } else if (call->response.transport_options().type_url() != key) {
                           done(absl::FailedPreconditionError("its server has no grpc+rdma"));
                         } else {
                           done(std::string(call->response.transport_options().value()));
                         }
                       });
}

absl::StatusOr<std::string> AskTask(tensorflow::WorkerCacheInterface* workers,
                                    const std::string& task, const std::string& from,
                                    const std::string& key, const std::string& value,
                                    int timeout_ms) {
  absl::Notification answered;
  absl::StatusOr<std::string> result;
  AskTask(workers, task, from, key, value, timeout_ms,
          [&](const absl::StatusOr<std::string>& answer) {
            result = answer;
            answered.Notify();
          });
  answered.WaitForNotification();
  return result;
}

}  // namespace rdmatensor
