// SPDX-License-Identifier: Apache-2.0
//
// Decides which of the process's tensors lie in the arena, where peers can read them and devices pin them.
// With PLACEMENT=arena these are all tensors above the arena's threshold. With PLACEMENT=traced they are the
// tensors from sites whose tensors were sent before. Every other allocation above the threshold is then traced to
// its site: the operation that requests it, the purpose (an output or scratch memory), the type, and the size up
// to a power of two. The site of memory that no operation requests (constants, fed values, results of RPCs) is its
// exact size. A tensor that must be copied because it lies elsewhere marks its site, and from then on the arena
// provides the memory for that site. So tracing never ends, and each site costs one copied tensor.
//
// Variables outlive the marking of their site. A variable that was copied repeatedly is held for a while: by
// TensorFlow's rules an update then finds it shared and writes into new memory, which is traced and marked in
// turn. TensorFlow 1's reference variables are always copied.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/tensor.h"
#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

// All functions may be called from any thread. The setting is read when the arena is first used.

// Allocates in the arena or from `stock`, for the process's allocator while the arena is active. Returns nullptr
// if the process has no memory left.
void* PlacedAllocate(tsl::Allocator* stock, size_t alignment, size_t bytes);
// `address`, which lies outside the arena, is about to be freed.
void PlacedFree(void* address);

// To be called for each tensor above the threshold that is sent. `in_arena`: peers can read it where it lies, so
// it is not copied. The call is needed then too, because it releases variables that have moved.
void PlacementOnSend(const tensorflow::Tensor& tensor, bool in_arena);

// A JSON object for rdmatensor.tensorflow.stats(). Resetting keeps what is known about sites.
std::string PlacementAsJson();
void ResetPlacement();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_
