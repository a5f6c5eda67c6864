// SPDX-License-Identifier: Apache-2.0
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_STOCK_ALLOCATOR_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_STOCK_ALLOCATOR_H_

#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

// The CPU allocator that TensorFlow would use without this plugin. Thread-safe; never destroyed.
tsl::Allocator* StockAllocator();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_STOCK_ALLOCATOR_H_
