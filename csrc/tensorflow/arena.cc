// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <unistd.h>

#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "include/rdmatensor.h"
#include "tsl/platform/mem.h"
#include "xla/tsl/framework/allocator_registry.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace rdmatensor {
namespace {

constexpr uint64_t kPageSize = 4096;
// What the heap guarantees: it hands out multiples of this from a page-aligned range.
constexpr size_t kHeapAlignment = 256;

uint64_t DefaultLimit() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_size <= 0) return uint64_t{1} << 32;
  return static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_size) / 4 * 3;
}

// Gives the range to the heap piece after piece, contiguously, so that the heap can join them.
class RangeSubAllocator : public tsl::SubAllocator {
 public:
  RangeSubAllocator(char* base, uint64_t size)
      : tsl::SubAllocator({}, {}), next_(base), left_(size) {}

  // Called under the heap's lock.
  void* Alloc(size_t /*alignment*/, size_t bytes, size_t* received) override {
    if (bytes > UINT64_MAX - kPageSize) return nullptr;
    const uint64_t rounded = (bytes + kPageSize - 1) / kPageSize * kPageSize;
    if (rounded > left_) return nullptr;
    char* piece = next_;
    next_ += rounded;
    left_ -= rounded;
    *received = rounded;
    return piece;
  }
  // Only the heap's destructor gives memory back, and the arena is never destroyed.
  void Free(void* /*address*/, size_t /*bytes*/) override {}
  bool SupportsCoalescing() const override { return true; }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }

 private:
  char* next_;
  uint64_t left_;
};

class ArenaOnlyAllocator : public tsl::Allocator {
 public:
  explicit ArenaOnlyAllocator(Arena* arena) : arena_(arena) {}
  std::string Name() override { return "rdmatensor_arena"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return arena_->Allocate(alignment, bytes);
  }
  void DeallocateRaw(void* address) override { arena_->Free(address); }

 private:
  Arena* const arena_;
};

// The process's CPU allocator.
class ProcessAllocator : public tsl::Allocator {
 public:
  explicit ProcessAllocator(Arena* arena) : arena_(arena) {}
  std::string Name() override { return "cpu"; }  // the stock allocator's name: profiles stay equal
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (arena_->active() && bytes > arena_->threshold()) {
      if (void* address = arena_->Allocate(alignment, bytes)) return address;
    }
    return tsl::port::AlignedMalloc(bytes, static_cast<std::align_val_t>(alignment));
  }
  void DeallocateRaw(void* address) override {
    if (arena_->Contains(address)) {
      arena_->Free(address);
    } else {
      tsl::port::AlignedFree(address);
    }
  }
  size_t AllocatedSizeSlow(const void* address) const override {
    return arena_->Contains(address) ? 0 : tsl::port::MallocExtension_GetAllocatedSize(address);
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
    return tsl::port::AlignedMalloc(bytes, static_cast<std::align_val_t>(alignment));
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

Arena::Arena() : arena_only_(std::make_unique<ArenaOnlyAllocator>(this)) {}

Arena* Arena::Get() {
  static Arena* arena = new Arena;
  return arena;
}

absl::Status Arena::Activate(uint64_t limit, uint64_t threshold) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (active()) return absl::OkStatus();
  if (limit == 0) limit = DefaultLimit();
  limit = limit / kPageSize * kPageSize;
  void* range = nullptr;
  if (rdt_memory_alloc(limit, &range) != RDT_OK) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no arena of ", limit, " bytes: ", rdt_last_error()));
  }
  tsl::BFCAllocator::Options options;
  options.allow_growth = true;
  heap_ = std::make_unique<tsl::BFCAllocator>(
      std::make_unique<RangeSubAllocator>(static_cast<char*>(range), limit), limit,
      "rdmatensor_arena", options);
  size_ = limit;
  threshold_ = threshold;
  base_.store(static_cast<char*>(range), std::memory_order_release);
  return absl::OkStatus();
}

void* Arena::Allocate(size_t alignment, size_t bytes) {
  if (!active() || alignment > kHeapAlignment) return nullptr;
  tsl::AllocationAttributes attributes;
  attributes.retry_on_failure =
      false;  // waiting for memory would stall a step that has another way
  void* address = heap_->AllocateRaw(alignment, bytes, attributes);
  if (address == nullptr) {
    exhausted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    exhausted_allocations_.fetch_add(1, std::memory_order_relaxed);
    if (!warned_.exchange(true, std::memory_order_relaxed)) {
      rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: the arena of ", size_,
                                              " bytes is full: tensors use ordinary memory and are "
                                              "copied when sent (raise RDMATENSOR_ARENA_LIMIT)")
                                     .c_str());
    }
  }
  return address;
}

void Arena::Free(void* address) { heap_->DeallocateRaw(address); }

Arena::Usage Arena::GetUsage() {
  Usage usage{};
  usage.active = active();
  usage.exhausted_allocations = exhausted_allocations_.load(std::memory_order_relaxed);
  usage.exhausted_bytes = exhausted_bytes_.load(std::memory_order_relaxed);
  if (!usage.active) return usage;
  usage.limit_bytes = size_;
  if (auto stats = heap_->GetStats()) {
    usage.used_bytes = static_cast<uint64_t>(stats->bytes_in_use);
    usage.peak_bytes = static_cast<uint64_t>(stats->peak_bytes_in_use);
  }
  return usage;
}

void Arena::ResetUsage() {
  exhausted_allocations_.store(0, std::memory_order_relaxed);
  exhausted_bytes_.store(0, std::memory_order_relaxed);
  if (active()) (void)heap_->ClearStats();
}

}  // namespace rdmatensor
