// SPDX-License-Identifier: Apache-2.0
//
// Buffers of received tensors that stay in their sender's memory, which is mapped read-only here.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_BORROWED_BUFFER_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_BORROWED_BUFFER_H_

#include <cstdint>
#include <memory>

#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

class Channel;

// Makes a buffer of the `bytes` bytes at `data`, which `channel` lent as `lend_id`. The loan is released when
// no tensor uses the bytes any more; if slices used them last, it is released shortly after.
//
// TensorFlow never writes into a tensor whose buffer does not own its memory. A slice, however, has a
// buffer of its own, which claims to own the memory and may be written once its `root_buffer` has no other
// reference. Therefore the root is a separate object, and it holds one more reference while slices exist.
tensorflow::TensorBuffer* NewBorrowedBuffer(void* data, uint64_t bytes, uint64_t lend_id,
                                            std::shared_ptr<Channel> channel);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_BORROWED_BUFFER_H_
