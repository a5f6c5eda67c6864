// SPDX-License-Identifier: Apache-2.0
//
// How messages are put into bytes and taken out again.
#ifndef RDMATENSOR_TENSORFLOW_BASE_BYTE_STREAM_H_
#define RDMATENSOR_TENSORFLOW_BASE_BYTE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace rdmatensor {

// The caller provides enough room.
class Writer {
 public:
  explicit Writer(char* out) : out_(out) {}
  template <typename T>
  void Put(T value) {
    static_assert(std::is_integral<T>::value, "integers only");
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
  }
  void PutBytes(const char* data, size_t size) {
    if (size != 0) std::memcpy(out_, data, size);
    out_ += size;
  }

 private:
  char* out_;
};

// Every Get is false, and changes nothing, when the bytes are used up.
class Reader {
 public:
  Reader(const char* data, size_t size) : data_(data), left_(size) {}
  template <typename T>
  bool Get(T* value) {
    if (left_ < sizeof *value) return false;
    std::memcpy(value, data_, sizeof *value);
    Skip(sizeof *value);
    return true;
  }
  bool GetText(uint64_t size, absl::string_view* text) {
    if (left_ < size) return false;
    *text = absl::string_view(data_, size);
    Skip(size);
    return true;
  }
  const char* position() const { return data_; }
  size_t left() const { return left_; }

 private:
  void Skip(size_t size) {
    data_ += size;
    left_ -= size;
  }
  const char* data_;
  size_t left_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_BYTE_STREAM_H_
