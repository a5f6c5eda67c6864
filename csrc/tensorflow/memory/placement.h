// SPDX-License-Identifier: Apache-2.0
//
// Which of the process's tensors lie in the arena, where peers can read them and devices pin them.
// PLACEMENT=arena: all above the arena's threshold. PLACEMENT=traced: those that come from where sent
// tensors came from before. Every other allocation above the threshold is then traced to its site: the
// operation that asks for it, what for (an output or scratch memory), its type, and its size up to a
// power of two; or, for memory that no operation asks for (constants, fed values, what RPCs bring), its
// exact size. A tensor that has to be copied because it lies elsewhere marks its site, and from then on
// memory for that site comes from the arena. So tracing never ends, and a site costs one copied tensor.
//
// Variables outlive the marking of their site. One that was copied repeatedly is held for a while: an
// update then finds it shared and, as TensorFlow's rules are, writes into new memory, which is traced
// and marked in its turn. TensorFlow 1's reference variables are copied in any case.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensorflow/core/framework/tensor.h"
#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

// All functions may be called from any thread. The setting is read when the arena is first used.

// What the process's allocator does while the arena is active: memory in the arena, or from `stock`.
// nullptr if the process has none.
void* PlacedAllocate(tsl::Allocator* stock, size_t alignment, size_t bytes);
// `address`, which lies outside the arena, is about to be freed.
void PlacedFree(void* address);

// A tensor above the threshold is being sent. `in_arena`: peers can read it where it lies, so that it
// need not be copied. To be called also for those: it lets go of variables that have moved.
void PlacementOnSend(const tensorflow::Tensor& tensor, bool in_arena);

// For rdmatensor.tensorflow.stats(): a JSON object. Resetting leaves what is known of sites.
std::string PlacementAsJson();
void ResetPlacement();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_PLACEMENT_H_
