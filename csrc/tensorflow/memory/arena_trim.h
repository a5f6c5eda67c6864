// SPDX-License-Identifier: Apache-2.0
//
// Gives unused pages of the arena back to the machine. The arena keeps the pages of freed tensors for later ones,
// because steps allocate the same sizes again and again. After something that steps do not repeat, such as making
// or loading a model, that would be a waste.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_ARENA_TRIM_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_ARENA_TRIM_H_

#include <cstdint>

namespace rdmatensor {

// Returns the bytes whose pages were given back: free parts of at least a megabyte. Returns 0 if there is no arena,
// or if a device has pinned memory of this process. What other threads need meanwhile may lie in a new region.
// Tensors that use the pages later find zeros, and take new pages. Thread-safe.
uint64_t TrimArena();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_ARENA_TRIM_H_
