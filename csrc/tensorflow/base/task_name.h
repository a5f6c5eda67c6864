// SPDX-License-Identifier: Apache-2.0
//
// The task's part of a TensorFlow device name.
#ifndef RDMATENSOR_TENSORFLOW_BASE_TASK_NAME_H_
#define RDMATENSOR_TENSORFLOW_BASE_TASK_NAME_H_

#include "absl/strings/string_view.h"

namespace rdmatensor {

// The part of a full device name before "/device:".
inline absl::string_view TaskOf(absl::string_view device_name) {
  return device_name.substr(0, device_name.rfind("/device:"));
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_TASK_NAME_H_
