// SPDX-License-Identifier: Apache-2.0
//
// The words in which TensorFlow's gRPC clients tell of errors of other tasks.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_REMOTE_ERROR_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_REMOTE_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// `status` as the error of a call of `method` of `task`. Programs look for these words to tell whose failure it is:
// ClusterCoordinator takes a lost parameter server for a lost worker without them, and waits for it to come back.
absl::Status AsErrorOf(absl::string_view task, absl::string_view method,
                       const absl::Status& status);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_REMOTE_ERROR_H_
