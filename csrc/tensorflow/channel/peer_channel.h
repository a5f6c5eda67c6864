// SPDX-License-Identifier: Apache-2.0
//
// A channel and its ends: what the plugin does with it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/backoff.h"
#include "channel/channel.h"
#include "channel/channel_end.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Thread-safe. The receiver opens it; or the sender, if it is a client that its tasks need not reach.
class PeerChannel final : public Channel {
 public:
  // The end that this process is. A channel that a peer opened is for sending, unless the peer announces first
  // that it will send or call. Channels for calls carry no tensors of steps.
  enum class Role { kReceiver, kSender, kCaller, kCallee };
  // The ends for tensors of steps. They live as long as the channel.
  struct Ends {
    std::unique_ptr<ChannelEnd> receiver, sender;
  };
  using NewEnds = std::function<Ends(PeerChannel*)>;
  // Takes over one reference to `handle` and becomes its context. The core's handlers keep the
  // channel alive until they call ReleaseFromCore (on_released).
  static std::shared_ptr<PeerChannel> Adopt(rdt_channel* handle, const NewEnds& new_ends, Role role,
                                            bool opened_here);
  // The channel that `handle` is the context of, or nullptr.
  static PeerChannel* FromHandle(const rdt_channel* handle);
  std::shared_ptr<PeerChannel> Shared() {
    return std::static_pointer_cast<PeerChannel>(shared_from_this());
  }
  void ReleaseFromCore();

  Role role() const { return role_.load(std::memory_order_acquire); }
  bool opened_here() const { return opened_here_; }
  // Channels that begin later in this process have higher numbers.
  uint64_t number() const { return number_; }

  // Hands a message to the end that this process is. Every message is checked, because none may harm this process.
  // `new_callee` serves callers; nullptr: nobody may call. False if the peer broke the protocol. Progress thread.
  bool Handle(const NewCallee* new_callee, uint64_t immediate, const char* data, size_t size);
  // The channel is down. Progress thread.
  void OnDown(absl::string_view why);

  ChannelEnd* receiver_end() const { return ends_.receiver.get(); }
  ChannelEnd* sender_end() const { return ends_.sender.get(); }
  // Caller: sets what takes the answers, unless something does already; returns what takes them.
  std::shared_ptr<ChannelEnd> SetCallEnd(std::shared_ptr<ChannelEnd> end);
  // Either end of calls; nullptr on other channels, and once nothing can arrive any more.
  std::shared_ptr<ChannelEnd> call_end();
  // Receiver: opens regions of the peer before its messages name them. Blocks.
  absl::Status OpenAhead(const std::vector<uint64_t>& region_keys) {
    return receiver_end()->OpenAhead(region_keys);
  }

  // What opened the channel looks for a better transport not before `when`.
  void ImproveAfter(Backoff::Clock::time_point when) {
    improve_at_.store(when.time_since_epoch().count(), std::memory_order_relaxed);
  }
  // True, for one caller, when it is time for that.
  bool MayImprove() {
    int64_t at = improve_at_.load(std::memory_order_relaxed);
    return at != 0 && Backoff::Clock::now().time_since_epoch().count() >= at &&
           improve_at_.compare_exchange_strong(at, 0);
  }

 private:
  PeerChannel(rdt_channel* handle, const NewEnds& new_ends, Role role, bool opened_here);
  // Makes this process the receiver, because the peer opened the channel to send. False if the channel is used
  // otherwise already.
  bool BecomeReceiver();
  // Makes this process answer the calls of the task that the message names. False as above.
  bool BecomeCallee(const NewCallee* new_callee, const char* data, size_t size);

  std::atomic<Role> role_;
  const bool opened_here_;
  const uint64_t number_;
  bool role_is_fixed_;  // by the first message, or because it was opened here. Progress thread.
  const Ends ends_;
  std::mutex call_mutex_;
  std::shared_ptr<ChannelEnd> call_end_;
  bool released_ = false;
  std::atomic<int64_t> improve_at_{0};  // never
  std::shared_ptr<PeerChannel> held_by_core_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PEER_CHANNEL_H_
