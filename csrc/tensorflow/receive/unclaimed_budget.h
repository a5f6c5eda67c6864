// SPDX-License-Identifier: Apache-2.0
//
// The count of the memory that one connection's tensors use while no receive has asked for them, and its limit.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_UNCLAIMED_BUDGET_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_UNCLAIMED_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace rdmatensor {

// Thread-safe.
class UnclaimedBudget {
 public:
  // A sender may be ahead of its receiver, but no real one is ahead by this much.
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // The part of one tensor, given back when it is destroyed. Not thread-safe.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept : of_(std::move(other.of_)), bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (of_ != nullptr) of_->bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
    }
    // Counts `bytes`. False: there would be too much.
    bool Take(const std::shared_ptr<UnclaimedBudget>& of, int64_t bytes) {
      const bool fits = of->bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kMaxBytes;
      Share taken;
      taken.of_ = of;
      taken.bytes_ = bytes;
      if (fits) *this = std::move(taken);
      return fits;
    }
    const UnclaimedBudget* of() const { return of_.get(); }

   private:
    std::shared_ptr<UnclaimedBudget> of_;
    int64_t bytes_ = 0;
  };

 private:
  std::atomic<int64_t> bytes_{0};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_UNCLAIMED_BUDGET_H_
