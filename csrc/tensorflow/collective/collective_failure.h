// SPDX-License-Identifier: Apache-2.0
//
// Failures of collective operations: as TensorFlow tells them, and on their way to other members.
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/collective.h"

namespace rdmatensor {

// What TensorFlow compares when members meet, in words: rdt_collective's detail.
std::string DetailOf(const tensorflow::CollectiveParams& params);

// What the callers of an operation on `device` get for the core's failure `status`, whose words are `error`: the
// kind and the words of TensorFlow's own error if members disagree, or what another member told (WordsOf).
absl::Status CollectiveStatus(rdt_status status, absl::string_view error,
                              const tensorflow::CollectiveParams& params,
                              const std::string& device);

// The same of a group, in which nobody disagrees.
absl::Status GroupStatus(rdt_status status, absl::string_view error);

// Why a member ends a group, so that CollectiveStatus makes the same of it at all others.
std::string WordsOf(const absl::Status& status);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_FAILURE_H_
