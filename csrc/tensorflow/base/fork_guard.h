// SPDX-License-Identifier: Apache-2.0
//
// Forked children. One has its parent's objects, but not the threads that might hold their locks, and what it
// does to memory that processes share would reach its parent and its parent's peers.
#ifndef RDMATENSOR_TENSORFLOW_BASE_FORK_GUARD_H_
#define RDMATENSOR_TENSORFLOW_BASE_FORK_GUARD_H_

#include <pthread.h>

#include <atomic>

namespace rdmatensor {

// The number of forks between this process and the one that loaded the plugin.
inline std::atomic<unsigned> fork_depth{0};
inline const bool watches_forks = pthread_atfork(nullptr, nullptr, [] {
                                    fork_depth.fetch_add(1, std::memory_order_relaxed);
                                  }) == 0;

// The process that made this object. Thread-safe.
class ForkGuard {
 public:
  // True in a child that was forked since.
  bool InChild() const { return depth_ != fork_depth.load(std::memory_order_relaxed); }

 private:
  unsigned depth_ = fork_depth.load(std::memory_order_relaxed);
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_FORK_GUARD_H_
