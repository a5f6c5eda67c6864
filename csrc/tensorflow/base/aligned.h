// SPDX-License-Identifier: Apache-2.0
//
// Aligned memory in all minor versions of TensorFlow 2 that the plugin is built for.
#ifndef RDMATENSOR_TENSORFLOW_BASE_ALIGNED_H_
#define RDMATENSOR_TENSORFLOW_BASE_ALIGNED_H_

#include <cstddef>
#include <new>

#include "tsl/platform/mem.h"

namespace rdmatensor {

// `bytes` of memory at a multiple of `alignment`, a power of two; to be given to tsl::port::AlignedFree. nullptr
// if there is none left.
inline void* AlignedAllocate(size_t bytes, size_t alignment) {
#if RDT_TENSORFLOW_MINOR < 21
  return tsl::port::AlignedMalloc(bytes, static_cast<int>(alignment));
#else
  return tsl::port::AlignedMalloc(bytes, static_cast<std::align_val_t>(alignment));
#endif
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_ALIGNED_H_
