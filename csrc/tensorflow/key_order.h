// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow promises that tensors of one key arrive in the order sent. Most are complete when their
// message arrives; some must be fetched first, and what follows them under the same key waits here.
#ifndef RDMATENSOR_TENSORFLOW_KEY_ORDER_H_
#define RDMATENSOR_TENSORFLOW_KEY_ORDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "message.h"

namespace rdmatensor {

// Thread-safe. One for each channel.
class KeyOrder {
 public:
  struct Kept {
    MessageKind kind;
    std::string data;
  };

  // True if a tensor of this step and key is under way: the message was copied, for Next.
  bool Keep(int64_t step_id, absl::string_view key, MessageKind kind, const char* data,
            size_t size) {
    if (under_way_count_.load(std::memory_order_acquire) == 0) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = under_way_.find(Name(step_id, std::string(key)));
    if (found == under_way_.end()) return false;
    found->second.push_back({kind, std::string(data, size)});
    return true;
  }

  // From now on one is under way. Only where Keep was false.
  void Begin(int64_t step_id, absl::string_view key) {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_.try_emplace(Name(step_id, std::string(key)));
    under_way_count_.store(under_way_.size(), std::memory_order_release);
  }

  // The one under way was delivered: takes out the message that comes next, which then is under way.
  // False if there is none, and nothing is under way any more.
  bool Next(int64_t step_id, absl::string_view key, Kept* kept) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = under_way_.find(Name(step_id, std::string(key)));
    if (found == under_way_.end()) return false;
    if (found->second.empty()) {
      under_way_.erase(found);
      under_way_count_.store(under_way_.size(), std::memory_order_release);
      return false;
    }
    *kept = std::move(found->second.front());
    found->second.pop_front();
    return true;
  }

 private:
  using Name = std::pair<int64_t, std::string>;

  std::atomic<size_t> under_way_count_{0};
  std::mutex mutex_;
  std::map<Name, std::deque<Kept>> under_way_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_KEY_ORDER_H_
