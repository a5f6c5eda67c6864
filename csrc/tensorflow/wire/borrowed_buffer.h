// SPDX-License-Identifier: Apache-2.0
//
// Received tensors that lie in their sender's memory, which is mapped read-only here.
#ifndef RDMATENSOR_TENSORFLOW_WIRE_BORROWED_BUFFER_H_
#define RDMATENSOR_TENSORFLOW_WIRE_BORROWED_BUFFER_H_

#include <cstdint>
#include <memory>

#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

class Channel;

// The `bytes` bytes at `data`, which `channel` lent as `lend_id`. They are given back once no tensor has
// them any more: at once, or, if slices were the last to have them, soon after.
//
// TensorFlow never writes into a tensor whose buffer does not own its memory. But a slice is a buffer of
// its own, which claims to own it, and may be written once its `root_buffer` has no other reference. So
// the root is another object than the buffer, and as long as there are slices it has one more.
tensorflow::TensorBuffer* NewBorrowedBuffer(void* data, uint64_t bytes, uint64_t lend_id,
                                            std::shared_ptr<Channel> channel);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_WIRE_BORROWED_BUFFER_H_
