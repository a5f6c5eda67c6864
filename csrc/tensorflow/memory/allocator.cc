// SPDX-License-Identifier: Apache-2.0
//
// Registers the process's CPU allocator with TensorFlow.
#include <optional>
#include <string>

#include "base/aligned.h"
#include "memory/arena.h"
#include "memory/stock_allocator.h"
#include "tsl/platform/mem.h"
#include "xla/tsl/framework/allocator_registry.h"

namespace rdmatensor {
namespace {

class ProcessAllocator : public tsl::Allocator {
 public:
  ProcessAllocator(Arena* arena, tsl::Allocator* stock) : arena_(arena), stock_(stock) {}
  std::string Name() override { return stock_->Name(); }  // as in profiles without the plugin
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (arena_->active() && bytes > arena_->threshold()) {
      if (void* address = arena_->Allocate(alignment, bytes)) return address;
    }
    return stock_->AllocateRaw(alignment, bytes);
  }
  void DeallocateRaw(void* address) override {
    if (arena_->Find(address) != nullptr) {
      arena_->Free(address);
    } else {
      stock_->DeallocateRaw(address);
    }
  }
  size_t AllocatedSizeSlow(const void* address) const override {
    return arena_->Find(address) != nullptr ? 0 : stock_->AllocatedSizeSlow(address);
  }
  std::optional<tsl::AllocatorStats> GetStats() override { return stock_->GetStats(); }
  bool ClearStats() override { return stock_->ClearStats(); }
  tsl::AllocatorMemoryType GetMemoryType() const override { return stock_->GetMemoryType(); }

 private:
  Arena* const arena_;
  tsl::Allocator* const stock_;
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
  tsl::Allocator* CreateAllocator() override {
    return new ProcessAllocator(Arena::Get(), StockAllocator());
  }
  tsl::SubAllocator* CreateSubAllocator(int /*numa_node*/) override {
    return new ProcessSubAllocator;
  }
};

// Above the stock factories' priorities (100 and 200).
constexpr int kPriority = 500;
const bool allocator_registered = [] {
  tsl::AllocatorFactoryRegistry::singleton()->Register(__FILE__, __LINE__, "rdmatensor", kPriority,
                                                       new Factory);
  return true;
}();

}  // namespace
}  // namespace rdmatensor
