// SPDX-License-Identifier: Apache-2.0
//
// The receiver's view of a sender's names, as far as their channel uses it.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_SENDER_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_SENDER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/message.h"
#include "channel/peer_channel.h"
#include "channel/peers.h"
#include "graph/planned_edge.h"

namespace rdmatensor {

// Called on the progress thread unless stated otherwise.
class ChannelSender {
 public:
  explicit ChannelSender(const PeerNames& names)
      : session_(names.session), receiver_(names.receiver), task_(names.sender) {}
  virtual ~ChannelSender() = default;

  const std::string& session() const { return session_; }
  // The session's name for this process.
  const std::string& receiver() const { return receiver_; }
  // The session's name for the sender.
  const std::string& task() const { return task_; }

  // The peer opened `channel` to send under these names. Blocks.
  virtual void OnOpened(const std::shared_ptr<PeerChannel>& channel,
                        const AddressAnswer& answer) = 0;
  // Nothing more will come for this step. From any thread.
  virtual void OnStepAbort(int64_t step_id, const absl::Status& status) = 0;
  // The peer pushed the tensor of this key down a channel that was lost. It may have arrived.
  virtual void OnLost(int64_t step_id, const KeyId& key) = 0;
  virtual void OnDown(Channel* channel, absl::string_view why) = 0;
  // Another process has this one's name at the peer, so nothing will be pushed.
  virtual void OnContested(Channel* channel) = 0;
  // The memory behind `channel` is out of reach for this process: once the caller has closed it, the
  // peer is left to RPC for a while, unless the policy forbids that. From any thread.
  virtual void GiveUp(Channel* channel, const std::string& why) = 0;
  // Everything that came over `from` is here, and nothing more will come: takes tensors from `to`. False if it did not
  // use `from`. Not on the progress thread.
  virtual bool OnMoved(const std::shared_ptr<PeerChannel>& from,
                       const std::shared_ptr<PeerChannel>& to) = 0;

 private:
  const std::string session_, receiver_, task_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_CHANNEL_SENDER_H_
