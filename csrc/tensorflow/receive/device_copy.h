// SPDX-License-Identifier: Apache-2.0
//
// Where tensors lie that operations of a device use, and the last part of a received tensor's path into the memory of
// a device.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_DEVICE_COPY_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_DEVICE_COPY_H_

#include "receive/mailbox.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// The context that copies between the host and `device`: `given`, of an operation on it, or the device's own. nullptr
// if it has none, because its memory is the host's. The device owns it.
tensorflow::DeviceContext* CopyingContext(const tensorflow::DeviceBase& device,
                                          tensorflow::DeviceContext* given);

// Completes a receive whose `device` is set: copies `tensor` there and lets go of it. Never blocks.
void CompleteOnDevice(Waiter waiter, tensorflow::Tensor tensor);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_DEVICE_COPY_H_
