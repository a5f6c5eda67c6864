// SPDX-License-Identifier: Apache-2.0
//
// Sends the messages of calls, in pieces where they are longer than one notification.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PIECES_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PIECES_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "channel/call_message.h"
#include "channel/channel.h"
#include "channel/message.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Does to the next message of a call what the setting FAULTS wants: waits, or ends the channel. True: the message
// is to be sent twice.
inline bool DisturbCall(Channel* channel) {
  const auto lasts = [channel](const char* kind) {
    return rdt_fault_occasion(kind, channel->transport().c_str(), channel->peer_name().c_str());
  };
  if (const int64_t us = lasts("call_delay"); us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  if (lasts("call_break") >= 0) channel->Close();
  return lasts("call_duplicate") >= 0;
}

// Posts one message of a call, which `fill(char*)` writes. An error means that nothing was posted.
template <typename Fill>
absl::Status NotifyOfCall(Channel* channel, MessageKind kind, uint64_t number, size_t size,
                          const Fill& fill) {
  const bool twice = DisturbCall(channel);
  const absl::Status sent = channel->Notify(PackImmediate(kind, number), size, fill);
  if (twice && sent.ok()) (void)channel->Notify(PackImmediate(kind, number), size, fill);
  return sent;
}

// Sends `message` as message `number` of the given kind, in pieces if need be. The caller makes sure that no other
// message is sent down the channel meanwhile by this function. Never blocks, unless FAULTS delays it. An error means
// that nothing was sent; if a later piece cannot be sent, the channel is closed.
template <typename Message>
absl::Status SendInPieces(Channel* channel, MessageKind kind, uint64_t number,
                          const Message& message) {
  const size_t total = EncodedSize(message);
  if (total > kMaxCallBytes) {
    return absl::InvalidArgumentError("rdmatensor: a call of more than 2 GiB without its tensors");
  }
  const auto write = [&](char* out) {
    Encode(message, out + kPieceHeaderSize);
    EncodeHeader(out, total);
  };
  const size_t room = channel->max_notify();
  if (kPieceHeaderSize + total <= room) {
    return NotifyOfCall(channel, kind, number, kPieceHeaderSize + total, write);
  }
  std::string encoded(kPieceHeaderSize + total, '\0');
  write(&encoded[0]);
  for (size_t at = 0; at < encoded.size(); at += room) {
    const size_t size = std::min(room, encoded.size() - at);
    const absl::Status sent =
        NotifyOfCall(channel, at == 0 ? kind : MessageKind::kMore, number, size,
                     [&](char* out) { std::memcpy(out, &encoded[at], size); });
    if (sent.ok()) continue;
    if (at == 0) return sent;
    channel->Close();
    break;
  }
  return absl::OkStatus();
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PIECES_H_
