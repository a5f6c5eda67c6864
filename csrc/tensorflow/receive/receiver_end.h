// SPDX-License-Identifier: Apache-2.0
//
// The receiver's end of a channel: it takes what the sender says, and knows under which names the tensors come.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVER_END_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVER_END_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/channel_end.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "receive/channel_sender.h"
#include "receive/offered_places.h"
#include "receive/receive_events.h"
#include "receive/reception.h"

namespace rdmatensor {

// The replacement of a channel by another one, as far as the channels know it. See channel_move.h.
class Replacement {
 public:
  virtual ~Replacement() = default;
  // The sender has paused. Progress thread.
  virtual void OnPaused(uint64_t number) = 0;
  // Something that came over the old channel may have been the last.
  virtual void Advance() = 0;
  // The sender has left the old channel. Progress thread.
  virtual void OnSwitched() = 0;
  // One of the channels ended. Progress thread.
  virtual void OnDown(const PeerChannel* channel) = 0;
};

// Thread-safe.
class ReceiverEnd final : public ChannelEnd, private ReceiveEvents {
 public:
  ReceiverEnd(const ServerContext* server, MailboxTable* mailboxes, PeerChannel* channel);
  static ReceiverEnd* Of(const PeerChannel& channel) {
    return static_cast<ReceiverEnd*>(channel.receiver_end());
  }

  bool Handle(MessageKind kind, uint64_t value, const char* data, size_t size) override;
  void OnDown(absl::string_view why) override;
  absl::Status OpenAhead(const std::vector<uint64_t>& region_keys) override;
  void OnReleased() override;

  // Tensors outside the plan, and those of calls.
  Reception& reception() { return reception_; }
  // Planned tensors. The shared pointer keeps the channel alive.
  OfferedPlaces& places() { return places_; }
  std::shared_ptr<OfferedPlaces> SharedPlaces() { return {channel_->Shared(), &places_}; }

  // The names under which the peer's tensors come. If another channel has replaced this one, nothing is added, and
  // that is returned.
  std::shared_ptr<PeerChannel> Add(std::shared_ptr<ChannelSender> sender);
  // True if that was the last one.
  bool Remove(const ChannelSender* sender);
  std::vector<std::shared_ptr<ChannelSender>> Senders();
  // Held while one name is announced, so that its messages do not mix with those of another one.
  std::mutex announcing;

  // The replacement of a channel, which both channels know until it is over.
  std::shared_ptr<Replacement> move();
  void SetMove(std::shared_ptr<Replacement> move);
  // Sets what replaces this channel for all names, and returns those that use it.
  std::vector<std::shared_ptr<ChannelSender>> LeaveFor(std::shared_ptr<PeerChannel> next);
  std::shared_ptr<PeerChannel> successor();

 private:
  bool HandleAbort(const char* data, size_t size);
  bool HandleLost(const char* data, size_t size);
  bool HandleContested(const char* data, size_t size);
  bool HandleSource(const char* data, size_t size);
  // Something that came over the channel may have been the last for which its replacement waits.
  void AdvanceMove();
  void OnStepFailed(int64_t step_id, const absl::Status& status) override;
  void OnFetched() override { AdvanceMove(); }
  void OnUnreachable(const std::string& why) override;

  const ServerContext* const server_;
  PeerChannel* const channel_;
  // Pairs of names that the peer, which opened the channel to send, announced. Progress thread.
  absl::flat_hash_set<std::pair<std::string, std::string>> announced_names_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ChannelSender>> senders_;
  std::shared_ptr<Replacement> move_;
  std::shared_ptr<PeerChannel> successor_;
  bool released_ = false;
  std::atomic<bool> moves_{false};  // move_ is set
  Reception reception_;
  OfferedPlaces places_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_RECEIVER_END_H_
