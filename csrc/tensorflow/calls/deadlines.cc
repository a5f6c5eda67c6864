// SPDX-License-Identifier: Apache-2.0
#include "calls/deadlines.h"

#include "xla/tsl/platform/env.h"

namespace rdmatensor {

Deadlines* Deadlines::Get() {
  static Deadlines* deadlines = new Deadlines;
  return deadlines;
}

Deadlines::Id Deadlines::Add(Clock::time_point when, std::function<void()> expired) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Id id(when, next_++);
  const auto added = pending_.emplace(id, std::move(expired)).first;
  if (!started_) {
    started_ = true;
    tsl::Env::Default()->SchedClosure([this] { Wait(); });
  } else if (added == pending_.begin()) {
    changed_.notify_one();
  }
  return id;
}

void Deadlines::Remove(const Id& id) {
  std::function<void()> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = pending_.find(id);
  if (found == pending_.end()) return;
  dropped = std::move(found->second);
  pending_.erase(found);
}

void Deadlines::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (pending_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = pending_.begin();
    if (first->first.first > Clock::now()) {
      changed_.wait_until(lock, Clock::time_point(first->first.first));
      continue;
    }
    const std::function<void()> expired = std::move(first->second);
    pending_.erase(first);
    lock.unlock();
    expired();
    lock.lock();
  }
}

}  // namespace rdmatensor
