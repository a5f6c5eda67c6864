// SPDX-License-Identifier: Apache-2.0
//
// Threads for what may wait for other calls.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_MAY_BLOCK_H_
#define RDMATENSOR_TENSORFLOW_CALLS_MAY_BLOCK_H_

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "tensorflow/core/platform/unbounded_work_queue.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

// Runs a closure on a thread of its own, which others use afterwards. A pool of limited size could be full of closures
// that wait for one that finds no thread.
inline void RunWhereItMayBlock(std::function<void()> run) {
  static auto* const threads =
      new tensorflow::UnboundedWorkQueue(tsl::Env::Default(), "rdmatensor_calls");
  threads->Schedule(std::move(run));
}

// Runs closures one after the other, in the order given, where they may block. Thread-safe; may be destroyed at any
// time, and what was given runs nevertheless.
class Turns {
 public:
  void Run(std::function<void()> run) {
    {
      std::lock_guard<std::mutex> lock(queue_->mutex);
      queue_->waiting.push_back(std::move(run));
      if (std::exchange(queue_->busy, true)) return;
    }
    RunWhereItMayBlock([queue = queue_] {
      std::unique_lock<std::mutex> lock(queue->mutex);
      while (!queue->waiting.empty()) {
        const std::function<void()> first = std::move(queue->waiting.front());
        queue->waiting.pop_front();
        lock.unlock();
        first();
        lock.lock();
      }
      queue->busy = false;
    });
  }

 private:
  struct Queue {
    std::mutex mutex;
    std::deque<std::function<void()>> waiting;
    bool busy = false;
  };
  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_MAY_BLOCK_H_
