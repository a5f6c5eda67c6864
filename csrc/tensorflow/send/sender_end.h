// SPDX-License-Identifier: Apache-2.0
//
// The sender's end of a channel: it takes what the receiver says, and knows under which names it receives.
#ifndef RDMATENSOR_TENSORFLOW_SEND_SENDER_END_H_
#define RDMATENSOR_TENSORFLOW_SEND_SENDER_END_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/use_gate.h"
#include "channel/channel_end.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "send/accepted_offers.h"
#include "send/channel_receiver.h"

namespace rdmatensor {

// Thread-safe.
class SenderEnd final : public ChannelEnd {
 public:
  SenderEnd(const ServerContext* server, PeerChannel* channel);
  static SenderEnd* Of(const PeerChannel& channel) {
    return static_cast<SenderEnd*>(channel.sender_end());
  }

  bool Handle(MessageKind kind, uint64_t value, const char* data, size_t size) override;
  void OnDown(absl::string_view why) override;
  void OnReleased() override;

  // Planned tensors.
  AcceptedOffers& offers() { return offers_; }

  // Begins to push something down the channel, which EndPush ends. False while the receiver wants nothing, because it
  // is about to use another channel.
  bool BeginPush();
  void EndPush();
  bool paused() const { return pushes_.is_closed(); }
  // Nothing comes down it any more, and the receiver was told.
  bool has_paused();
  // The receiver has all that came down the channel that this one replaces.
  bool succeeds() const { return succeeds_.load(); }
  // This channel replaced `former` for a name.
  void AddFormer(std::shared_ptr<PeerChannel> former);

 private:
  bool HandleReady(const char* data, size_t size);
  bool HandleRpcPending(const char* data, size_t size);
  bool HandleRpcDone(const char* data, size_t size);
  std::vector<std::shared_ptr<ChannelReceiver>> Receivers();
  void Bind(const std::shared_ptr<AcceptedOffer>& accepted);
  void Pause(uint64_t number);
  void TellPaused();
  void Resume();
  void OnSwitched(uint64_t number);

  const ServerContext* const server_;
  PeerChannel* const channel_;
  AcceptedOffers offers_;
  // The requests by RPC that the receiver announced, until it announces the name that they belong to. Progress thread.
  ChannelReceiver::RpcPending rpc_pending_;
  size_t rpc_pending_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ChannelReceiver>> receivers_;
  std::vector<std::shared_ptr<PeerChannel>> former_;
  bool released_ = false;
  UseGate pushes_;  // closed while the channel is paused
  std::atomic<bool> succeeds_{false};
  std::mutex pause_mutex_;
  bool told_paused_ = false;
  uint64_t pause_number_ = 0;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_SENDER_END_H_
