// SPDX-License-Identifier: Apache-2.0
//
// Kernels for operations on rows of float32, with ids of int32 and int64: which there are, and who gets them.
#ifndef RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNELS_H_
#define RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNELS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace rdmatensor {

// An operation of TensorFlow, whose attribute Tindices tells the type of its ids.
struct RowOperation {
  const char* name;
  const char* type;  // the attribute that has to be float32
  using Make = std::unique_ptr<tensorflow::OpKernel> (*)(
      tensorflow::OpKernelConstruction* construction, std::unique_ptr<tensorflow::OpKernel> stock,
      bool long_ids);
  Make make;
};

template <typename ShortIds, typename LongIds>
std::unique_ptr<tensorflow::OpKernel> MakeRowKernel(tensorflow::OpKernelConstruction* construction,
                                                    std::unique_ptr<tensorflow::OpKernel> stock,
                                                    bool long_ids) {
  if (long_ids) return std::make_unique<LongIds>(construction, std::move(stock));
  return std::make_unique<ShortIds>(construction, std::move(stock));
}

const std::vector<RowOperation>& ReadsAndScatters();
const std::vector<RowOperation>& Updates();
const std::vector<RowOperation>& Sums();

// From now on, graphs and functions get these kernels on the device of this incarnation, whatever starts them. Devices
// of other sessions of this process keep TensorFlow's. Any thread may call it.
void UseRowKernels(uint64_t incarnation);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNELS_H_
