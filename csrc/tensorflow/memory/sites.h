// SPDX-License-Identifier: Apache-2.0
//
// The allocation sites whose memory comes from the arena.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_SITES_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_SITES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rdmatensor {

// The allocation sites seen so far, and which of them are marked. Thread-safe; looking up a known site takes no
// lock. The table has a fixed size. When it has seen too many sites, as with programs that keep making graphs, it
// forgets all of them and learns the sites in use again.
class Sites {
 public:
  // At most three quarters of `slots`, a power of two, are in use.
  explicit Sites(size_t slots)
      : mask_(slots - 1), most_(slots / 4 * 3), slots_(new std::atomic<uint64_t>[slots]()) {}

  // The identity of the site whose hash this is; never 0.
  static uint64_t FromHash(uint64_t hash) { return hash > kMarked ? hash & ~kMarked : 2; }

  // Remembers `site`. True if it is marked.
  bool See(uint64_t site) {
    std::atomic<uint64_t>* const slot = SlotOf(site);
    return slot != nullptr && (slot->load(std::memory_order_relaxed) & kMarked) != 0;
  }

  // True if it was not marked before.
  bool Mark(uint64_t site) {
    std::atomic<uint64_t>* const slot = SlotOf(site);
    // Fails if the site is marked already or was forgotten just now.
    if (slot == nullptr || !slot->compare_exchange_strong(site, site | kMarked)) return false;
    marked_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  uint64_t seen() const { return seen_.load(std::memory_order_relaxed); }
  uint64_t marked() const { return marked_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kMarked = 1;

  std::atomic<uint64_t>* SlotOf(uint64_t site) {
    // Skips the bit that marks. The number of probes bounds the loop.
    for (size_t probe = 0, at = site >> 1; probe <= mask_; ++probe, ++at) {
      std::atomic<uint64_t>& slot = slots_[at & mask_];
      uint64_t held = slot.load(std::memory_order_relaxed);
      if (held == 0 && slot.compare_exchange_strong(held, site)) {
        if (seen_.fetch_add(1, std::memory_order_relaxed) >= most_) Forget();
        return &slot;
      }
      if ((held & ~kMarked) == site) return &slot;
    }
    return nullptr;
  }

  void Forget() {
    std::lock_guard<std::mutex> lock(forgetting_);
    if (seen() < most_) return;  // another thread did it
    seen_.store(0, std::memory_order_relaxed);
    marked_.store(0, std::memory_order_relaxed);
    for (size_t i = 0; i <= mask_; ++i) slots_[i].store(0, std::memory_order_relaxed);
  }

  const size_t mask_;
  const uint64_t most_;
  const std::unique_ptr<std::atomic<uint64_t>[]> slots_;  // 0: free
  std::atomic<uint64_t> seen_{0}, marked_{0};
  std::mutex forgetting_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_SITES_H_
