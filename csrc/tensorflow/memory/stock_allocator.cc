// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's registry makes only the allocator of the highest priority and does not return the others. So the
// plugin makes the allocator that it displaced itself: with oneDNN a heap that keeps large blocks, otherwise plain
// memory. oneDNN's heap matters because large plain blocks come fresh from the kernel each time and each of their
// pages costs a fault, which takes a fifth of a local training step.
#include "memory/stock_allocator.h"

#include "base/aligned.h"
#include "tensorflow/core/util/util.h"

#define INTEL_MKL  // the header is empty without it; TensorFlow's own x86 builds define it
#include "tensorflow/core/common_runtime/mkl_cpu_allocator.h"

namespace rdmatensor {
namespace {

class PlainAllocator : public tsl::Allocator {
 public:
  std::string Name() override { return "cpu"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return AlignedAllocate(bytes, alignment);
  }
  void DeallocateRaw(void* address) override { tsl::port::AlignedFree(address); }
  size_t AllocatedSizeSlow(const void* address) const override {
    return tsl::port::MallocExtension_GetAllocatedSize(address);
  }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }
};

tsl::Allocator* Make() {
  if (tensorflow::IsMKLEnabled()) return new tensorflow::MklCPUAllocator;
  return new PlainAllocator;
}

}  // namespace

tsl::Allocator* StockAllocator() {
  static tsl::Allocator* const stock = Make();
  return stock;
}

}  // namespace rdmatensor
