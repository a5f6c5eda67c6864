// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "memory/arena_trim.h"
#include "memory/memory_limit.h"
#include "rdmatensor.h"
#include "xla/tsl/framework/bfc_allocator.h"
#include "xla/tsl/protobuf/bfc_memory_map.pb.h"

namespace rdmatensor {
namespace {

constexpr uint64_t kPageSize = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;
// Each region is as large as all before it together, between the first and the largest size. The largest size is
// a part of the limit, so that the number of regions and the unused registered memory stay small on every machine.
constexpr uint64_t kFirstRegion = 64 * kMiB;
constexpr uint64_t kLargestRegion = 1024 * kMiB;
constexpr uint64_t kLargestPart = 8;
// The heap hands out multiples of this from page-aligned regions.
constexpr size_t kHeapAlignment = 256;
// With smaller requests TensorFlow's heap, once it cannot grow, may search for ever for a size that it can get.
constexpr size_t kSmallestRequest = 4096;

// The heap splits off what is left behind a tensor if it is more than this. The heap's own bound suits ranges far
// larger than our regions.
constexpr uint64_t kMostUnused = kMiB;

// The size of the request for which the heap may have to grow; the size that the heap itself asks for is larger.
thread_local uint64_t wanted_bytes = 0;

// Set while this thread trims: it takes free memory only, and reports no shortage.
thread_local bool trims = false;
// Trimming and the registration of regions exclude each other: what is pinned must keep its pages.
std::mutex registration_mutex;
// Set under it: CUDA's driver has pinned regions, which the kernel may not tell.
bool keeps_pages = false;
// Smaller free parts are likely to be used again soon.
constexpr uint64_t kSmallestTrimmed = kMiB;
// The heap of the only arena, since it is active.
tsl::BFCAllocator* heap_of_arena = nullptr;

// What is free in the arena and worth trimming, the largest first.
std::vector<uint64_t> FreeSizes() {
  std::vector<uint64_t> sizes;
  const auto map = heap_of_arena->RecordMemoryMap();
  for (const auto& chunk : map.chunk()) {
    const auto size = static_cast<uint64_t>(chunk.size());
    if (!chunk.in_use() && size >= kSmallestTrimmed) sizes.push_back(size);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes;
}

uint64_t DefaultLimit() { return UsableMemory() / 4 * 3; }

uint64_t RoundToPages(uint64_t bytes) { return (bytes + kPageSize - 1) / kPageSize * kPageSize; }

// Whether a device has pinned memory of this process. It would go on using the pages that it pinned, while the
// process had new ones.
bool HasPinnedMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmPin:", 0) == 0) return line.find_first_of("123456789") != std::string::npos;
  }
  return true;  // unknown
}

}  // namespace

class Arena::Regions : public tsl::SubAllocator {
 public:
  explicit Regions(Arena* arena) : tsl::SubAllocator({}, {}), arena_(arena) {}
  // Called under the heap's lock, on the thread whose request needs it.
  void* Alloc(size_t /*alignment*/, size_t /*bytes*/, size_t* received) override {
    uint64_t size = 0;
    char* base = arena_->Grow(&size);
    if (base != nullptr) *received = size;
    return base;
  }
  // Only the heap's destructor gives memory back, and the arena is never destroyed.
  void Free(void* /*address*/, size_t /*bytes*/) override {}
  // Neighbours are registered apart: no tensor may lie in two.
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override {
    return tsl::AllocatorMemoryType::kHostPageable;
  }

 private:
  Arena* const arena_;
};

class Arena::HeapAllocator : public tsl::Allocator {
 public:
  HeapAllocator(Arena* arena, bool waits) : arena_(arena), waits_(waits) {}
  std::string Name() override { return "rdmatensor_arena"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return waits_ ? arena_->Allocate(alignment, bytes)
                  : arena_->AllocateUnannounced(alignment, bytes);
  }
  void DeallocateRaw(void* address) override { arena_->Free(address); }

 private:
  Arena* const arena_;
  const bool waits_;
};

Arena::Arena()
    : waiting_(std::make_unique<HeapAllocator>(this, true)),
      hasty_(std::make_unique<HeapAllocator>(this, false)) {}

Arena* Arena::Get() {
  static Arena* arena = new Arena;
  return arena;
}

absl::Status Arena::Activate(uint64_t limit, uint64_t threshold) {
  if (IsInherited()) {
    return absl::FailedPreconditionError(
        "no arena: this process was forked from one that had a server, so large tensors go by grpc "
        "(start processes with \"spawn\", or fork them before the server exists)");
  }
  std::lock_guard<std::mutex> lock(activation_mutex_);
  if (active()) return absl::OkStatus();
  if (!used_.load(std::memory_order_relaxed)) fork_guard_ = ForkGuard();
  used_.store(true, std::memory_order_release);
  limit_ = (limit == 0 ? DefaultLimit() : limit) / kPageSize * kPageSize;
  if (limit_ == 0)
    return absl::ResourceExhaustedError("no arena: RDMATENSOR_ARENA_LIMIT is below a page");
  may_grow_.store(true, std::memory_order_relaxed);
  tsl::BFCAllocator::Options options;
  options.allow_growth = true;
  options.fragmentation_fraction = static_cast<double>(kMostUnused) / static_cast<double>(limit_);
  auto heap = std::make_unique<tsl::BFCAllocator>(std::make_unique<Regions>(this), limit_,
                                                  "rdmatensor_arena", options);
  heap_of_arena = heap.get();
  heap_ = std::move(heap);
  threshold_ = threshold;
  // Makes the first region now, so that failures show when the server starts.
  tsl::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  wanted_bytes = kSmallestRequest;
  void* probe = heap_->AllocateRaw(kHeapAlignment, kSmallestRequest, attributes);
  if (probe == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no arena of ", limit_, " bytes: ", rdt_last_error()));
  }
  heap_->DeallocateRaw(probe);
  active_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

uint64_t Arena::NextSize(uint64_t wanted) const {
  const uint64_t reserved = reserved_.load(std::memory_order_relaxed);
  const uint64_t largest = std::max(kLargestRegion, RoundToPages(limit_ / kLargestPart));
  const uint64_t regular = std::min(std::max(kFirstRegion, reserved), largest);
  return std::min(std::max(regular, RoundToPages(wanted)), limit_ - reserved);
}

char* Arena::Grow(uint64_t* size) {
  const std::vector<Region>* known = regions_.load(std::memory_order_relaxed);
  const int index = region_count_.load(std::memory_order_relaxed);
  *size = NextSize(wanted_bytes);
  if (trims || !may_grow_.load(std::memory_order_relaxed) || index == kMaxRegions ||
      *size < wanted_bytes) {
    return nullptr;
  }
  void* base = nullptr;
  if (rdt_memory_alloc(*size, &base) != RDT_OK) {
    may_grow_.store(false, std::memory_order_relaxed);
    if (index != 0) {
      WarnOnce(absl::StrCat(
          "tensorflow: the arena cannot grow beyond ", reserved_.load(),
          " bytes: tensors use ordinary memory and are copied when sent: ", rdt_last_error()));
    }
    return nullptr;
  }
  auto* regions = known == nullptr ? new std::vector<Region> : new std::vector<Region>(*known);
  const Region added{static_cast<char*>(base), *size, index};
  regions->insert(
      std::upper_bound(regions->begin(), regions->end(), added,
                       [](const Region& a, const Region& b) { return a.base < b.base; }),
      added);
  regions_.store(regions, std::memory_order_release);
  reserved_.fetch_add(*size, std::memory_order_relaxed);
  region_count_.store(index + 1, std::memory_order_release);
  return added.base;
}

const Arena::Region* Arena::Find(const void* address) const {
  const std::vector<Region>* regions = regions_.load(std::memory_order_acquire);
  if (regions == nullptr) return nullptr;
  auto after = std::upper_bound(
      regions->begin(), regions->end(), address,
      [](const void* wanted, const Region& region) { return wanted < region.base; });
  if (after == regions->begin()) return nullptr;
  const Region& found = *(after - 1);
  return address < found.base + found.size ? &found : nullptr;
}

bool Arena::IsAnnounced(const void* address) const {
  const int announced = announced_.load(std::memory_order_acquire);
  if (announced == region_count_.load(std::memory_order_acquire)) return true;
  const Region* region = Find(address);
  return region != nullptr && region->index < announced;
}

void Arena::AwaitAnnouncement() {
  if (IsInherited()) return;
  std::lock_guard<std::mutex> lock(announcement_mutex_);
  std::lock_guard<std::mutex> registers(registration_mutex);
  const int count = region_count_.load(std::memory_order_acquire);
  for (int index = announced_.load(std::memory_order_relaxed); index < count; ++index) {
    for (const Region& region : *regions_.load(std::memory_order_acquire)) {
      if (region.index != index) continue;
      for (Listener* listener : listeners_) {
        if (!listener->OnRegion(region)) may_grow_.store(false, std::memory_order_relaxed);
      }
    }
    announced_.store(index + 1, std::memory_order_release);
  }
}

void Arena::PinForDevices() {
  if (pinned_.load(std::memory_order_acquire) == region_count_.load(std::memory_order_acquire) ||
      !active()) {
    return;
  }
  std::lock_guard<std::mutex> lock(registration_mutex);
  const int count = region_count_.load(std::memory_order_acquire);
  const int before = pinned_.load(std::memory_order_relaxed);
  for (const Region& region : *regions_.load(std::memory_order_acquire)) {
    const bool is_new = region.index >= before && region.index < count;
    if (is_new && rdt_cuda_pin(region.base) == RDT_OK) keeps_pages = true;
  }
  pinned_.store(count, std::memory_order_release);
}

void Arena::Subscribe(Listener* listener) {
  if (IsInherited()) return;
  AwaitAnnouncement();
  std::lock_guard<std::mutex> lock(announcement_mutex_);
  std::lock_guard<std::mutex> registers(registration_mutex);
  listeners_.push_back(listener);
  const int announced = announced_.load(std::memory_order_relaxed);
  const std::vector<Region>* regions = regions_.load(std::memory_order_acquire);
  if (regions == nullptr) return;
  for (const Region& region : *regions) {
    if (region.index >= announced) continue;  // the next AwaitAnnouncement announces it
    if (!listener->OnRegion(region)) may_grow_.store(false, std::memory_order_relaxed);
  }
}

void Arena::Unsubscribe(Listener* listener) {
  if (IsInherited()) return;
  std::lock_guard<std::mutex> lock(announcement_mutex_);
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), listener), listeners_.end());
}

void* Arena::Allocate(size_t alignment, size_t bytes) {
  void* address = AllocateUnannounced(alignment, bytes);
  if (address != nullptr && !IsAnnounced(address)) AwaitAnnouncement();
  return address;
}

void* Arena::AllocateUnannounced(size_t alignment, size_t bytes) {
  if (!active() || alignment > kHeapAlignment) return nullptr;
  tsl::AllocationAttributes attributes;
  attributes.retry_on_failure = false;  // waiting would stall a step that can use plain memory
  wanted_bytes = std::max(bytes, kSmallestRequest);
  void* address = heap_->AllocateRaw(alignment, wanted_bytes, attributes);
  if (address == nullptr && !trims) {
    exhausted_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    exhausted_allocations_.fetch_add(1, std::memory_order_relaxed);
    if (may_grow_.load(std::memory_order_relaxed)) {
      WarnOnce(absl::StrCat("tensorflow: the arena of ", limit_,
                            " bytes is full: tensors use ordinary memory and are copied when sent "
                            "(raise RDMATENSOR_ARENA_LIMIT)"));
    }
  }
  return address;
}

void Arena::WarnOnce(const std::string& text) {
  if (!warned_.exchange(true, std::memory_order_relaxed)) {
    rdt_log_line(RDT_LOG_WARN, text.c_str());
  }
}

void Arena::Free(void* address) {
  if (!IsInherited()) heap_->DeallocateRaw(address);
}

uint64_t TrimArena() {
  Arena* const arena = Arena::Get();
  if (!arena->active()) return 0;
  std::lock_guard<std::mutex> lock(registration_mutex);
  if (keeps_pages || HasPinnedMemory()) return 0;
  // Nobody else has the memory while its pages go, because it is allocated here. All of it is kept until the end:
  // the heap would hand out again what came back. Only what is free is asked for: the heap prints each failure.
  std::vector<void*> taken;
  uint64_t bytes = 0;
  trims = true;
  for (const uint64_t size : FreeSizes()) {
    void* const address = arena->hasty_allocator()->AllocateRaw(kHeapAlignment, size);
    if (address == nullptr) break;  // another thread has taken it
    taken.push_back(address);
    const uint64_t start = reinterpret_cast<uintptr_t>(address);
    const uint64_t first = RoundToPages(start), last = (start + size) / kPageSize * kPageSize;
    // The pages are those of a file, for all who have mapped it. They read as zeros then.
    if (madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE) == 0) {
      bytes += last - first;
    }
  }
  trims = false;
  for (void* address : taken) arena->Free(address);
  return bytes;
}

Arena::Usage Arena::GetUsage() {
  Usage usage{};
  usage.active = active();
  usage.exhausted_allocations = exhausted_allocations_.load(std::memory_order_relaxed);
  usage.exhausted_bytes = exhausted_bytes_.load(std::memory_order_relaxed);
  if (!usage.active) return usage;
  usage.limit_bytes = limit_;
  usage.reserved_bytes = reserved_.load(std::memory_order_relaxed);
  usage.regions = region_count_.load(std::memory_order_relaxed);
  if (auto stats = heap_->GetStats()) {
    usage.used_bytes = static_cast<uint64_t>(stats->bytes_in_use);
    usage.peak_bytes = static_cast<uint64_t>(stats->peak_bytes_in_use);
    usage.allocations = static_cast<uint64_t>(stats->num_allocs);
  }
  return usage;
}

void Arena::ResetUsage() {
  exhausted_allocations_.store(0, std::memory_order_relaxed);
  exhausted_bytes_.store(0, std::memory_order_relaxed);
  [[maybe_unused]] const bool cleared = active() && heap_->ClearStats();
}

}  // namespace rdmatensor
