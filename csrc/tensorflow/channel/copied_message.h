// SPDX-License-Identifier: Apache-2.0
//
// Parsing of messages whose text is read more than once, although the sender may still write to it.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_COPIED_MESSAGE_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_COPIED_MESSAGE_H_

#include <string>

#include "channel/message.h"

namespace rdmatensor {

inline absl::string_view* TextOf(TensorMessage* message) { return &message->key; }
inline absl::string_view* TextOf(StepMessage* message) { return &message->text; }

// Does what Parse does, and copies the message's text to `text`. `out` then points to the copy.
template <typename Message>
bool ParseCopied(const char* data, size_t size, std::string* text, Message* out) {
  if (!Parse(data, size, out)) return false;
  text->assign(TextOf(out)->data(), TextOf(out)->size());
  *TextOf(out) = *text;
  return true;
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_COPIED_MESSAGE_H_
