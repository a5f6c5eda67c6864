// SPDX-License-Identifier: Apache-2.0
//
// The process's CPU allocator, as TensorFlow finds it in its registry.
#include <string>

#include "aligned.h"
#include "arena.h"
#include "placement.h"
#include "tsl/platform/mem.h"
#include "xla/tsl/framework/allocator_registry.h"

namespace rdmatensor {
namespace {

class ProcessAllocator : public tsl::Allocator {
 public:
  explicit ProcessAllocator(Arena* arena) : arena_(arena) {}
  std::string Name() override { return "cpu"; }  // the stock allocator's name: profiles stay equal
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (arena_->active()) return PlacedAllocate(alignment, bytes);
    return AlignedAllocate(bytes, alignment);
  }
  void DeallocateRaw(void* address) override {
    if (arena_->Find(address) != nullptr) {
      arena_->Free(address);
      return;
    }
    if (arena_->active()) PlacedFree(address);
    tsl::port::AlignedFree(address);
  }
  size_t AllocatedSizeSlow(const void* address) const override {
    return arena_->Find(address) != nullptr ? 0
                                            : tsl::port::MallocExtension_GetAllocatedSize(address);
  }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }

 private:
  Arena* const arena_;
};

class ProcessSubAllocator : public tsl::SubAllocator {
 public:
  ProcessSubAllocator() : tsl::SubAllocator({}, {}) {}
  void* Alloc(size_t alignment, size_t bytes, size_t* received) override {
    *received = bytes;
    return AlignedAllocate(bytes, alignment);
  }
  void Free(void* address, size_t /*bytes*/) override { tsl::port::AlignedFree(address); }
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }
};

class Factory : public tsl::AllocatorFactory {
 public:
  tsl::Allocator* CreateAllocator() override { return new ProcessAllocator(Arena::Get()); }
  tsl::SubAllocator* CreateSubAllocator(int /*numa_node*/) override {
    return new ProcessSubAllocator;
  }
};

// Above the stock factories' priorities (100 and 200).
constexpr int kPriority = 500;
const bool registered = [] {
  tsl::AllocatorFactoryRegistry::singleton()->Register(__FILE__, __LINE__, "rdmatensor", kPriority,
                                                       new Factory);
  return true;
}();

}  // namespace
}  // namespace rdmatensor
