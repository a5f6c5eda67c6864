// SPDX-License-Identifier: Apache-2.0
#include "memory/placement.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/numeric/bits.h"
#include "base/json.h"
#include "memory/arena.h"
#include "memory/sites.h"
#include "rdmatensor.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace rdmatensor {
namespace {

using Clock = std::chrono::steady_clock;
using tensorflow::Tensor;

// Half a megabyte; models have thousands of sites.
constexpr size_t kSiteSlots = size_t{1} << 16;
// An update comes within a step or two of the send. The next send releases what was not updated by then.
constexpr std::chrono::seconds kHoldFor{10};
constexpr std::chrono::milliseconds kSweepPeriod{100};

bool TracedIsSet() {
  char mode[16] = "";
  (void)rdt_config_get("PLACEMENT", mode, sizeof mode);
  return std::strcmp(mode, "traced") == 0;
}

// The site of an allocation that this thread makes now. OpKernelContext records per thread what it allocates for,
// for TensorFlow's memory profiler, even if that does not run.
uint64_t CurrentSite(size_t bytes) {
  const auto& asks = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  if (asks.pending_op_name.empty()) return Sites::FromHash(absl::HashOf(bytes));
  return Sites::FromHash(absl::HashOf(asks.pending_op_name, asks.pending_region_type,
                                      asks.pending_data_type, absl::bit_width(bytes)));
}

// The memory in use outside the arena whose size is above the threshold.
class TracedMemory {
 public:
  struct Block {
    uint64_t site;
    uint32_t copies;  // how often it was sent, hence copied
  };

  void Add(const void* address, uint64_t site) {
    Shard& shard = ShardOf(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.blocks.insert_or_assign(address, Block{site, 0}).second) MarkOf(address).fetch_add(1);
  }
  // Most memory is small and never traced, so it takes no lock.
  void Remove(const void* address) {
    if (MarkOf(address).load(std::memory_order_relaxed) == 0) return;
    Shard& shard = ShardOf(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    if (shard.blocks.erase(address) != 0) MarkOf(address).fetch_sub(1);
  }
  // Counts a copy of the block at `address`. False if there is no block.
  bool CountCopy(const void* address, Block* block) {
    Shard& shard = ShardOf(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) return false;
    ++found->second.copies;
    *block = found->second;
    return true;
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    absl::flat_hash_map<const void*, Block> blocks;
  };
  static constexpr size_t kShards = 64;
  static constexpr size_t kMarks = size_t{1} << 16;
  Shard& ShardOf(const void* address) { return shards_[absl::HashOf(address) % kShards]; }
  std::atomic<uint32_t>& MarkOf(const void* address) {
    return marks_[absl::HashOf(address) / kShards % kMarks];
  }
  Shard shards_[kShards];
  std::atomic<uint32_t> marks_[kMarks] = {};  // numbers of blocks by the hash of their address
};

// Holds references to tensors until they were replaced, or for kHoldFor.
class HeldTensors {
 public:
  void Hold(const Tensor& tensor) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.emplace_back(tensor, Clock::now() + kHoldFor);
    any_.store(true, std::memory_order_relaxed);
  }
  // Releases tensors that were replaced meanwhile. Called often, so it mostly does nothing.
  void Sweep() {
    if (!any_.load(std::memory_order_relaxed)) return;
    std::vector<Held> dropped;  // freed after the lock is released
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    const Clock::time_point now = Clock::now();
    if (!lock.owns_lock() || now < next_sweep_) return;
    next_sweep_ = now + kSweepPeriod;
    const auto first = std::partition(held_.begin(), held_.end(), [now](const Held& held) {
      return now < held.second && !held.first.RefCountIsOne();
    });
    dropped.assign(std::make_move_iterator(first), std::make_move_iterator(held_.end()));
    held_.erase(first, held_.end());
    any_.store(!held_.empty(), std::memory_order_relaxed);
  }

 private:
  using Held = std::pair<Tensor, Clock::time_point>;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Held> held_;
  Clock::time_point next_sweep_;
};

struct Counters {
  std::atomic<uint64_t> arena_allocations{0}, arena_bytes{0};
  std::atomic<uint64_t> plain_allocations{0}, plain_bytes{0};
  std::atomic<uint64_t> late_sends{0}, unknown_sends{0};
};
Counters counters;

struct Placement {
  const bool traced = TracedIsSet();
  Sites sites{traced ? kSiteSlots : 4};
  TracedMemory memory;
  HeldTensors held;
};

// Never destroyed: tensors are freed while static destructors run.
Placement& GetPlacement() {
  static Placement* placement = new Placement;
  return *placement;
}

void Count(std::atomic<uint64_t>* allocations, std::atomic<uint64_t>* sum, size_t bytes) {
  allocations->fetch_add(1, std::memory_order_relaxed);
  sum->fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace

void* PlacedAllocate(tsl::Allocator* stock, size_t alignment, size_t bytes) {
  Arena* const arena = Arena::Get();
  if (bytes <= arena->threshold()) return stock->AllocateRaw(alignment, bytes);
  Placement& placement = GetPlacement();
  const uint64_t site = placement.traced ? CurrentSite(bytes) : 0;
  const bool wanted = !placement.traced || placement.sites.See(site);
  if (wanted) {
    if (void* address = arena->Allocate(alignment, bytes)) {
      Count(&counters.arena_allocations, &counters.arena_bytes, bytes);
      return address;
    }
  }
  void* const address = stock->AllocateRaw(alignment, bytes);
  Count(&counters.plain_allocations, &counters.plain_bytes, bytes);
  // A tensor that the full arena turned away says nothing about its site.
  if (!wanted && address != nullptr) placement.memory.Add(address, site);
  return address;
}

void PlacedFree(void* address) {
  Placement& placement = GetPlacement();
  if (placement.traced) placement.memory.Remove(address);
}

void PlacementOnSend(const Tensor& tensor, bool in_arena) {
  Placement& placement = GetPlacement();
  if (!placement.traced) return;
  placement.held.Sweep();
  if (in_arena || !tensor.IsInitialized()) return;
  Tensor shared =
      tensor;  // TensorFlow shows the whole buffer of a slice only through a mutable tensor
  const void* const address = tensorflow::DMAHelper::buffer(&shared)->root_buffer()->data();
  if (Arena::Get()->Find(address) != nullptr) return;  // copied for another reason
  TracedMemory::Block block;
  if (!placement.memory.CountCopy(address, &block)) {
    counters.unknown_sends.fetch_add(1, std::memory_order_relaxed);
  } else if (!placement.sites.Mark(block.site)) {
    counters.late_sends.fetch_add(1, std::memory_order_relaxed);
    // Less and less often, because some tensors are never updated while they are held.
    if (block.copies > 1 && absl::has_single_bit(block.copies)) placement.held.Hold(shared);
  }
}

std::string PlacementAsJson() {
  // Before the arena is active there are no sites, and the setting may still change.
  const Placement* const placement = Arena::Get()->active() ? &GetPlacement() : nullptr;
  const bool traced = placement != nullptr ? placement->traced : TracedIsSet();
  return Json::Object()
      .Add("mode", traced ? "traced" : "arena")
      .Add("traced_sites", placement != nullptr ? placement->sites.seen() : 0)
      .Add("marked_sites", placement != nullptr ? placement->sites.marked() : 0)
      .Add("arena_allocations", counters.arena_allocations.load())
      .Add("arena_bytes", counters.arena_bytes.load())
      .Add("plain_allocations", counters.plain_allocations.load())
      .Add("plain_bytes", counters.plain_bytes.load())
      .Add("late_sends", counters.late_sends.load())
      .Add("unknown_sends", counters.unknown_sends.load())
      .text();
}

void ResetPlacement() {
  for (std::atomic<uint64_t>* counter :
       {&counters.arena_allocations, &counters.arena_bytes, &counters.plain_allocations,
        &counters.plain_bytes, &counters.late_sends, &counters.unknown_sends}) {
    counter->store(0, std::memory_order_relaxed);
  }
}

}  // namespace rdmatensor
