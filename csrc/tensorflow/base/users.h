// SPDX-License-Identifier: Apache-2.0
//
// Counts those who use something, until it is closed to them.
#ifndef RDMATENSOR_TENSORFLOW_BASE_USERS_H_
#define RDMATENSOR_TENSORFLOW_BASE_USERS_H_

#include <atomic>

namespace rdmatensor {

// Thread-safe. A user is counted before it looks whether this is closed, and this is closed before its users are counted.
// So each user either is seen by the one who closes, or is turned away.
class Users {
 public:
  // Leave has to follow, also if this is closed and the user turned away: false.
  bool Enter() {
    count_.fetch_add(1);
    return !closed_.load();
  }
  // Another use by one who has entered. Leave has to follow.
  void EnterAgain() { count_.fetch_add(1); }
  // True if this is closed and the last user has left: this may happen more than once.
  bool Leave() { return count_.fetch_sub(1) == 1 && closed_.load(); }

  void Close() { closed_.store(true); }
  void Open() { closed_.store(false); }
  bool is_closed() const { return closed_.load(); }
  // Closed, and nobody is inside.
  bool is_over() const { return closed_.load() && count_.load() == 0; }

 private:
  std::atomic<int> count_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_USERS_H_
