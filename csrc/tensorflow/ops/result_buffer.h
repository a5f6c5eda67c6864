// SPDX-License-Identifier: Apache-2.0
//
// Makes tensors of parts of one memory.
#ifndef RDMATENSOR_TENSORFLOW_OPS_RESULT_BUFFER_H_
#define RDMATENSOR_TENSORFLOW_OPS_RESULT_BUFFER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// Results are tensors, which TensorFlow expects to be aligned.
constexpr uint64_t kAlign = EIGEN_MAX_ALIGN_BYTES;

inline uint64_t Aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A part of the memory of an operation.
class ResultBuffer : public tensorflow::TensorBuffer {
 public:
  ResultBuffer(std::shared_ptr<char> memory, uint64_t offset, uint64_t bytes)
      : TensorBuffer(memory.get() + offset), memory_(std::move(memory)), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("rdmatensor_group");
  }

 private:
  const std::shared_ptr<char> memory_;
  const uint64_t bytes_;
};

// A tensor that lies at `offset` of `memory`, a multiple of kAlign, and keeps the memory.
inline tensorflow::Tensor PartOf(const std::shared_ptr<char>& memory, uint64_t offset,
                                 tensorflow::DataType dtype, const tensorflow::TensorShape& shape) {
  const uint64_t bytes = static_cast<uint64_t>(shape.num_elements()) *
                         static_cast<uint64_t>(tensorflow::DataTypeSize(dtype));
  if (bytes == 0) return tensorflow::Tensor(dtype, shape);
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
      new ResultBuffer(memory, offset, bytes));
  return tensorflow::Tensor(dtype, shape, std::move(buffer));
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_RESULT_BUFFER_H_
