// SPDX-License-Identifier: Apache-2.0
//
// The callee's end of a channel for calls, and the table of what can be called.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_CALLEE_H_
#define RDMATENSOR_TENSORFLOW_CALLS_CALLEE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "calls/call_body.h"
#include "calls/calls.h"
#include "calls/methods.h"
#include "channel/call_message.h"
#include "channel/channel_end.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "xla/tsl/distributed_runtime/call_options.h"

namespace rdmatensor {

class Callee;

// A request that came over a channel. Whoever holds it last without having answered answers with an error.
class ArrivedCall {
 public:
  // `tensors` point into `content`.
  ArrivedCall(std::shared_ptr<Callee> callee, uint64_t number, Method method,
              std::shared_ptr<const std::string> content, std::vector<TensorMessage> tensors)
      : callee_(std::move(callee)),
        number_(number),
        method_(method),
        content_(std::move(content)),
        described_(std::move(tensors)) {}
  ~ArrivedCall();
  ArrivedCall(const ArrivedCall&) = delete;
  ArrivedCall& operator=(const ArrivedCall&) = delete;

  // The name of the server that calls, by its own word: "/job:worker/replica:0/task:0".
  const std::string& caller() const;
  // What lies beside it has to be taken first.
  const CallBody& request() const { return request_; }
  CallBody* mutable_request() { return &request_; }
  // Takes what lies beside the request. May block.
  absl::Status TakeTensors();
  // They are cancelled when the caller cancels its call or is gone.
  tsl::CallOptions* options() { return &options_; }
  bool cancelled() const { return cancelled_.load(); }
  // Sends the answer. Only the first one counts. From any thread.
  void Answer(const absl::Status& status, const CallBody& answer);

 private:
  friend class Callee;
  const std::shared_ptr<Callee> callee_;
  const uint64_t number_;
  const Method method_;
  const std::shared_ptr<const std::string> content_;
  std::vector<TensorMessage> described_;  // what has not been taken
  CallBody request_;
  tsl::CallOptions options_;
  std::atomic<bool> cancelled_{false}, answered_{false};
};

// What can be called at this server. Complete before the first channel is accepted; thread-safe from then on.
class CallTable {
 public:
  using Handler = std::function<void(std::shared_ptr<ArrivedCall>)>;
  // kAny: calls may overtake each other, as each is handled on a thread of the pool. kAtOnce: on the progress thread,
  // in the order in which they were sent.
  enum class Order { kAny, kAtOnce };

  // A handler may block, unless it is called at once. Then what lies beside the call has yet to be taken.
  void Serve(Method method, Order order, Handler handler) {
    entries_[static_cast<size_t>(method)] = {order, std::move(handler)};
  }
  struct Entry {
    Order order = Order::kAny;
    Handler handler;
  };
  // nullptr: nothing is served by that number.
  const Entry* Find(uint8_t method) const {
    return method < kMethodCount && entries_[method].handler ? &entries_[method] : nullptr;
  }

 private:
  std::array<Entry, kMethodCount> entries_;
};

// Thread-safe. Made by std::make_shared.
class Callee final : public ChannelEnd, public std::enable_shared_from_this<Callee> {
 public:
  // `table` must outlive it.
  Callee(const ServerContext* server, const CallTable* table, Schedule schedule,
         std::shared_ptr<PeerChannel> channel, std::string caller)
      : server_(server),
        table_(table),
        schedule_(std::move(schedule)),
        channel_(std::move(channel)),
        caller_(std::move(caller)) {}

  bool Handle(MessageKind kind, uint64_t number, const char* data, size_t size) override;
  void OnDown(absl::string_view why) override;

 private:
  friend class ArrivedCall;
  bool OnRequest();
  // Takes the tensors of the request, and hands it to its handler. May block.
  static void Run(const std::shared_ptr<ArrivedCall>& call, const CallTable::Handler& handler);
  void Send(uint64_t number, const absl::Status& status, const CallBody& answer);
  void Forget(uint64_t number);

  const ServerContext* const server_;
  const CallTable* const table_;
  const Schedule schedule_;
  const std::shared_ptr<PeerChannel> channel_;
  const std::string caller_;

  std::mutex sending_;  // messages go one after the other

  std::mutex mutex_;
  bool down_ = false;
  absl::flat_hash_map<uint64_t, std::weak_ptr<ArrivedCall>> running_;

  // Progress thread.
  Assembly assembly_;
  uint64_t last_ = 0;  // the number of the newest call
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_CALLEE_H_
