// SPDX-License-Identifier: Apache-2.0
//
// Messages whose text is looked at more than once, from memory that the sender still writes to.
#ifndef RDMATENSOR_TENSORFLOW_WIRE_COPIED_MESSAGE_H_
#define RDMATENSOR_TENSORFLOW_WIRE_COPIED_MESSAGE_H_

#include <string>

#include "wire/message.h"

namespace rdmatensor {

inline absl::string_view* TextOf(TensorMessage* message) { return &message->key; }
inline absl::string_view* TextOf(StepMessage* message) { return &message->text; }

// As Parse, with the message's text copied to `text`, to which `out` points then.
template <typename Message>
bool ParseCopied(const char* data, size_t size, std::string* text, Message* out) {
  if (!Parse(data, size, out)) return false;
  text->assign(TextOf(out)->data(), TextOf(out)->size());
  *TextOf(out) = *text;
  return true;
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_WIRE_COPIED_MESSAGE_H_
