// SPDX-License-Identifier: Apache-2.0
#ifndef RDMATENSOR_TENSORFLOW_BASE_JSON_H_
#define RDMATENSOR_TENSORFLOW_BASE_JSON_H_

#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// `text` as a JSON string.
inline std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_JSON_H_
