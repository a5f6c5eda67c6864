// SPDX-License-Identifier: Apache-2.0
#include "receive/borrowed_buffer.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork_guard.h"
#include "channel/channel.h"
#include "channel/message.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::TensorBuffer;

class Foreign : public TensorBuffer {
 public:
  Foreign(void* data, uint64_t bytes) : TensorBuffer(data), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("rdmatensor_remote");
  }

 private:
  const uint64_t bytes_;
};

// What the buffer and its slices have in common.
class Root : public Foreign {
 public:
  Root(void* data, uint64_t bytes, uint64_t lend_id, std::shared_ptr<Channel> channel)
      : Foreign(data, bytes), lend_id_(lend_id), channel_(std::move(channel)) {}
  ~Root() override {
    // A lost channel needs no release: the sender takes its loans back when we let go of its memory. In a
    // forked child the channel refuses.
    (void)channel_->Notify(PackImmediate(MessageKind::kRelease, lend_id_));
  }
  TensorBuffer* root_buffer() override { return this; }

 private:
  const uint64_t lend_id_;
  const std::shared_ptr<Channel> channel_;
};

// Holds a reference to roots that only slices have besides, until they are gone. Nobody tells when, so a
// thread looks: seldom, the longer the slices stay, and there is none while there are no slices.
class Watch {
 public:
  // Never destroyed: tensors may go while static destructors run.
  static Watch* Get() {
    static Watch* const watch = new Watch;
    return watch;
  }

  void Add(Root* root) {
    std::lock_guard<std::mutex> lock(mutex_);
    roots_.push_back(root);
    pause_ = kShortestPause;
    if (std::exchange(looking_, true)) return;
    tsl::Env::Default()->SchedClosure([this] { Look(); });
  }

 private:
  static constexpr std::chrono::milliseconds kShortestPause{5}, kLongestPause{1000};

  void Look() {
    for (;;) {
      std::vector<Root*> unused;
      std::chrono::milliseconds pause;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        auto first = std::partition(roots_.begin(), roots_.end(),
                                    [](const Root* root) { return !root->RefCountIsOne(); });
        unused.assign(first, roots_.end());
        roots_.erase(first, roots_.end());
        pause_ = unused.empty() ? std::min(2 * pause_, kLongestPause) : kShortestPause;
        pause = pause_;
        looking_ = !roots_.empty();
        if (!looking_) pause = {};
      }
      for (Root* root : unused) root->Unref();
      if (pause.count() == 0) return;
      std::this_thread::sleep_for(pause);
    }
  }

  std::mutex mutex_;
  std::vector<Root*> roots_;
  std::chrono::milliseconds pause_ = kShortestPause;
  bool looking_ = false;
};

class Buffer : public Foreign {
 public:
  explicit Buffer(Root* root) : Foreign(root->data(), root->size()), root_(root) {}
  ~Buffer() override {
    if (root_->RefCountIsOne()) {
      root_->Unref();
    } else if (!fork_guard_
                    .InChild()) {  // a child keeps the root, which is its parent's to give back
      Watch::Get()->Add(root_);
    }
  }
  TensorBuffer* root_buffer() override { return root_; }

 private:
  Root* const root_;
  const ForkGuard fork_guard_;
};

}  // namespace

TensorBuffer* NewBorrowedBuffer(void* data, uint64_t bytes, uint64_t lend_id,
                                std::shared_ptr<Channel> channel) {
  return new Buffer(new Root(data, bytes, lend_id, std::move(channel)));
}

}  // namespace rdmatensor
