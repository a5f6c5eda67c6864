// SPDX-License-Identifier: Apache-2.0
//
// The receiver's half of the replacement of a channel by one with a better transport, while steps go on.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_MOVE_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_MOVE_H_

#include <cstdint>
#include <memory>
#include <mutex>

#include "channel/opened_channels.h"
#include "channel/peer_channel.h"
#include "channel/server_context.h"
#include "receive/receiver_end.h"

namespace rdmatensor {

// Thread-safe.
//
// 1. The receiver asks the sender to pause the old channel. The sender keeps what it has to push from then on,
//    withdraws from the places offered on the old channel, and says when nothing is being pushed any more.
// 2. When the receiver has all that came, it uses the new channel for all names: it offers places there, and says for
//    each name that it is ready. The sender pushes what it kept. So each tensor goes down one channel, in order.
// 3. The sender's last message on the old channel says that it knows this. The receiver closes the channel.
//
// If the new channel ends before the second step, the old one is resumed.
class ChannelMove final : public Replacement, public std::enable_shared_from_this<ChannelMove> {
 public:
  // Looks for a better transport than that of `from`, which `opened` opened, on a thread that may block, and moves if
  // there is one.
  static void Try(const ServerContext* server, OpenedChannels* opened,
                  std::shared_ptr<PeerChannel> from);

  void OnPaused(uint64_t number) override;
  void Advance() override;
  void OnSwitched() override;
  void OnDown(const PeerChannel* channel) override;

 private:
  enum class State { kPausing, kMoving, kOver };
  ChannelMove(const ServerContext* server, OpenedChannels* opened,
              std::shared_ptr<PeerChannel> from, std::shared_ptr<PeerChannel> to);
  void Begin();
  // Uses the new channel. Blocks while memory is registered.
  void Move();
  void Resume();
  // Leaves the channels alone from now on.
  void Forget();

  const ServerContext* const server_;
  OpenedChannels* const opened_;
  const std::shared_ptr<PeerChannel> from_, to_;
  const uint64_t number_;  // tells attempts apart
  std::mutex mutex_;
  State state_ = State::kPausing;
  bool paused_ = false;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_MOVE_H_
