// SPDX-License-Identifier: Apache-2.0
//
// One end of the calls that a channel carries, as far as the channel knows it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_CALL_END_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_CALL_END_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "channel/message.h"

namespace rdmatensor {

class PeerChannel;

// All functions are called on the progress thread.
class CallEnd {
 public:
  virtual ~CallEnd() = default;
  // A message of kind kCall, kAnswer, kMore, kCancel or kLeft. False if the peer broke the protocol.
  virtual bool Handle(MessageKind kind, uint64_t number, const char* data, size_t size) = 0;
  // Nothing will come any more. May be called twice.
  virtual void OnDown(absl::string_view why) = 0;
};

// Makes the end that answers what `caller` calls over the channel.
using NewCallee = std::function<std::shared_ptr<CallEnd>(
    const std::shared_ptr<PeerChannel>& channel, const std::string& caller)>;

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_CALL_END_H_
