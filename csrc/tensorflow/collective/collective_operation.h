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
// only on the operation itself.
const char* WhyStock(const tensorflow::CollectiveParams& params);
// The same for all operations of the group.
const char* WhyStock(const tensorflow::CollGroupParams& group);

// The kind of an operation that need not be left to TensorFlow.
rdt_collective_kind KindOf(const tensorflow::CollectiveParams& params);

// Fills in kind, type, reduction, root, buffers and count, of such an operation.
// InvalidArgument if the tensors do not suit it.
absl::Status Describe(tensorflow::OpKernelContext* context,
                      const tensorflow::CollectiveParams& params, rdt_collective* collective);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_OPERATION_H_
