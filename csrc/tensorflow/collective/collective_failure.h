// SPDX-License-Identifier: Apache-2.0
//
// Failures of collective operations: as TensorFlow reports them, and on their way to other members.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/collective.h"

namespace rdmatensor {

// The text for rdt_collective's detail, which has what TensorFlow compares when members meet.
std::string DetailOf(const tensorflow::CollectiveParams& params);

// The status of an operation on `device` for the core's failure `status` with the message `error`. It has the code
// and text of TensorFlow's own error if members disagree, or the error that another member sent (WordsOf).
absl::Status CollectiveStatus(rdt_status status, absl::string_view error,
                              const tensorflow::CollectiveParams& params,
                              const std::string& device);

// The same for a failure of the whole group, which cannot be a disagreement about an operation.
absl::Status GroupStatus(rdt_status status, absl::string_view error);

// The message with which a member ends a group. CollectiveStatus turns it into the same error at all others.
std::string WordsOf(const absl::Status& status);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_
