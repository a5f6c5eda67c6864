// SPDX-License-Identifier: Apache-2.0
//
// The caller's end of a channel for calls: it sends requests, and gives each caller the answer, or the error that
// ends its wait.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_CALLS_H_
#define RDMATENSOR_TENSORFLOW_CALLS_CALLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "calls/call_body.h"
#include "calls/deadlines.h"
#include "calls/methods.h"
#include "channel/call_message.h"
#include "channel/channel_end.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "xla/tsl/distributed_runtime/call_options.h"

namespace rdmatensor {

// Runs a closure that may block, on a pool of TensorFlow.
using Schedule = std::function<void(std::function<void()>)>;

// Thread-safe. Made by std::make_shared.
class Calls final : public ChannelEnd, public std::enable_shared_from_this<Calls> {
 public:
  // Called exactly once. The answer is empty after an error.
  using Done = std::function<void(const absl::Status&, CallBody answer)>;
  // The thread on which Done runs: any one, the progress thread too, if it never blocks.
  enum class DoneRuns { kAnywhere, kWhereItMayBlock };

  Calls(const ServerContext* server, std::shared_ptr<PeerChannel> channel, Schedule schedule)
      : server_(server), channel_(std::move(channel)), schedule_(std::move(schedule)) {}

  // Sends a request to the peer, which the caller knows as `task`. Never blocks, except to copy tensors. False if the
  // channel is down: nothing was sent, and *done stays as it is, so the request may go another way. What was sent
  // once must go no other way, because the peer may have executed it. True: *done was moved out.
  //
  // Ends with the peer's answer, or before it: with Cancelled when `options` are cancelled, with DeadlineExceeded
  // after their time-out, and with Unavailable when the channel is lost. As over gRPC, errors name the task, and a
  // peer that lives may take any time. `options` may be nullptr, and must live until `done` is called.
  bool Call(Method method, const std::string& task, const CallBody& request,
            tsl::CallOptions* options, DoneRuns runs, Done* done);

  // Sends a request that is not answered. It has no tensors. False if nothing was sent.
  bool Tell(Method method, const CallBody& request);

  // Closes the channel as soon as no call is under way. Calls that begin after that are refused, as on a channel that
  // is down.
  void Leave();
  bool is_leaving() const { return leaving_.load(std::memory_order_relaxed); }
  const std::shared_ptr<PeerChannel>& channel() const { return channel_; }

  bool IsUp() const { return !down_.load(std::memory_order_acquire) && !channel_->refused; }
  const std::string& transport() const { return channel_->transport(); }

  bool Handle(MessageKind kind, uint64_t number, const char* data, size_t size) override;
  void OnDown(absl::string_view why) override;

 private:
  struct Pending {
    Method method;
    std::string task;
    tsl::CallOptions* options;
    DoneRuns runs;
    Done done;
    std::optional<Deadlines::Id> deadline = {};
    // While the request is being sent only an answer ends the call; what else would end it is noted here.
    bool is_sending = true;
    absl::Status early = {};
  };
  // The call that was answered; nothing if it has ended before.
  std::optional<Pending> Take(uint64_t number);
  // The caller holds `sending_`. An error means that nothing was sent.
  absl::Status Send(uint64_t number, const CallMessage& message);
  // Tells the peer that nobody waits any more. The caller holds `sending_`.
  void SendCancel(uint64_t number);
  // Ends a call that was taken with `early`, on a thread that may block.
  static void FailSoon(Pending call);
  // Ends the call soon, if it is pending then, and tells the peer. From any thread.
  void EndSoon(uint64_t number, const absl::Status& status);
  bool OnAnswer();
  // An answer that was counted in finishing_ has been taken.
  void OnFinished();
  void LeaveIfIdle();
  static void Finish(const Pending& call, const absl::Status& status, CallBody answer);

  const ServerContext* const server_;
  const std::shared_ptr<PeerChannel> channel_;
  const Schedule schedule_;

  std::mutex sending_;  // messages go one after the other
  bool introduced_ = false;

  std::mutex mutex_;
  std::atomic<bool> down_{false};  // written under the lock
  std::atomic<bool> leaving_{false};
  // Answers that are being taken. An answer is counted before its call is no longer pending.
  std::atomic<size_t> finishing_{0};
  uint64_t last_ = 0;  // number of the newest call
  absl::flat_hash_map<uint64_t, Pending> pending_;
  // Ended before their answers, which come nevertheless, once.
  absl::flat_hash_set<uint64_t> unawaited_;

  // Progress thread.
  Assembly assembly_;
  uint64_t answered_ = 0;  // the call whose answer is being assembled
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_CALLS_H_
