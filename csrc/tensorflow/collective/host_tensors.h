// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a collective operation as a group of devices takes them: in the host's memory.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_HOST_TENSORS_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_HOST_TENSORS_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// The operation's own tensors, or, if they lie in the memory of a device, copies of them. For one thread, which its
// functions may block until the device has done what comes before a copy. The context outlives it.
class HostTensors {
 public:
  HostTensors(tensorflow::OpKernelContext* context, const tensorflow::CollectiveParams& params);
  HostTensors(const HostTensors&) = delete;
  HostTensors& operator=(const HostTensors&) = delete;

  // Copies the input to the host. An error names the device and the operation.
  absl::Status TakeInput();
  // Copies the output to the device.
  absl::Status GiveOutput();
  // Replaces a tensor that computes with the output by a copy where that lies.
  absl::Status MoveToDevice(tensorflow::Tensor* tensor) const;

  // nullptr: none, because another member broadcasts. Otherwise valid after TakeInput, like the output.
  const tensorflow::Tensor* input() const { return input_; }
  tensorflow::Tensor* output() const { return output_; }

 private:
  bool SharesOutput() const;
  absl::Status Failed(const char* what, const absl::Status& status) const;

  tensorflow::OpKernelContext* const context_;
  const tensorflow::CollectiveParams& params_;
  tensorflow::Device* const device_;
  tensorflow::DeviceContext* copying_ =
      nullptr;  // of the device; nullptr: the tensors are the host's
  const tensorflow::Tensor* input_ = nullptr;
  tensorflow::Tensor* output_;
  tensorflow::Tensor input_copy_, output_copy_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_HOST_TENSORS_H_
