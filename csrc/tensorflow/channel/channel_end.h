// SPDX-License-Identifier: Apache-2.0
//
// The interface of what hangs on a channel: it takes its kinds of messages, and is told when the channel goes down.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_END_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_END_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/message.h"

namespace rdmatensor {

class PeerChannel;

// What this process does with a channel: it receives tensors over it, sends them, calls, or answers calls.
// All functions except OpenAhead are called on the progress thread.
class ChannelEnd {
 public:
  virtual ~ChannelEnd() = default;
  // Takes a message. False if the peer broke the protocol; no other end's messages belong here.
  virtual bool Handle(MessageKind kind, uint64_t value, const char* data, size_t size) = 0;
  // Nothing will come any more. May be called twice.
  virtual void OnDown(absl::string_view why) = 0;
  // Opens regions of the peer before its messages name them. Blocks.
  virtual absl::Status OpenAhead(const std::vector<uint64_t>& /*region_keys*/) {
    return absl::OkStatus();
  }
  // The core keeps the channel no longer: drops what keeps it.
  virtual void OnReleased() {}
};

// Makes the end that answers what `caller` calls over the channel.
using NewCallee = std::function<std::shared_ptr<ChannelEnd>(
    const std::shared_ptr<PeerChannel>& channel, const std::string& caller)>;

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_END_H_
