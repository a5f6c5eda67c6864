// SPDX-License-Identifier: Apache-2.0
#ifndef RDMATENSOR_TENSORFLOW_SERVER_PLANNED_KERNELS_H_
#define RDMATENSOR_TENSORFLOW_SERVER_PLANNED_KERNELS_H_

#include <string>

namespace rdmatensor {

// Puts the plugin's kernels of _Send and _Recv before TensorFlow's on all devices of this type, for graphs that the
// process runs from now on. CPUs always have them. Call it for the devices of each server. Thread-safe.
void RegisterTransferKernels(const std::string& device_type);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_PLANNED_KERNELS_H_
