// SPDX-License-Identifier: Apache-2.0
//
// The times at which something that failed is tried again.
#ifndef RDMATENSOR_TENSORFLOW_BASE_BACKOFF_H_
#define RDMATENSOR_TENSORFLOW_BASE_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <random>

#include "base/random.h"

namespace rdmatensor {

// When something that failed is tried again: after `first`, then after twice as long, up to kMostDoublings
// times that; each time up to a quarter sooner or later, so that many who fail together do not return
// together. The caller locks.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  // `first` of zero: never.
  explicit Backoff(Milliseconds first) : first_(first) {}

  bool enabled() const { return first_.count() > 0; }
  // What the last failure cost, without jitter; zero after Reset.
  Milliseconds delay() const { return delay_; }
  Clock::time_point next() const { return next_; }
  bool Due() const { return Clock::now() >= next_; }
  // Returns whether a way that has worked since `since` counts as stable: it has lasted for a multiple of the last
  // delay.
  bool IsStable(Clock::time_point since) const { return Clock::now() - since >= kLasting * delay_; }

  void Failed() {
    delay_ = delay_.count() == 0 ? first_ : std::min(2 * delay_, first_ * kMostDoublings);
    std::uniform_real_distribution<double> jitter(0.75, 1.25);
    next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(delay_ * jitter(random_));
  }
  void Reset() { delay_ = Milliseconds(0); }

 private:
  static constexpr int kMostDoublings = 64, kLasting = 8;
  const Milliseconds first_;
  Milliseconds delay_{0};
  Clock::time_point next_{};
  std::minstd_rand random_{static_cast<std::minstd_rand::result_type>(RandomBits())};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_BACKOFF_H_
