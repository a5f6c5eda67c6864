// SPDX-License-Identifier: Apache-2.0
//
// The memory that peers may read. The process has one arena because TensorFlow has one CPU allocator, which covers
// every tensor that may be sent; allocators of devices or network cards would cover only some of them.
//
// Until a grpc+rdma server exists, the allocator is TensorFlow's own, as without the plugin. From then on tensors
// above a threshold lie in the arena, a BFC heap over regions of shareable memory. The regions are few and grow
// in size, because devices register a region as a whole and some pin all of its pages: one sparse range would pin
// the machine's memory. When the arena is full, tensors get plain memory and are copied when sent, so the arena
// never makes an allocation fail.
//
// A forked child has no arena. It allocates like a process without the plugin, and shares with its parent no memory
// that it could write (rdt_memory_alloc). It never frees the memory of its parent's tensors.
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
#include "base/fork_guard.h"
#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

// Thread-safe.
class Arena {
 public:
  // Contiguous memory that never moves, grows or goes away.
  struct Region {
    char* base;
    uint64_t size;
    int index;  // 0, 1, ... in order of creation
  };
  static constexpr int kMaxRegions = 64;

  // Learns of every region before any of its memory is handed out.
  class Listener {
   public:
    virtual ~Listener() = default;
    // May take long: it runs on the thread that requested the memory, without a lock of the heap. Returns false
    // if peers cannot use the region; the arena then stops growing, because more memory would be useless too.
    virtual bool OnRegion(const Region& region) = 0;
  };

  struct Usage {
    bool active;
    uint64_t limit_bytes, reserved_bytes, used_bytes, peak_bytes, allocations;
    int regions;
    // Requests that should have been served by the arena but did not fit.
    uint64_t exhausted_allocations, exhausted_bytes;
  };

  // The process's arena; lives until the process ends.
  static Arena* Get();

  // Makes the first region; idempotent. `limit` 0 means three quarters of the memory that this process may use.
  // Requests of more than `threshold` bytes use the arena from now on. Fails in a child that was forked after the
  // arena was used. Changes nothing on failure.
  absl::Status Activate(uint64_t limit, uint64_t threshold);

  // Calls `listener` for each existing region, and for new ones until Unsubscribe has returned. Neither function
  // may be called from OnRegion.
  void Subscribe(Listener* listener);
  void Unsubscribe(Listener* listener);

  bool active() const { return active_.load(std::memory_order_acquire) && !IsInherited(); }
  uint64_t threshold() const { return threshold_; }
  // The region that holds `address`, or nullptr.
  const Region* Find(const void* address) const;

  // Returns memory inside the arena, or nullptr if the arena is full or not active. May block while listeners
  // learn of a new region.
  void* Allocate(size_t alignment, size_t bytes);
  // `address` must lie inside. Does nothing in a forked child.
  void Free(void* address);
  // Allocates only from the arena. A tensor made with it is not initialized if the arena is full.
  tsl::Allocator* allocator() { return waiting_.get(); }
  // The same for threads that must not block. Unless IsAnnounced, the caller must call AwaitAnnouncement on
  // another thread before the memory is used.
  tsl::Allocator* hasty_allocator() { return hasty_.get(); }
  bool IsAnnounced(const void* address) const;
  void AwaitAnnouncement();
  // Lets GPUs copy directly to and from the arena, if this process uses CUDA. Call it before such copies; it takes time
  // only when the arena has grown. A failure is logged, and copies are slower.
  void PinForDevices();

  Usage GetUsage();
  void ResetUsage();

 private:
  class Regions;
  class HeapAllocator;
  Arena();
  // True in a forked child: threads that only the parent has may hold any of the locks.
  bool IsInherited() const {
    return used_.load(std::memory_order_acquire) && fork_guard_.InChild();
  }
  void* AllocateUnannounced(size_t alignment, size_t bytes);
  char* Grow(uint64_t* size);
  uint64_t NextSize(uint64_t wanted) const;
  void WarnOnce(const std::string& text);

  std::mutex activation_mutex_;
  std::atomic<bool> used_{false};  // ever, in this process or one that it was forked from
  ForkGuard fork_guard_;           // since then; not that of the first allocation
  std::atomic<bool> active_{false};
  uint64_t limit_ = 0;
  uint64_t threshold_ = 0;
  std::unique_ptr<tsl::Allocator> heap_;  // divides the regions
  std::unique_ptr<tsl::Allocator> waiting_, hasty_;

  // Written under the heap's lock. Readers see a consistent list, sorted by address, at any time. Old lists are
  // small and are kept for them.
  std::atomic<const std::vector<Region>*> regions_{nullptr};
  std::atomic<uint64_t> reserved_{0};
  std::atomic<bool> may_grow_{true};

  std::mutex announcement_mutex_;
  std::vector<Listener*> listeners_;  // under it
  std::atomic<int> announced_{0};     // regions below this index; written under it
  std::atomic<int> region_count_{0};
  std::atomic<int> pinned_{0};  // regions below this index are, if CUDA is used

  std::atomic<uint64_t> exhausted_allocations_{0}, exhausted_bytes_{0};
  std::atomic<bool> warned_{false};  // not a counter: resetting counters must not repeat warnings
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_ARENA_H_
