// SPDX-License-Identifier: Apache-2.0
//
// A map or set that keeps its newest entries only.
#ifndef RDMATENSOR_TENSORFLOW_BASE_RECENT_MAP_H_
#define RDMATENSOR_TENSORFLOW_BASE_RECENT_MAP_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"

namespace rdmatensor {

// A map, or without values a set, that forgets its oldest entries beyond `limit`: what is remembered of steps
// must not grow with a training that runs for weeks. Not thread-safe.
template <typename Key, typename Value = std::monostate>
class RecentMap {
 public:
  explicit RecentMap(size_t limit) : limit_(limit) {}

  // False if the key is there: its value stays, and its age.
  bool Add(const Key& key, Value value = {}) {
    if (!entries_.try_emplace(key, std::move(value)).second) return false;
    order_.push_back(key);
    if (order_.size() > limit_) {
      entries_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }

  // Takes time with the number of entries.
  void Remove(const Key& key) {
    if (entries_.erase(key) != 0) order_.erase(std::find(order_.begin(), order_.end(), key));
  }

  void Clear() {
    entries_.clear();
    order_.clear();
  }

  // nullptr if it is not there.
  const Value* Find(const Key& key) const {
    auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second;
  }

  bool Contains(const Key& key) const { return entries_.contains(key); }
  bool empty() const { return order_.empty(); }

  // From the oldest to the newest.
  const std::deque<Key>& keys() const { return order_; }

 private:
  const size_t limit_;
  absl::flat_hash_map<Key, Value> entries_;
  std::deque<Key> order_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_BASE_RECENT_MAP_H_
