// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow 1's reference variables are updated in place even while another holder has their tensor; resource
// variables are copied first. A receiver that reads such a tensor in place would see the update. So tensors that
// may share a reference variable's memory are copied when sent.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_REF_VARIABLES_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_REF_VARIABLES_H_

#include "absl/strings/string_view.h"

namespace rdmatensor {

// Whether the tensor that is sent under this rendezvous key may change after Send. A graph pass, which TensorFlow
// runs on each worker's partitions before the first step, collects these keys. Thread-safe.
bool MayChangeInPlace(absl::string_view rendezvous_key);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_REF_VARIABLES_H_
