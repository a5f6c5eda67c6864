// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow promises that tensors of one key arrive in the order sent. Most are complete when their
// message arrives; some must be fetched first, and what follows them under the same key waits here.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_KEY_ORDER_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_KEY_ORDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "channel/message.h"

namespace rdmatensor {

// Thread-safe. One for each channel.
class KeyOrder {
 public:
  struct Kept {
    MessageKind kind;
    std::string data;
  };

  // Nothing is under way.
  bool IsEmpty() const { return under_way_count_.load() == 0; }

  // Limits what may wait and be under way, at kCost each. No real sender is so far ahead, so a peer that sends
  // more breaks the protocol.
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  static constexpr size_t kCost = 256;

  enum class Turn {
    kNow,    // nothing of this step and key is under way
    kLater,  // the message was copied, for Next
    kNever   // too much would wait
  };
  Turn Keep(int64_t step_id, absl::string_view key, MessageKind kind, const char* data,
            size_t size) {
    if (under_way_count_.load(std::memory_order_acquire) == 0) return Turn::kNow;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = under_way_.find(Name(step_id, std::string(key)));
    if (found == under_way_.end()) return Turn::kNow;
    if (!TakeLocked(size)) return Turn::kNever;
    found->second.push_back({kind, std::string(data, size)});
    return Turn::kLater;
  }

  // Marks a tensor as under way, after Keep has returned kNow. False: too many are.
  bool Begin(int64_t step_id, absl::string_view key) {
    std::lock_guard<std::mutex> lock(mutex_);
    Name name(step_id, std::string(key));
    if (under_way_.count(name) != 0) return true;  // planned tensors do not ask
    if (!TakeLocked(key.size())) return false;
    under_way_.try_emplace(std::move(name));
    under_way_count_.store(under_way_.size(), std::memory_order_release);
    return true;
  }

  // Call this when the tensor under way was delivered. It takes out the message that comes next, which is then
  // under way. False if there is none: then nothing is under way any more.
  bool Next(int64_t step_id, absl::string_view key, Kept* kept) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = under_way_.find(Name(step_id, std::string(key)));
    if (found == under_way_.end()) return false;
    if (found->second.empty()) {
      under_way_.erase(found);
      bytes_ -= key.size() + kCost;
      under_way_count_.store(under_way_.size(), std::memory_order_release);
      return false;
    }
    *kept = std::move(found->second.front());
    found->second.pop_front();
    bytes_ -= kept->data.size() + kCost;
    return true;
  }

 private:
  using Name = std::pair<int64_t, std::string>;

  bool TakeLocked(size_t bytes) {
    if (bytes > kMaxBytes - kCost || bytes_ > kMaxBytes - kCost - bytes) return false;
    bytes_ += bytes + kCost;
    return true;
  }

  std::atomic<size_t> under_way_count_{0};
  std::mutex mutex_;
  size_t bytes_ = 0;
  std::map<Name, std::deque<Kept>> under_way_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_KEY_ORDER_H_
