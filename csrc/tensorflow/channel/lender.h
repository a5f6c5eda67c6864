// SPDX-License-Identifier: Apache-2.0
//
// Tensors that a peer reads in place. Each stays alive until the peer releases it or can no longer reach this
// process's memory, and TensorFlow's copy-on-write keeps it unchanged.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_LENDER_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_LENDER_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace rdmatensor {

// Thread-safe. Ids come back from the peer, so every id is checked. A slot's id changes with each use, so a late
// or repeated release cannot end a newer loan.
class Lender {
 public:
  // Keeps a reference and returns the loan's id, below 2^56. False once ReleaseAll was called, or
  // when 2^24 loans are open.
  bool Lend(const tensorflow::Tensor& tensor, uint64_t* id) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    if (free_.empty()) {
      if (slots_.size() > kMaxIndex) return false;
      slots_.emplace_back();
      free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.tensor = tensor;
    slot.used = true;
    *id = (static_cast<uint64_t>(slot.generation) << kIndexBits) | index;
    return true;
  }

  // Ends one loan; false if `id` is not an open one.
  bool Release(uint64_t id) {
    tensorflow::Tensor dropped;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t index = id & kMaxIndex;
    if (index >= slots_.size()) return false;
    Slot& slot = slots_[index];
    if (!slot.used || slot.generation != (id >> kIndexBits)) return false;
    std::swap(dropped, slot.tensor);
    slot.used = false;
    ++slot.generation;
    free_.push_back(static_cast<uint32_t>(index));
    return true;
  }

  // Ends every loan and refuses new ones.
  void ReleaseAll() {
    std::vector<Slot> dropped;  // freed after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    slots_.swap(dropped);
    free_.clear();
  }

 private:
  static constexpr int kIndexBits = 24;
  static constexpr uint64_t kMaxIndex = (uint64_t{1} << kIndexBits) - 1;
  struct Slot {
    tensorflow::Tensor tensor;
    uint32_t generation = 0;
    bool used = false;
  };
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_LENDER_H_
