// SPDX-License-Identifier: Apache-2.0
//
// Counts those who use something, until it is closed to them.
#ifndef RDMATENSOR_TENSORFLOW_BASE_USE_GATE_H_
#define RDMATENSOR_TENSORFLOW_BASE_USE_GATE_H_

#include <atomic>

namespace rdmatensor {

// Thread-safe. A user counts itself before it looks whether this is closed, and whoever closes this does so before it
// looks at the count. So each user is either seen by the one who closes, or turned away.
class UseGate {
 public:
  // Returns false if this is closed. Leave has to follow in either case.
  bool Enter() {
    count_.fetch_add(1);
    return !closed_.load();
  }
  // Another use by one who has entered. Leave has to follow.
  void EnterAgain() { count_.fetch_add(1); }
  // Returns whether this is closed and the last user has left, which may happen more than once.
  bool Leave() { return count_.fetch_sub(1) == 1 && closed_.load(); }

  void Close() { closed_.store(true); }
  void Open() { closed_.store(false); }
  bool is_closed() const { return closed_.load(); }
  // Returns whether this is closed and has no users.
  bool is_over() const { return closed_.load() && count_.load() == 0; }

 private:
  std::atomic<int> count_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_USE_GATE_H_
