// SPDX-License-Identifier: Apache-2.0
#include "calls/run_graph.h"

#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

using tensorflow::NamedTensorProto;
using tensorflow::Tensor;

// Puts a value beside the message if possible, else inside. What is beside has its name only in the message.
void Put(const std::string& key, const Tensor& value, Use use, NamedTensorProto* named,
         CallBody* body) {
  named->set_name(key);
  if (MayGoBeside(value)) {
    body->tensors.push_back({value, key, use});
  } else {
    value.AsProtoField(named->mutable_tensor());
  }
}

// Takes values in the order in which they were put. A peer's counts need not agree.
class Values {
 public:
  explicit Values(const CallBody& body) : body_(body) {}
  absl::Status Next(const NamedTensorProto& named, Tensor* value) {
    if (named.has_tensor()) {
      if (value->FromProto(named.tensor())) return absl::OkStatus();
    } else if (next_ < body_.tensors.size()) {
      *value = body_.tensors[next_++].tensor;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("rdmatensor: a call lacks the value of " + named.name());
  }

 private:
  const CallBody& body_;
  size_t next_ = 0;
};

// A request whose fed values lie beside it.
class ArrivedRequest : public tensorflow::ProtoRunGraphRequest {
 public:
  ArrivedRequest(const tensorflow::RunGraphRequest* request, std::vector<Tensor> values)
      : ProtoRunGraphRequest(request), values_(std::move(values)) {}
  absl::Status SendValue(size_t i, Tensor* value) const override {
    *value = values_[i];
    return absl::OkStatus();
  }

 private:
  const std::vector<Tensor> values_;
};

// A response that puts fetched values beside itself.
class DepartingResponse : public tensorflow::NonOwnedProtoRunGraphResponse {
 public:
  DepartingResponse(tensorflow::RunGraphResponse* response, CallBody* body)
      : NonOwnedProtoRunGraphResponse(response), response_(response), body_(body) {}
  void AddRecv(const std::string& key, const Tensor& value) override {
    Put(key, value, Use::kWhereItLies, response_->add_recv(), body_);
  }

 private:
  tensorflow::RunGraphResponse* const response_;
  CallBody* const body_;
};

struct Running {
  std::shared_ptr<ArrivedCall> call;
  tensorflow::RunGraphRequest message;
  tensorflow::RunGraphResponse answer;
  CallBody body;
  std::unique_ptr<ArrivedRequest> request;
  DepartingResponse response{&answer, &body};
};

void RunGraph(tensorflow::WorkerInterface* worker, StepFailures* ended_early,
              std::shared_ptr<ArrivedCall> call) {
  auto running = std::make_shared<Running>();
  running->call = std::move(call);
  ArrivedCall& arrived = *running->call;
  absl::Status status = Unpack(arrived.request(), &running->message);
  Values values(arrived.request());
  std::vector<Tensor> fed(static_cast<size_t>(running->message.send_size()));
  for (int i = 0; status.ok() && i < running->message.send_size(); ++i) {
    status = values.Next(running->message.send(i), &fed[static_cast<size_t>(i)]);
  }
  if (!status.ok()) {
    arrived.Answer(status, {});
    return;
  }
  arrived.mutable_request()->tensors.clear();
  running->request = std::make_unique<ArrivedRequest>(&running->message, std::move(fed));
  // The worker replaces this by its own way to cancel, once it gets to the step.
  arrived.options()->SetCancelCallback([ended_early, step_id = running->message.step_id()] {
    ended_early->AddStep(
        step_id, tsl::StatusGroup::MakeDerived(absl::CancelledError("The step was cancelled.")));
  });
  worker->RunGraphAsync(arrived.options(), running->request.get(), &running->response,
                        [running](const absl::Status& ended) {
                          absl::Status sent = ended;
                          if (sent.ok() && !Pack(running->answer, &running->body)) {
                            sent = absl::InternalError("the response is too long");
                          }
                          running->call->Answer(sent, sent.ok() ? running->body : CallBody());
                        });
}

void CleanupGraph(tensorflow::WorkerInterface* worker, std::shared_ptr<ArrivedCall> call) {
  struct Ending {
    tensorflow::CleanupGraphRequest request;
    tensorflow::CleanupGraphResponse response;
  };
  auto ending = std::make_shared<Ending>();
  if (absl::Status status = Unpack(call->request(), &ending->request); !status.ok()) {
    call->Answer(status, {});
    return;
  }
  worker->CleanupGraphAsync(&ending->request, &ending->response,
                            [ending, call](const absl::Status& status) {
                              CallBody body;
                              (void)Pack(ending->response, &body);
                              call->Answer(status, body);
                            });
}

}  // namespace

absl::Status PackRunGraph(const tensorflow::RunGraphRequestWrapper& request, CallBody* body) {
  tensorflow::RunGraphRequest message;
  message.set_session_handle(request.session_handle());
  message.set_create_worker_session_called(request.create_worker_session_called());
  message.set_graph_handle(request.graph_handle());
  message.set_step_id(request.step_id());
  *message.mutable_exec_opts() = request.exec_opts();
  for (size_t i = 0; i < request.num_sends(); ++i) {
    Tensor value;
    if (absl::Status status = request.SendValue(i, &value); !status.ok()) return status;
    // The client's array may be its memory.
    Put(request.send_key(i), value, Use::kCopied, message.add_send(), body);
  }
  for (size_t i = 0; i < request.num_recvs(); ++i) message.add_recv_key(request.recv_key(i));
  message.set_is_partial(request.is_partial());
  message.set_is_last_partial_run(request.is_last_partial_run());
  message.set_store_errors_in_response_body(request.store_errors_in_response_body());
  message.set_request_id(request.request_id());
  return Pack(message, body) ? absl::OkStatus() : absl::InvalidArgumentError("too long");
}

absl::Status UnpackRunGraph(const CallBody& body,
                            tensorflow::MutableRunGraphResponseWrapper* response) {
  tensorflow::RunGraphResponse answer;
  if (absl::Status status = Unpack(body, &answer); !status.ok()) return status;
  Values values(body);
  for (const NamedTensorProto& named : answer.recv()) {
    Tensor value;
    if (absl::Status status = values.Next(named, &value); !status.ok()) return status;
    response->AddRecv(named.name(), value);
  }
  if (answer.has_step_stats()) response->mutable_step_stats()->Swap(answer.mutable_step_stats());
  if (answer.has_cost_graph()) response->mutable_cost_graph()->Swap(answer.mutable_cost_graph());
  for (const tensorflow::GraphDef& graph : answer.partition_graph()) {
    response->AddPartitionGraph(graph);
  }
  if (answer.status_code() != 0) {
    response->set_status(absl::Status(static_cast<absl::StatusCode>(answer.status_code()),
                                      answer.status_error_message()));
  }
  return absl::OkStatus();
}

void ServeRunGraph(tensorflow::WorkerInterface* worker, StepFailures* ended_early,
                   CallTable* table) {
  table->Serve(Method::kRunGraph, CallTable::Order::kAny,
               [worker, ended_early](std::shared_ptr<ArrivedCall> call) {
                 RunGraph(worker, ended_early, std::move(call));
               });
  table->Serve(
      Method::kCleanupGraph, CallTable::Order::kAny,
      [worker](std::shared_ptr<ArrivedCall> call) { CleanupGraph(worker, std::move(call)); });
}

}  // namespace rdmatensor
