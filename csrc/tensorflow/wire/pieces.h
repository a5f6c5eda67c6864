// SPDX-License-Identifier: Apache-2.0
//
// Sends the messages of calls, in pieces where they are longer than one notification.
#ifndef RDMATENSOR_TENSORFLOW_WIRE_PIECES_H_
#define RDMATENSOR_TENSORFLOW_WIRE_PIECES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "wire/call_message.h"
#include "wire/channel.h"
#include "wire/message.h"

namespace rdmatensor {

// Sends `message` as message `number` of the given kind, in pieces if need be. The caller makes sure that no other
// message is sent down the channel meanwhile by this function. Never blocks. An error means that nothing was
// sent; if a later piece cannot be sent, the channel is closed.
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
    return channel->Notify(PackImmediate(kind, number), kPieceHeaderSize + total, write);
  }
  std::string encoded(kPieceHeaderSize + total, '\0');
  write(&encoded[0]);
  for (size_t at = 0; at < encoded.size(); at += room) {
    const size_t size = std::min(room, encoded.size() - at);
    const absl::Status sent =
        channel->Notify(PackImmediate(at == 0 ? kind : MessageKind::kMore, number), size,
                        [&](char* out) { std::memcpy(out, &encoded[at], size); });
    if (sent.ok()) continue;
    if (at == 0) return sent;
    channel->Close();
    break;
  }
  return absl::OkStatus();
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_WIRE_PIECES_H_
