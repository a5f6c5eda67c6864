// SPDX-License-Identifier: Apache-2.0
//
// The sender's view of a receiver's name, as far as its channel uses it.
#ifndef RDMATENSOR_TENSORFLOW_SEND_CHANNEL_RECEIVER_H_
#define RDMATENSOR_TENSORFLOW_SEND_CHANNEL_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "channel/peer_channel.h"
#include "send/accepted_offer.h"

namespace rdmatensor {

// All functions are called on the progress thread.
class ChannelReceiver : public PushGate {
 public:
  explicit ChannelReceiver(std::string task) : task_(std::move(task)) {}
  virtual ~ChannelReceiver() = default;

  const std::string& task() const { return task_; }

  // Requests that a receiver which used RPC before has under way, by step and key.
  using RpcPending = std::vector<std::pair<int64_t, std::string>>;
  // The process behind `channel` has this name in `session`. Pending tensors are pushed in the
  // background, except for `asked`, which the process still expects by RPC.
  //
  // A tensor's key names its receiver, and nothing else identifies it. While two processes have one name, as
  // when two clusters number their tasks alike, both are told to fetch, and nothing is pushed to either.
  // False if the name is used in more sessions than any real process takes part in.
  virtual bool Attach(std::shared_ptr<PeerChannel> channel, const std::string& session,
                      const RpcPending& asked) = 0;
  virtual void OnDown(Channel* channel) = 0;
  // A request by RPC that the receiver announced on `channel` has ended.
  virtual void OnRpcDone(PeerChannel* channel, int64_t step_id, absl::string_view key) = 0;
  // Tensors may go down `channel` again.
  virtual void OnResumed(const std::shared_ptr<PeerChannel>& channel) = 0;

 private:
  const std::string task_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_CHANNEL_RECEIVER_H_
