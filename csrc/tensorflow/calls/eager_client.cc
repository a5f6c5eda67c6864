// SPDX-License-Identifier: Apache-2.0
#include "calls/eager_client.h"

#include <deque>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/notification.h"
#include "calls/calls.h"
#include "calls/eager_service.h"
#include "calls/may_block.h"
#include "stats/control_stats.h"
#include "tensorflow/core/platform/random.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/protobuf/eager_service.pb.h"

namespace rdmatensor {
namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::core::RefCountPtr;
using tensorflow::eager::EagerClient;

// A request on its way to its task.
class Outgoing {
 public:
  virtual ~Outgoing() = default;
  // Copies what the caller may destroy.
  virtual void Keep() = 0;
  // False if the channel is down: it was not sent.
  virtual bool Send(const std::shared_ptr<Calls>& calls, const StreamPosition& position) = 0;
  virtual void SendByStock() = 0;
  virtual void Fail(const absl::Status& status) = 0;
};

// A context is one and the same over channels and over gRPC, so each request goes the way that is open. Those of a
// stream must not overtake each other: when the way changes, they wait until the former way has nothing left.
class ControlEagerClient final : public EagerClient {
 public:
  ControlEagerClient(std::shared_ptr<RemoteTask> task, RefCountPtr<EagerClient> stock)
      : task_(std::move(task)), stock_(std::move(stock)) {}

  EagerClient* stock() const { return stock_.get(); }
  const std::string& task() const { return task_->task(); }

#define RDMATENSOR_EAGER_METHOD(name)                                                           \
  void name##Async(const tensorflow::eager::name##Request* request,                             \
                   tensorflow::eager::name##Response* response, StatusCallback done) override { \
    Dispatch(                                                                                   \
        NewMessage(Method::k##name, request, response, nullptr, std::move(done),                \
                   [response](EagerClient* stock, const auto* kept, StatusCallback answered) {  \
                     stock->name##Async(kept, response, std::move(answered));                   \
                   }));                                                                         \
  }
  RDMATENSOR_EAGER_METHOD(UpdateContext)
  RDMATENSOR_EAGER_METHOD(WaitQueueDone)
  RDMATENSOR_EAGER_METHOD(KeepAlive)
#undef RDMATENSOR_EAGER_METHOD

  void EnqueueAsync(CallOptions* options, const tensorflow::eager::EnqueueRequest* request,
                    tensorflow::eager::EnqueueResponse* response, StatusCallback done) override {
    Dispatch(NewMessage(
        Method::kEnqueue, request, response, options, std::move(done),
        [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
          stock->EnqueueAsync(options, kept, response, std::move(answered));
        }));
  }

  void RunComponentFunctionAsync(CallOptions* options,
                                 const tensorflow::eager::RunComponentFunctionRequest* request,
                                 tensorflow::eager::RunComponentFunctionResponse* response,
                                 StatusCallback done) override {
    Dispatch(NewMessage(
        Method::kRunComponentFunction, request, response, options, std::move(done),
        [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
          stock->RunComponentFunctionAsync(options, kept, response, std::move(answered));
        }));
  }

  void StreamingEnqueueAsync(bool in_stream, CallOptions* options,
                             const tensorflow::eager::EnqueueRequest* request,
                             tensorflow::eager::EnqueueResponse* response,
                             StatusCallback done) override {
    if (in_stream && allow_multiple_pending_requests()) {
      Stream(
          request->context_id(),
          NewMessage(
              Method::kStreamingEnqueue, request, response, nullptr, std::move(done),
              [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
                stock->StreamingEnqueueAsync(true, options, kept, response, std::move(answered));
              }));
      return;
    }
    // As TensorFlow's client, which waits where it may not have several requests under way.
    absl::Notification answered;
    absl::Status status;
    EnqueueAsync(options, request, response, [&answered, &status](const absl::Status& result) {
      status = result;
      answered.Notify();
    });
    answered.WaitForNotification();
    done(status);
  }

  void CloseContextAsync(const tensorflow::eager::CloseContextRequest* request,
                         tensorflow::eager::CloseContextResponse* response,
                         StatusCallback done) override {
    bool by_stock = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = contexts_.find(request->context_id());
      if (found != contexts_.end()) {
        by_stock = found->second.has_stock_stream;
        if (found->second.IsIdle()) contexts_.erase(found);
      }
    }
    auto message =
        NewMessage(Method::kCloseContext, request, response, nullptr, std::move(done),
                   [response](EagerClient* stock, const auto* kept, StatusCallback answered) {
                     stock->CloseContextAsync(kept, response, std::move(answered));
                   });
    // TensorFlow's client closes its stream, too.
    if (by_stock) {
      message->SendByStock();
    } else {
      Dispatch(std::move(message));
    }
  }

  void CreateContextAsync(const tensorflow::eager::CreateContextRequest* request,
                          tensorflow::eager::CreateContextResponse* response,
                          StatusCallback done) override {
    Create(request, response, std::move(done),
           [response](EagerClient* stock, const auto* kept, StatusCallback answered) {
             stock->CreateContextAsync(kept, response, std::move(answered));
           });
  }
  void CreateContextAsync(const tensorflow::eager::CreateContextRequest* request,
                          tensorflow::eager::CreateContextResponse* response, StatusCallback done,
                          int64_t timeout_ms, int retries) override {
    Create(request, response, std::move(done),
           [response, timeout_ms, retries](EagerClient* stock, const auto* kept,
                                           StatusCallback answered) {
             stock->CreateContextAsync(kept, response, std::move(answered), timeout_ms, retries);
           });
  }

  bool allow_multiple_pending_requests() const override {
    return stock_->allow_multiple_pending_requests();
  }

 private:
  // The streamed requests of a context.
  struct Context {
    StreamPosition position{tensorflow::random::New64(), 1};
    std::weak_ptr<Calls> channel;   // over which the newest of them went
    bool may_be_queued = false;     // over channels; the service may not have come to them
    bool has_stock_stream = false;  // or had
    bool may_be_left = false;       // over gRPC; answered requests may not have been executed
    uint64_t by_stock = 0;          // under way over gRPC
    bool is_turning = false;        // the way changes: they wait
    bool awaits_stock = false;      // for those under way over gRPC
    std::deque<std::unique_ptr<Outgoing>> waiting;
    bool IsIdle() const { return by_stock == 0 && !is_turning; }
    void CountByStock() {
      ++by_stock;
      has_stock_stream = may_be_left = true;
    }
  };

  template <typename Request>
  using ByStock = std::function<void(EagerClient*, const Request*, StatusCallback)>;

  template <typename Request, typename Response>
  class Message final : public Outgoing {
   public:
    Message(ControlEagerClient* client, Method method, const Request* request, Response* response,
            CallOptions* options, StatusCallback done, ByStock<Request> by_stock)
        : client_(client),
          method_(method),
          request_(request),
          response_(response),
          options_(options),
          done_(std::move(done)),
          by_stock_(std::move(by_stock)) {}

    void Keep() override {
      if (kept_ != nullptr) return;
      kept_ = std::make_unique<Request>(*request_);
      request_ = kept_.get();
    }

    bool Send(const std::shared_ptr<Calls>& calls, const StreamPosition& position) override {
      // The answer may come before this returns, and end the last other use of the client.
      const RefCountPtr<ControlEagerClient> held = tsl::core::GetNewRef(client_);
      CallBody body;
      const bool in_stream = method_ == Method::kStreamingEnqueue;
      if (in_stream) position.AppendTo(&body.bytes);
      if (!Pack(*request_, &body)) {
        Fail(absl::InvalidArgumentError("the request is longer than protobuf permits"));
        return true;
      }
      // What follows may run further operations on its thread. Other results are only noted.
      const bool may_block =
          method_ == Method::kRunComponentFunction || method_ == Method::kCreateContext;
      Calls::Done answered = [client = client_, id = request_->context_id(), position, in_stream,
                              may_block, response = response_, done = done_](
                                 const absl::Status& status, const CallBody& answer) mutable {
        absl::Status result = status;
        if (result.ok()) result = Unpack(answer, response);
        if (in_stream && !result.ok()) client->EndStream(id, position);
        if (may_block) {
          RunWhereItMayBlock([done = std::move(done), result] { done(result); });
        } else if (!result.ok()) {
          client->failures_.Run([done = std::move(done), result] { done(result); });
        } else {
          done(result);
        }
      };
      if (calls->Call(method_, client_->task(), body, options_, Calls::DoneRuns::kAnywhere,
                      &answered)) {
        CountCall(client_->task(), ControlWay::kChannel);
        return true;
      }
      return false;
    }

    void SendByStock() override {
      CountCall(client_->task(), ControlWay::kGrpc);
      if (method_ != Method::kStreamingEnqueue) {
        by_stock_(client_->stock(), request_, std::move(done_));
        return;
      }
      by_stock_(client_->stock(), request_,
                [client = client_, id = request_->context_id(),
                 done = std::move(done_)](const absl::Status& status) {
                  client->StockAnswered(id);
                  done(status);
                });
    }

    void Fail(const absl::Status& status) override {
      client_->failures_.Run([done = std::move(done_), status] { done(status); });
    }

   private:
    ControlEagerClient* const client_;  // `done` holds a reference
    const Method method_;
    const Request* request_;
    std::unique_ptr<Request> kept_;
    Response* const response_;
    CallOptions* const options_;
    StatusCallback done_;
    const ByStock<Request> by_stock_;
  };

  // `done`, which also keeps this client alive until then.
  StatusCallback Holding(StatusCallback done) {
    Ref();
    return [this, done = std::move(done)](const absl::Status& status) {
      done(status);
      Unref();
    };
  }

  template <typename Request, typename Response, typename Stock>
  std::unique_ptr<Outgoing> NewMessage(Method method, const Request* request, Response* response,
                                       CallOptions* options, StatusCallback done, Stock by_stock) {
    return std::make_unique<Message<Request, Response>>(
        this, method, request, response, options, Holding(std::move(done)), std::move(by_stock));
  }

  // Sends what may overtake others.
  void Dispatch(std::unique_ptr<Outgoing> request) {
    const std::shared_ptr<Calls> calls = task_->Ready();
    if (calls == nullptr || !request->Send(calls, {})) request->SendByStock();
  }

  void Stream(uint64_t id, std::unique_ptr<Outgoing> request) {
    const RefCountPtr<ControlEagerClient> held = tsl::core::GetNewRef(this);  // as in Send
    std::unique_lock<std::mutex> lock(mutex_);
    Context& context = contexts_[id];
    if (!context.is_turning) {
      // Under the lock, which keeps the order.
      const std::shared_ptr<Calls> calls = WayOf(context);
      if (calls != nullptr && context.by_stock == 0 && !context.may_be_left &&
          SendOver(calls, request.get(), &context)) {
        return;
      }
      if (calls == nullptr && !context.may_be_queued) {
        context.CountByStock();
        lock.unlock();
        request->SendByStock();
        return;
      }
    }
    request->Keep();
    context.waiting.push_back(std::move(request));
    if (std::exchange(context.is_turning, true)) return;
    lock.unlock();
    Turn(id);
  }

  // A stream stays on its channel while that is up, even if there is a better one: a channel is left when nothing is
  // under way on it. The caller holds the lock.
  std::shared_ptr<Calls> WayOf(const Context& context) {
    std::shared_ptr<Calls> present = context.channel.lock();
    return present != nullptr && present->is_leaving() && present->IsUp() ? present
                                                                          : task_->Ready();
  }

  // The caller holds the lock.
  bool SendOver(const std::shared_ptr<Calls>& calls, Outgoing* request, Context* context) {
    // What is still on its way over a lost channel belongs to the former stream, which ends with this one's begin.
    if (context->channel.lock() != calls) ++context->position.stream;
    if (!request->Send(calls, context->position)) return false;
    context->channel = calls;
    context->may_be_queued = true;
    return true;
  }

  // Sends what waits for the way to change, as soon as nothing can overtake anything.
  void Turn(uint64_t id) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Context& context = contexts_[id];
      if (context.waiting.empty()) {
        context.is_turning = false;
        return;
      }
      const std::shared_ptr<Calls> calls = WayOf(context);
      if (calls != nullptr && context.by_stock > 0) {
        context.awaits_stock = true;
        return;
      }
      if (calls != nullptr && std::exchange(context.may_be_left, false)) {
        ++context.by_stock;
        context.awaits_stock = true;
        lock.unlock();
        SyncStock(id);
        return;
      }
      if (calls != nullptr && SendOver(calls, context.waiting.front().get(), &context)) {
        context.waiting.pop_front();
        continue;
      }
      if (std::exchange(context.may_be_queued, false)) {
        const StreamPosition last = context.position;
        ++context.position.stream;
        lock.unlock();
        AskToEnd(id, last);
        return;
      }
      const std::unique_ptr<Outgoing> first = std::move(context.waiting.front());
      context.waiting.pop_front();
      context.CountByStock();
      lock.unlock();
      first->SendByStock();
      lock.lock();
    }
  }

  // Lets the service end a stream that came over a channel, and then goes on.
  void AskToEnd(uint64_t id, const StreamPosition& last) {
    std::string question;
    last.AppendTo(&question);
    Ref();
    task_->AskOverGrpc(kStreamKey, question, [this, id] {
      // Without an answer the task is gone, or does not answer gRPC's stream either.
      Turn(id);
      Unref();
    });
  }

  // TensorFlow answers a streamed request before it is executed. Waits until those that went over gRPC are. An error
  // is that of the next request, as it would have been over gRPC.
  void SyncStock(uint64_t id) {
    struct Sync {
      tensorflow::eager::EnqueueRequest request;
      tensorflow::eager::EnqueueResponse response;
    };
    auto sync = std::make_shared<Sync>();
    sync->request.set_context_id(id);
    sync->request.add_queue()->mutable_sync_remote_executor_for_stream();
    stock_->StreamingEnqueueAsync(true, nullptr, &sync->request, &sync->response,
                                  Holding([this, id, sync](const absl::Status& status) {
                                    if (!status.ok()) FailFirst(id, status);
                                    StockAnswered(id);
                                  }));
  }

  void FailFirst(uint64_t id, const absl::Status& status) {
    std::unique_ptr<Outgoing> first;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::deque<std::unique_ptr<Outgoing>>& waiting = contexts_[id].waiting;
      first = std::move(waiting.front());
      waiting.pop_front();
    }
    first->Fail(status);
  }

  void StockAnswered(uint64_t id) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      Context& context = contexts_[id];
      if (--context.by_stock > 0 || !std::exchange(context.awaits_stock, false)) return;
    }
    Turn(id);
  }

  // Waits until there is a channel or cannot be one, so that what follows finds its way.
  template <typename Request, typename Response, typename Stock>
  void Create(const Request* request, Response* response, StatusCallback done, Stock by_stock) {
    std::shared_ptr<Outgoing> message = NewMessage(Method::kCreateContext, request, response,
                                                   nullptr, std::move(done), std::move(by_stock));
    message->Keep();
    task_->Find([message](const absl::StatusOr<std::shared_ptr<Calls>>& calls) {
      if (!calls.ok() || !message->Send(*calls, {})) message->SendByStock();
    });
  }

  // After an error of a streamed request.
  void EndStream(uint64_t id, const StreamPosition& position) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    StreamPosition& now = found->second.position;
    if (now.client == position.client && now.stream == position.stream) ++now.stream;
  }

  const std::shared_ptr<RemoteTask> task_;
  const RefCountPtr<EagerClient> stock_;
  Turns failures_;
  std::mutex mutex_;
  absl::flat_hash_map<uint64_t, Context> contexts_;
};

class ControlEagerClientCache final : public tensorflow::eager::EagerClientCache {
 public:
  ControlEagerClientCache(std::function<std::shared_ptr<RemoteTask>(const std::string&)> task_of,
                          std::unique_ptr<tensorflow::eager::EagerClientCache> stock)
      : task_of_(std::move(task_of)), stock_(std::move(stock)) {}

  absl::Status GetClient(const std::string& target, RefCountPtr<EagerClient>* client) override {
    std::lock_guard<std::mutex> lock(mutex_);
    RefCountPtr<EagerClient>& known = clients_[target];
    if (known == nullptr) {
      RefCountPtr<EagerClient> stock;
      const absl::Status status = stock_->GetClient(target, &stock);
      if (!status.ok() || stock == nullptr) return status;
      std::shared_ptr<RemoteTask> task = task_of_(target);
      if (task == nullptr) {
        known = std::move(stock);
      } else {
        known.reset(new ControlEagerClient(std::move(task), std::move(stock)));
      }
    }
    known->Ref();
    client->reset(known.get());
    return absl::OkStatus();
  }

 private:
  const std::function<std::shared_ptr<RemoteTask>(const std::string&)> task_of_;
  const std::unique_ptr<tensorflow::eager::EagerClientCache> stock_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, RefCountPtr<EagerClient>> clients_;
};

}  // namespace

std::unique_ptr<tensorflow::eager::EagerClientCache> NewControlEagerClientCache(
    std::function<std::shared_ptr<RemoteTask>(const std::string&)> task_of,
    std::unique_ptr<tensorflow::eager::EagerClientCache> stock) {
  return std::make_unique<ControlEagerClientCache>(std::move(task_of), std::move(stock));
}

}  // namespace rdmatensor
