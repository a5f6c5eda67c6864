// SPDX-License-Identifier: Apache-2.0
//
// The memory that peers may read. The process has one arena, because TensorFlow has one CPU
// allocator: registered for the whole process, it covers every tensor that may be sent (device or
// NIC allocators cover only some of them).
//
// Until a grpc+rdma server exists the allocator is plain aligned memory, as without the plugin.
// From then on tensors above a threshold lie in the arena, one sparse range of shareable memory that
// takes pages on first touch. When it is full, tensors get plain memory and are copied when sent:
// the arena never makes an allocation fail.
#ifndef RDMATENSOR_TENSORFLOW_ARENA_H_
#define RDMATENSOR_TENSORFLOW_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "xla/tsl/framework/allocator.h"

namespace rdmatensor {

class Arena {
 public:
  struct Usage {
    bool active;
    uint64_t limit_bytes, used_bytes, peak_bytes;
    // Requests that belonged into the arena and did not fit.
    uint64_t exhausted_allocations, exhausted_bytes;
  };

  // The process's arena; lives until the process ends.
  static Arena* Get();

  // Reserves the range; idempotent. `limit` 0 means three quarters of the machine's memory. Requests
  // of more than `threshold` bytes use the arena from now on. On failure everything stays as it was.
  absl::Status Activate(uint64_t limit, uint64_t threshold);

  bool active() const { return base_.load(std::memory_order_acquire) != nullptr; }
  char* base() const { return base_.load(std::memory_order_acquire); }
  uint64_t size() const { return size_; }
  uint64_t threshold() const { return threshold_; }
  bool Contains(const void* address) const {
    const char* base = base_.load(std::memory_order_relaxed);
    return base != nullptr && address >= base && address < base + size_;
  }

  // Memory inside the arena, or nullptr if it is not active or full.
  void* Allocate(size_t alignment, size_t bytes);
  // `address` must lie inside.
  void Free(void* address);
  // Allocates from the arena only; a tensor made with it is not initialized when it is full.
  tsl::Allocator* allocator() { return arena_only_.get(); }

  Usage GetUsage();
  void ResetUsage();

 private:
  Arena();

  std::mutex mutex_;  // Activate
  std::atomic<char*> base_{nullptr};
  uint64_t size_ = 0;
  uint64_t threshold_ = 0;
  std::unique_ptr<tsl::Allocator> heap_;  // divides the range
  std::unique_ptr<tsl::Allocator> arena_only_;
  std::atomic<uint64_t> exhausted_allocations_{0}, exhausted_bytes_{0};
  std::atomic<bool> warned_{false};  // not a counter: resetting those repeats no warning
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_ARENA_H_
