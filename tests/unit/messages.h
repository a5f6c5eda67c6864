// SPDX-License-Identifier: Apache-2.0
//
// What tests of the plugins' messages share.
#ifndef RDT_TESTS_UNIT_MESSAGES_H
#define RDT_TESTS_UNIT_MESSAGES_H

#include <cstdlib>
#include <cstring>
#include <string>

#include "unit.h"

// A copy of `size` bytes with nothing around it.
class Exact {
 public:
  Exact(const char *data, size_t size)
      : data_(static_cast<char *>(std::malloc(size))), size_(size) {
    EXPECT(data_ != nullptr || size == 0);
    if (size != 0) std::memcpy(data_, data, size);
  }
  Exact(const Exact &) = delete;
  Exact &operator=(const Exact &) = delete;
  ~Exact() { std::free(data_); }
  const char *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char *const data_;
  const size_t size_;
};

// What the plugin's Encode writes.
template <typename Message>
std::string Encoded(const Message &message) {
  const size_t size = EncodedSize(message);
  std::string out(size + 8, '\xa5');
  Encode(message, &out[0]);
  EXPECT(out.substr(size) == std::string(8, '\xa5'));  // no byte more than announced
  out.resize(size);
  return out;
}

#endif
