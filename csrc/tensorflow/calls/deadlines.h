// SPDX-License-Identifier: Apache-2.0
//
// Things to do at a time, unless they are called off. Calls have time-outs, and few of them ever expire.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_DEADLINES_H_
#define RDMATENSOR_TENSORFLOW_CALLS_DEADLINES_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace rdmatensor {

// Thread-safe. One thread, which the first deadline starts, waits for all of them.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = std::pair<Clock::time_point, uint64_t>;

  // Lives until the process ends.
  static Deadlines* Get();

  // Runs `expired` on the waiting thread at `when`. It must not block.
  Id Add(Clock::time_point when, std::function<void()> expired);
  // Does nothing if it has expired.
  void Remove(const Id& id);

 private:
  void Wait();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  uint64_t next_ = 0;
  std::map<Id, std::function<void()>> pending_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_DEADLINES_H_
