// SPDX-License-Identifier: Apache-2.0
#include "calls/eager_service.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "calls/may_block.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace rdmatensor {
namespace {

using tensorflow::eager::EagerServiceImpl;

// Clients that never close their contexts are forgotten from this number on.
constexpr size_t kMaxClients = 1u << 16;
// An operation of a lost stream may wait for one that comes after it.
constexpr absl::Duration kMostToAwait = absl::Seconds(5);

template <typename Response>
void Reply(ArrivedCall* call, const absl::Status& status, const Response& response) {
  CallBody answer;
  if (status.ok() && !Pack(response, &answer)) {
    call->Answer(absl::InternalError("the answer is longer than protobuf permits"), {});
    return;
  }
  call->Answer(status, answer);
}

// False: it was malformed, and is answered.
template <typename Request>
bool Read(ArrivedCall* call, Request* request) {
  if (Unpack(call->request(), request).ok()) return true;
  call->Answer(absl::InvalidArgumentError("rdmatensor: a malformed request"), {});
  return false;
}

}  // namespace

void StreamPosition::AppendTo(std::string* bytes) const {
  bytes->append(reinterpret_cast<const char*>(&client), sizeof client);
  bytes->append(reinterpret_cast<const char*>(&stream), sizeof stream);
}

bool StreamPosition::TakeFrom(absl::string_view* bytes) {
  if (bytes->size() < kSize) return false;
  std::memcpy(&client, bytes->data(), sizeof client);
  std::memcpy(&stream, bytes->data() + sizeof client, sizeof stream);
  bytes->remove_prefix(kSize);
  return true;
}

template <typename Request, typename Response>
CallTable::Handler EagerService::Unary(absl::Status (EagerServiceImpl::*method)(const Request*,
                                                                                Response*)) {
  return [this, method](const std::shared_ptr<ArrivedCall>& call) {
    Request request;
    Response response;
    if (!Read(call.get(), &request)) return;
    Reply(call.get(), (stock_->*method)(&request, &response), response);
  };
}

void EagerService::Serve(CallTable* table) {
  // They may wait for other calls, so they do not take threads of TensorFlow's pool. Enqueue does, as over gRPC: such
  // requests come by the thousand.
  auto serve = [table](Method method, const CallTable::Handler& handler) {
    table->Serve(method, CallTable::Order::kAtOnce, [handler](std::shared_ptr<ArrivedCall> call) {
      RunWhereItMayBlock([handler, call = std::move(call)] {
        const absl::Status taken = call->TakeTensors();
        if (!taken.ok()) {
          call->Answer(taken, {});
        } else {
          handler(call);
        }
      });
    });
  };
  serve(Method::kCreateContext, Unary(&EagerServiceImpl::CreateContext));
  serve(Method::kUpdateContext, Unary(&EagerServiceImpl::UpdateContext));
  serve(Method::kWaitQueueDone, Unary(&EagerServiceImpl::WaitQueueDone));
  serve(Method::kKeepAlive, Unary(&EagerServiceImpl::KeepAlive));
  serve(Method::kCloseContext,
        [this](const std::shared_ptr<ArrivedCall>& call) { CloseContext(call); });
  serve(Method::kRunComponentFunction,
        [this](const std::shared_ptr<ArrivedCall>& call) { RunComponentFunction(call); });
  table->Serve(Method::kEnqueue, CallTable::Order::kAny,
               [this](const std::shared_ptr<ArrivedCall>& call) { Enqueue(call); });
  table->Serve(Method::kStreamingEnqueue, CallTable::Order::kAtOnce,
               [this](const std::shared_ptr<ArrivedCall>& call) { EnqueueInStream(call); });
}

void EagerService::Enqueue(const std::shared_ptr<ArrivedCall>& call) {
  tensorflow::eager::EnqueueRequest request;
  tensorflow::eager::EnqueueResponse response;
  if (!Read(call.get(), &request)) return;
  const absl::Status status = stock_->Enqueue(call->options(), &request, &response);
  call->options()->ClearCancelCallback();
  Reply(call.get(), status, response);
}

void EagerService::RunComponentFunction(const std::shared_ptr<ArrivedCall>& call) {
  struct Run {
    std::shared_ptr<ArrivedCall> call;
    tensorflow::eager::RunComponentFunctionRequest request;
    tensorflow::eager::RunComponentFunctionResponse response;
  };
  if (call->cancelled()) {
    call->Answer(absl::CancelledError("CANCELLED"), {});
    return;
  }
  auto run = std::make_shared<Run>();
  run->call = call;
  if (!Read(call.get(), &run->request)) return;
  stock_->RunComponentFunction(
      call->options(), &run->request, &run->response,
      [run](const absl::Status& status) { Reply(run->call.get(), status, run->response); });
  // It may have been cancelled before TensorFlow said what that means.
  if (call->cancelled()) call->options()->StartCancel();
}

void EagerService::CloseContext(const std::shared_ptr<ArrivedCall>& call) {
  tensorflow::eager::CloseContextRequest request;
  tensorflow::eager::CloseContextResponse response;
  if (!Read(call.get(), &request)) return;
  const absl::Status status = stock_->CloseContext(&request, &response);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::erase_if(clients_, [&request](const auto& entry) {
      return !entry.second->busy && entry.second->context == request.context_id();
    });
  }
  Reply(call.get(), status, response);
}

void EagerService::EnqueueInStream(const std::shared_ptr<ArrivedCall>& call) {
  absl::string_view bytes = call->request().bytes;
  StreamPosition position;
  if (!position.TakeFrom(&bytes)) {
    call->Answer(absl::InvalidArgumentError("rdmatensor: a malformed request"), {});
    return;
  }
  Add(position, {position.stream, call, nullptr});
}

void EagerService::EndStream(const std::string& question, TaskAnswered answer) {
  absl::string_view bytes = question;
  StreamPosition position;
  if (!position.TakeFrom(&bytes) || !bytes.empty()) {
    answer(absl::InvalidArgumentError("rdmatensor: a malformed question"));
    return;
  }
  Add(position, {position.stream, nullptr, [answer = std::move(answer)] { answer(""); }});
}

void EagerService::Add(const StreamPosition& position, InStream request) {
  std::shared_ptr<Client> client;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (clients_.size() >= kMaxClients) {
      absl::erase_if(clients_, [](const auto& entry) { return !entry.second->busy; });
    }
    std::shared_ptr<Client>& known = clients_[position.client];
    if (known == nullptr) known = std::make_shared<Client>();
    client = known;
    if (request.ended) client->first = std::max(client->first, position.stream + 1);
    client->waiting.push_back(std::move(request));
    if (std::exchange(client->busy, true)) return;
  }
  RunWhereItMayBlock([this, client = std::move(client)] { Drain(client); });
}

void EagerService::Drain(const std::shared_ptr<Client>& client) {
  for (;;) {
    InStream request;
    bool has_ended = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      client->busy = !client->waiting.empty();
      if (!client->busy) return;
      request = std::move(client->waiting.front());
      client->waiting.pop_front();
      has_ended = request.stream < std::max(client->stream, client->first);
    }
    if (request.ended) {
      // If it fails, the error is lost with the channel, as are those that were on their way.
      (void)AwaitFormer(client.get());
      request.ended();
      continue;
    }
    tensorflow::eager::EnqueueResponse response;
    const absl::Status status = has_ended ? absl::CancelledError("its stream has ended")
                                          : Execute(client.get(), request, &response);
    if (!has_ended) client->ended = status;
    Reply(request.call.get(), status, response);
  }
}

absl::Status EagerService::Execute(Client* client, const InStream& in_stream,
                                   tensorflow::eager::EnqueueResponse* response) {
  if (in_stream.stream > client->stream) {
    client->stream = in_stream.stream;
    if (absl::Status former = AwaitFormer(client); !former.ok()) return former;
    if (client->id == 0) client->id = next_id_++;
  }
  if (in_stream.call->cancelled()) return absl::CancelledError("CANCELLED");
  if (!client->ended.ok()) return client->ended;
  if (absl::Status taken = in_stream.call->TakeTensors(); !taken.ok()) return taken;
  tensorflow::eager::EnqueueRequest request;
  if (!Unpack(in_stream.call->request(), &request, StreamPosition::kSize).ok()) {
    return absl::InvalidArgumentError("rdmatensor: a malformed request");
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    client->context = request.context_id();
  }
  return stock_->Enqueue(nullptr, &request, response, client->id);
}

absl::Status EagerService::AwaitFormer(Client* client) {
  // TensorFlow forgets an id with its first error, which the client was told.
  if (!std::exchange(client->ended, absl::OkStatus()).ok()) client->id = 0;
  if (client->id == 0) return absl::OkStatus();
  struct Sync {
    tensorflow::eager::EnqueueRequest request;
    tensorflow::eager::EnqueueResponse response;
    absl::Status status;
    absl::Notification done;
  };
  auto sync = std::make_shared<Sync>();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sync->request.set_context_id(client->context);
  }
  sync->request.add_queue()->mutable_sync_remote_executor_for_stream();
  RunWhereItMayBlock([this, sync, id = client->id] {
    sync->status = stock_->Enqueue(nullptr, &sync->request, &sync->response, id);
    sync->done.Notify();
  });
  if (sync->done.WaitForNotificationWithTimeout(kMostToAwait) && sync->status.ok()) {
    return absl::OkStatus();
  }
  client->id = 0;
  return sync->done.HasBeenNotified() ? sync->status : absl::OkStatus();
}

}  // namespace rdmatensor
