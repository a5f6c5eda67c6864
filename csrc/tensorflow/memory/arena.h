// SPDX-License-Identifier: Apache-2.0
//
// The memory that peers may read. The process has one arena, because TensorFlow has one CPU
// allocator: registered for the whole process, it covers every tensor that may be sent (device or
// NIC allocators cover only some of them).
//
// Until a grpc+rdma server exists the allocator is TensorFlow's own, as without the plugin.
// From then on tensors above a threshold lie in the arena: a BFC heap over regions of shareable
// memory. There are few of them, and each is larger than the one before, because devices register a
// region as a whole and some pin all of its pages: one sparse range would pin the machine's memory.
// When the arena is full, tensors get plain memory and are copied when sent: the arena never makes an
// allocation fail.
//
// A forked child has no arena: it allocates like a process without the plugin, and shares with its parent no
// memory that it could write (rdt_memory_alloc). What its parent's tensors held it leaves as it is.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_ARENA_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/forks.h"
#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

// Thread-safe.
class Arena {
 public:
  // Contiguous memory of its own; never moves, grows or goes away.
  struct Region {
    char* base;
    uint64_t size;
    int index;  // 0, 1, ... in order of their making
  };
  static constexpr int kMaxRegions = 64;

  // Learns of every region before any of its memory is handed out.
  class Listener {
   public:
    virtual ~Listener() = default;
    // May take long: it runs on the thread that asked for the memory, under no lock of the heap.
    // False: peers cannot use the region, nor, therefore, more memory: the arena stops growing.
    virtual bool OnRegion(const Region& region) = 0;
  };

  struct Usage {
    bool active;
    uint64_t limit_bytes, reserved_bytes, used_bytes, peak_bytes;
    int regions;
    // Requests that belonged into the arena and did not fit.
    uint64_t exhausted_allocations, exhausted_bytes;
  };

  // The process's arena; lives until the process ends.
  static Arena* Get();

  // Makes the first region; idempotent. An error in a child that was forked after that. `limit` 0 means three quarters of the memory that this process
  // may use. Requests of more than `threshold` bytes use the arena from now on. On failure everything
  // stays as it was.
  absl::Status Activate(uint64_t limit, uint64_t threshold);

  // Tells `listener` of the regions that exist, and of new ones until Unsubscribe has returned.
  // Neither may be called from OnRegion.
  void Subscribe(Listener* listener);
  void Unsubscribe(Listener* listener);

  bool active() const { return active_.load(std::memory_order_acquire) && !IsInherited(); }
  uint64_t threshold() const { return threshold_; }
  // The region that holds `address`, or nullptr.
  const Region* Find(const void* address) const;

  // Memory inside the arena, or nullptr if it is not active or full. May block while a new region is
  // announced to the listeners.
  void* Allocate(size_t alignment, size_t bytes);
  // `address` must lie inside. Does nothing in a forked child.
  void Free(void* address);
  // Allocates from the arena only; a tensor made with it is not initialized when it is full.
  tsl::Allocator* allocator() { return waiting_.get(); }
  // The same for threads that must not block: whoever uses it calls AwaitAnnouncement on another
  // thread before the memory is used, unless IsAnnounced.
  tsl::Allocator* hasty_allocator() { return hasty_.get(); }
  bool IsAnnounced(const void* address) const;
  void AwaitAnnouncement();

  Usage GetUsage();
  void ResetUsage();

 private:
  class Regions;
  class HeapAllocator;
  Arena();
  // It is the parent's: threads that only the parent has may hold any of its locks.
  bool IsInherited() const { return used_.load(std::memory_order_acquire) && home_.IsLeft(); }
  void* AllocateUnannounced(size_t alignment, size_t bytes);
  char* Grow(uint64_t* size);
  uint64_t NextSize(uint64_t wanted) const;
  void WarnOnce(const std::string& text);

  std::mutex activation_mutex_;
  std::atomic<bool> used_{false};  // ever, in this process or one that it was forked from
  Home home_;                      // since then; not that of the first allocation
  std::atomic<bool> active_{false};
  uint64_t limit_ = 0;
  uint64_t threshold_ = 0;
  std::unique_ptr<tsl::Allocator> heap_;  // divides the regions
  std::unique_ptr<tsl::Allocator> waiting_, hasty_;

  // Written under the heap's lock. Readers see a consistent list, sorted by address, at any time; old
  // lists stay for them, which is little memory.
  std::atomic<const std::vector<Region>*> regions_{nullptr};
  std::atomic<uint64_t> reserved_{0};
  std::atomic<bool> may_grow_{true};

  std::mutex announcement_mutex_;
  std::vector<Listener*> listeners_;  // under it
  std::atomic<int> announced_{0};     // regions below this index; written under it
  std::atomic<int> region_count_{0};

  std::atomic<uint64_t> exhausted_allocations_{0}, exhausted_bytes_{0};
  std::atomic<bool> warned_{false};  // not a counter: resetting those repeats no warning
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_ARENA_H_
