// SPDX-License-Identifier: Apache-2.0
//
// Errors of the core as those of TensorFlow.
#ifndef RDMATENSOR_TENSORFLOW_OPS_CORE_STATUS_H_
#define RDMATENSOR_TENSORFLOW_OPS_CORE_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "rdmatensor.h"

namespace rdmatensor {

// The error `status` that a call of this thread has just returned, with the core's words for it, of what `name` names.
absl::Status StatusOf(rdt_status status, const std::string& name);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_CORE_STATUS_H_
