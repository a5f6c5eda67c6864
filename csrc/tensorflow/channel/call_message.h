// SPDX-License-Identifier: Apache-2.0
//
// Calls between two processes: a request and its answer, each with a few tensors. They may be longer than one
// notification. Then they travel in pieces, one message after the other.
//
// As with other messages, parsing trusts nothing: lengths are checked before use, and a message takes no more
// memory than the peer has sent. The whole has a checksum, because a wrong bit in a request could make a step wait
// for ever.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_CALL_MESSAGE_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_CALL_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "channel/message.h"

namespace rdmatensor {

// The content of kCall. The texts point into the encoded message, which must outlive it.
struct CallMessage {
  uint8_t method = 0;  // what is called: calls/methods.h
  std::vector<TensorMessage> tensors;
  absl::string_view bytes;
};
size_t EncodedSize(const CallMessage& message);
void Encode(const CallMessage& message, char* out);
bool Parse(const char* data, size_t size, CallMessage* out);

// The content of kAnswer: a status with its payloads, and the answer if it is no error.
struct AnswerMessage {
  int32_t code = 0;  // absl::StatusCode
  absl::string_view text;
  std::vector<std::pair<absl::string_view, absl::string_view>> payloads;
  std::vector<TensorMessage> tensors;
  absl::string_view bytes;
};
size_t EncodedSize(const AnswerMessage& message);
void Encode(const AnswerMessage& message, char* out);
bool Parse(const char* data, size_t size, AnswerMessage* out);

// The longest content, which is protobuf's limit too.
inline constexpr uint64_t kMaxCallBytes = INT32_MAX;

// What comes before the first piece: the size and the CRC32C of the whole.
struct PieceHeader {
  uint64_t total = 0;
  uint32_t checksum = 0;
};
inline constexpr size_t kPieceHeaderSize = sizeof(uint64_t) + sizeof(uint32_t);
// Writes the header of `size` bytes, which follow it at `out` already.
void EncodeHeader(char* out, size_t size);

// Puts the pieces of one direction of a channel together. One message is begun and completed before the next.
class Assembly {
 public:
  // Takes the first piece of message `number`, with its header. False: the peer broke the protocol, or bytes changed
  // on their way.
  bool Begin(uint64_t number, const char* data, size_t size);
  // Takes a further piece.
  bool Add(uint64_t number, const char* data, size_t size);
  bool IsWhole() const { return begun_ && content_.size() == header_.total; }
  // Takes the whole content out.
  std::string Take() {
    begun_ = false;
    return std::exchange(content_, {});
  }

 private:
  bool begun_ = false;
  uint64_t number_ = 0;
  PieceHeader header_;
  std::string content_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_CALL_MESSAGE_H_
