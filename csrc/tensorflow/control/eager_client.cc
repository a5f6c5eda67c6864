// SPDX-License-Identifier: Apache-2.0
#include "control/eager_client.h"

#include <deque>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "control/calls.h"
#include "control/eager_service.h"
#include "control/may_block.h"
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

// The service has no such context: its task was restarted, or it never was there.
bool IsUnknownContext(const absl::Status& status) {
  return absl::IsAborted(status) &&
         absl::StrContains(status.message(), "Unable to find a context_id");
}

// A request on its way to where its context lives.
class Outgoing {
 public:
  explicit Outgoing(uint64_t context) : context_(context) {}
  virtual ~Outgoing() = default;
  uint64_t context() const { return context_; }
  // Copies what the caller may destroy.
  virtual void Keep() = 0;
  // False if the channel is down: it was not sent.
  virtual bool Send(const std::shared_ptr<Calls>& calls, const StreamPosition& position) = 0;
  virtual void SendByStock() = 0;
  virtual void Fail(const absl::Status& status) = 0;

 private:
  const uint64_t context_;
};

// A context lives in one of two services of its task: the plugin's, if it was created over a channel, or TensorFlow's
// own. Whoever created it knows which one. Other clients ask once. While that is not known, requests wait in order.
class ControlEagerClient final : public EagerClient {
 public:
  ControlEagerClient(std::shared_ptr<RemoteTask> task, RefCountPtr<EagerClient> stock)
      : task_(std::move(task)), stock_(std::move(stock)) {}

  EagerClient* stock() const { return stock_.get(); }
  const std::string& task() const { return task_->task(); }

#define RDMATENSOR_EAGER_METHOD(name)                                                           \
  void name##Async(const tensorflow::eager::name##Request* request,                             \
                   tensorflow::eager::name##Response* response, StatusCallback done) override { \
    Dispatch(Method::k##name, request, response, nullptr, std::move(done),                      \
             [response](EagerClient* stock, const auto* kept, StatusCallback answered) {        \
               stock->name##Async(kept, response, std::move(answered));                         \
             });                                                                                \
  }
  RDMATENSOR_EAGER_METHOD(UpdateContext)
  RDMATENSOR_EAGER_METHOD(WaitQueueDone)
  RDMATENSOR_EAGER_METHOD(KeepAlive)
#undef RDMATENSOR_EAGER_METHOD

  void EnqueueAsync(CallOptions* options, const tensorflow::eager::EnqueueRequest* request,
                    tensorflow::eager::EnqueueResponse* response, StatusCallback done) override {
    Dispatch(Method::kEnqueue, request, response, options, std::move(done),
             [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
               stock->EnqueueAsync(options, kept, response, std::move(answered));
             });
  }

  void RunComponentFunctionAsync(CallOptions* options,
                                 const tensorflow::eager::RunComponentFunctionRequest* request,
                                 tensorflow::eager::RunComponentFunctionResponse* response,
                                 StatusCallback done) override {
    Dispatch(Method::kRunComponentFunction, request, response, options, std::move(done),
             [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
               stock->RunComponentFunctionAsync(options, kept, response, std::move(answered));
             });
  }

  void StreamingEnqueueAsync(bool in_stream, CallOptions* options,
                             const tensorflow::eager::EnqueueRequest* request,
                             tensorflow::eager::EnqueueResponse* response,
                             StatusCallback done) override {
    if (in_stream && allow_multiple_pending_requests()) {
      Dispatch(Method::kStreamingEnqueue, request, response, nullptr, std::move(done),
               [response, options](EagerClient* stock, const auto* kept, StatusCallback answered) {
                 stock->StreamingEnqueueAsync(true, options, kept, response, std::move(answered));
               });
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
    auto closed = [this, id = request->context_id(),
                   done = std::move(done)](const absl::Status& status) {
      Forget(id);
      done(status);
    };
    Dispatch(Method::kCloseContext, request, response, nullptr, std::move(closed),
             [response](EagerClient* stock, const auto* kept, StatusCallback answered) {
               stock->CloseContextAsync(kept, response, std::move(answered));
             });
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
  enum class Home { kUnknown, kChannel, kStock };
  struct Context {
    Home home = Home::kUnknown;
    bool is_sought = false;  // requests wait
    std::deque<std::unique_ptr<Outgoing>> waiting;
    StreamPosition position{tensorflow::random::New64(), 1};
  };

  template <typename Request>
  using ByStock = std::function<void(EagerClient*, const Request*, StatusCallback)>;

  template <typename Request, typename Response>
  class Message final : public Outgoing {
   public:
    Message(ControlEagerClient* client, Method method, const Request* request, Response* response,
            CallOptions* options, StatusCallback done, ByStock<Request> by_stock)
        : Outgoing(request->context_id()),
          client_(client),
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
      CallBody body;
      const bool in_stream = method_ == Method::kStreamingEnqueue;
      if (in_stream) position.AppendTo(&body.bytes);
      if (!request_->AppendToString(&body.bytes)) {
        Fail(absl::InvalidArgumentError("the request is longer than protobuf permits"));
        return true;
      }
      // What follows a component function may run further operations on its thread. Other results are only noted.
      const bool may_block = method_ == Method::kRunComponentFunction;
      Calls::Done answered = [client = client_, id = context(), position, in_stream, may_block,
                              response = response_, done = done_](const absl::Status& status,
                                                                  const CallBody& answer) mutable {
        absl::Status result = status;
        if (result.ok()) result = Unpack(answer, response);
        if (!result.ok()) client->OnError(id, result, in_stream ? &position : nullptr);
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
      by_stock_(
          client_->stock(), request_,
          [client = client_, id = context(), done = std::move(done_)](const absl::Status& status) {
            if (!status.ok()) client->OnError(id, status, nullptr);
            done(status);
          });
    }

    void Fail(const absl::Status& status) override {
      client_->failures_.Run(
          [done = std::move(done_), told = client_->AsGrpcSays(method_, status)] { done(told); });
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
  void Dispatch(Method method, const Request* request, Response* response, CallOptions* options,
                StatusCallback done, Stock by_stock) {
    Dispatch(std::make_unique<Message<Request, Response>>(
        this, method, request, response, options, Holding(std::move(done)), std::move(by_stock)));
  }

  void Dispatch(std::unique_ptr<Outgoing> request) {
    const uint64_t id = request->context();
    std::unique_lock<std::mutex> lock(mutex_);
    Context& context = contexts_[id];
    if (!context.is_sought && context.home == Home::kStock) {
      lock.unlock();
      request->SendByStock();
      return;
    }
    if (!context.is_sought && context.home == Home::kChannel) {
      // Under the lock, which keeps the order of a stream.
      const std::shared_ptr<Calls> calls = task_->Ready();
      if (calls != nullptr && request->Send(calls, context.position)) return;
    }
    request->Keep();
    context.waiting.push_back(std::move(request));
    if (std::exchange(context.is_sought, true)) return;
    const Home home = context.home;
    lock.unlock();
    Seek(id, home);
  }

  // Finds the way to a context, and sends what waits for it.
  void Seek(uint64_t id, Home home) {
    Ref();
    task_->Find([this, id, home](const absl::StatusOr<std::shared_ptr<Calls>>& calls) {
      if (home == Home::kChannel) {
        // Without a channel this fails as calls of a task that is gone fail.
        Found(id, home, calls.ok() ? *calls : nullptr, calls.status());
      } else if (!calls.ok()) {
        Found(id, Home::kStock, nullptr, absl::OkStatus());
      } else {
        AskForContext(id, *calls);
        return;
      }
      Unref();
    });
  }

  // Whether the plugin's service has the context.
  void AskForContext(uint64_t id, const std::shared_ptr<Calls>& calls) {
    tensorflow::eager::KeepAliveRequest request;
    request.set_context_id(id);
    CallBody body;
    Calls::Done answered = [this, id, calls](const absl::Status& status, const CallBody&) {
      RunWhereItMayBlock([this, id, calls, status] {
        if (status.ok()) {
          Found(id, Home::kChannel, calls, status);
        } else if (absl::IsUnavailable(status)) {
          Found(id, Home::kUnknown, nullptr, status);
        } else {
          Found(id, Home::kStock, nullptr, absl::OkStatus());
        }
        Unref();
      });
    };
    if (!Pack(request, &body) || !calls->Call(Method::kKeepAlive, task(), body, nullptr,
                                              Calls::DoneRuns::kAnywhere, &answered)) {
      answered(absl::UnavailableError("the channel was lost"), {});
    }
  }

  // Sends what waits, or lets it fail.
  void Found(uint64_t id, Home home, const std::shared_ptr<Calls>& calls, absl::Status status) {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      Context& context = contexts_[id];
      if (context.waiting.empty()) {
        context.home = home;
        context.is_sought = false;
        return;
      }
      const std::unique_ptr<Outgoing> first = std::move(context.waiting.front());
      context.waiting.pop_front();
      if (status.ok() && home == Home::kChannel) {
        if (first->Send(calls, context.position)) continue;
        status = absl::UnavailableError("the channel was lost");
      }
      lock.unlock();
      if (status.ok()) {
        first->SendByStock();
      } else {
        first->Fail(status);
      }
    }
  }

  // Creates the context in the plugin's service if there is a channel, else in TensorFlow's.
  template <typename Request, typename Response, typename Stock>
  void Create(const Request* request, Response* response, StatusCallback done, Stock by_stock) {
    const uint64_t id = request->context_id();
    auto created = [this, id, done = Holding(std::move(done))](
                       Home home, const std::shared_ptr<Calls>& calls, const absl::Status& status) {
      Found(id, status.ok() ? home : Home::kUnknown, calls, status);
      done(status);
    };
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // What waits for a former context of this number goes to the new one.
      Context& context = contexts_[id];
      context.home = Home::kUnknown;
      context.is_sought = true;
      context.position = {tensorflow::random::New64(), 1};
    }
    auto kept = std::make_shared<const Request>(*request);
    task_->Find([this, kept, response, created,
                 by_stock](const absl::StatusOr<std::shared_ptr<Calls>>& calls) {
      if (calls.ok()) {
        CallBody body;
        Calls::Done answered = [response, created, calls = *calls](const absl::Status& status,
                                                                   const CallBody& answer) {
          const absl::Status result = status.ok() ? Unpack(answer, response) : status;
          RunWhereItMayBlock([created, calls, result] { created(Home::kChannel, calls, result); });
        };
        if (Pack(*kept, &body) && (*calls)->Call(Method::kCreateContext, task(), body, nullptr,
                                                 Calls::DoneRuns::kAnywhere, &answered)) {
          CountCall(task(), ControlWay::kChannel);
          return;
        }
      }
      CountCall(task(), ControlWay::kGrpc);
      by_stock(stock(), kept.get(), [kept, created](const absl::Status& status) {
        created(Home::kStock, nullptr, status);
      });
    });
  }

  // After an error of a request to a context. `position`: its place in a stream, which has ended.
  void OnError(uint64_t id, const absl::Status& status, const StreamPosition* position) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return;
    Context& context = found->second;
    if (position != nullptr && context.position.client == position->client &&
        context.position.stream == position->stream) {
      ++context.position.stream;
    }
    if (IsUnknownContext(status)) context.home = Home::kUnknown;
  }

  void Forget(uint64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = contexts_.find(id);
    if (found != contexts_.end() && !found->second.is_sought) contexts_.erase(found);
  }

  absl::Status AsGrpcSays(Method method, const absl::Status& status) const {
    static constexpr char kWords[] = "GRPC error information from remote target";
    if (absl::StrContains(status.message(), kWords)) return status;
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "\nAdditional ", kWords, " ", task(),
                                     " while calling ", MethodName(method), ":"));
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
