// SPDX-License-Identifier: Apache-2.0
//
// Translates TensorFlow's collective operations into those of a group of devices.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_OPERATION_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_OPERATION_H_

#include "absl/status/status.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/collective.h"

namespace rdmatensor {

// The reason, as a name for the statistics, why the operation must be left to TensorFlow's algorithm; nullptr if it
// need not. It depends only on what all members have in common, so all decide alike, and before the group is known
// only on the operation itself. `nccl`: the program wants NCCL for all operations on GPUs.
const char* WhyStock(const tensorflow::CollectiveParams& params, bool nccl);
// The same for all operations of the group.
const char* WhyStock(const tensorflow::CollGroupParams& group);

// The kind of an operation that need not be left to TensorFlow.
rdt_collective_kind KindOf(const tensorflow::CollectiveParams& params);

// InvalidArgument if the tensors do not suit such an operation. `input` is nullptr if another member broadcasts.
absl::Status CheckSizes(const tensorflow::CollectiveParams& params, const tensorflow::Tensor* input,
                        const tensorflow::Tensor& output);

// Fills in kind, type, reduction, root, buffers and count of an operation whose tensors suit it.
void Describe(const tensorflow::CollectiveParams& params, const tensorflow::Tensor* input,
              tensorflow::Tensor* output, rdt_collective* collective);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_OPERATION_H_
