// SPDX-License-Identifier: Apache-2.0
//
// The sender's view of one task that receives from it: the channel that the task opened, if it did,
// and the tensors that were produced before it was known how they will be fetched.
#ifndef RDMATENSOR_TENSORFLOW_LINKS_H_
#define RDMATENSOR_TENSORFLOW_LINKS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "channel.h"
#include "newest.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tsl/platform/refcount.h"

namespace rdmatensor {

class Endpoint;
class RdmaRendezvous;

// A tensor whose receiver has not shown yet whether it fetches (RPC) or takes pushes (channel).
struct PendingSend {
  PendingSend();
  PendingSend(PendingSend&&) noexcept;
  PendingSend& operator=(PendingSend&&) noexcept;
  ~PendingSend();

  tensorflow::Rendezvous::ParsedKey key;
  tensorflow::AllocatorAttributes attributes;
  tensorflow::Tensor tensor;
  bool is_dead = false;
  bool is_copy = false;
  uint64_t bytes = 0;
  // Set when the tensor cannot be pushed and lies in the local rendezvous already: why.
  const char* refer_reason = nullptr;
  // As in stock TensorFlow, an unclaimed tensor keeps its rendezvous.
  tsl::core::RefCountPtr<RdmaRendezvous> rendezvous;
};

// Thread-safe. Lives as long as its endpoint.
class DestinationLink {
 public:
  DestinationLink(Endpoint* endpoint, std::string task, std::chrono::seconds ttl);

  const std::string& task() const { return task_; }
  // The channel that it opened, or nullptr.
  std::shared_ptr<Channel> ReadyChannel();

  enum class Route {
    kPush,     // through `channel`
    kPulled,   // the receiver asked by RPC: the local rendezvous takes it
    kPending,  // kept
  };
  // Decides about one tensor. `is_copy`: of an eager operation. All those of a client share one step,
  // which never ends, so that each is lost by itself. `make_pending` is called, under the lock, only for
  // kPending: there is no channel, or the receiver has asked for this key by RPC and has no answer yet.
  template <typename MakePending>
  Route Offer(int64_t step_id, absl::string_view key, bool is_copy, const MakePending& make_pending,
              std::shared_ptr<Channel>* channel) {
    std::lock_guard<std::mutex> lock(mutex_);
    bool held = false;
    if (!steps_.empty()) {
      auto step = steps_.find(step_id);
      if (step != steps_.end() && TakePull(&step->second, key)) return Route::kPulled;
      held = step != steps_.end() && step->second.held.contains(key);
    }
    if (channel_ != nullptr && !held) {
      RecordLocked(step_id, key, is_copy);
      *channel = channel_;
      return Route::kPush;
    }
    StepLocked(step_id).pending[key].push_back(make_pending());
    return Route::kPending;
  }

  // True if a tensor of this step may go down `channel` without asking Offer: it is what Offer would
  // have answered, for any key.
  bool MayPush(int64_t step_id, const Channel* channel);

  // The receiver asked for `key` by RPC. True if it was pending: the caller puts it into the local
  // rendezvous. Otherwise it is remembered for Offer, and *done, which is called at least once, may end
  // it: a channel may be lost whose loss the receiver noticed first, and with it the tensor. An error if
  // the tensor may have been pushed down a channel that was lost.
  absl::StatusOr<bool> OnPull(int64_t step_id, absl::string_view key, PendingSend* pending,
                              tensorflow::Rendezvous::DoneCallback* done);

  // The receiver is told to ask for `key` by RPC; its request is then no news for Offer.
  void ExpectPull(int64_t step_id, absl::string_view key);

  // A receiver that used RPC before has requests under way: these keys of these steps.
  using Asked = std::vector<std::pair<int64_t, std::string>>;
  // Progress thread: the receiver is ready on `channel`. What was pending is pushed in the background,
  // except for `asked`, which it still expects by RPC.
  void Attach(std::shared_ptr<Channel> channel, const Asked& asked);
  // Progress thread: one of them has ended.
  void OnAnswered(Channel* channel, int64_t step_id, absl::string_view key);
  void OnDown(Channel* channel);

  // The step is over here: its tensors are dropped.
  void DropStep(int64_t step_id);
  // The step failed here: tells the receiver.
  void SendAbort(int64_t step_id, const absl::Status& status);

 private:
  using Counts = absl::flat_hash_map<std::string, int>;
  class Pull;
  struct Step {
    bool IsEmpty() const { return pending.empty() && pulled.empty() && held.empty(); }

    std::chrono::steady_clock::time_point created = std::chrono::steady_clock::now();
    // By key; nearly always one each, TensorFlow allows more.
    absl::flat_hash_map<std::string, std::vector<PendingSend>> pending;
    absl::flat_hash_map<std::string, std::vector<std::shared_ptr<Pull>>> pulled;
    Counts referred;
    // Whose tensors are not pushed: the receiver has an RPC request under way, or earlier tensors of the
    // key are being pushed.
    Counts held;
  };
  // Takes one of `key`; false if there is none.
  static bool Take(Counts* counts, absl::string_view key);
  static bool TakePull(Step* step, absl::string_view key);
  void ForgetPull(int64_t step_id, const std::string& key, const Pull* pull);
  struct Failure {
    int64_t step_id;
    absl::Status status;
  };
  Step& StepLocked(int64_t step_id);
  void RecordLocked(int64_t step_id, absl::string_view key, bool is_copy);
  void RecordStepLocked(int64_t step_id);
  void AnnounceLocked(int64_t step_id, const absl::Status& status);
  // What the channel carried may be lost with it: so are its steps, and the requests that wait in them.
  void LoseStepsLocked(std::vector<std::shared_ptr<Pull>>* failed);
  static void Fail(std::vector<std::shared_ptr<Pull>> pulls, const absl::Status& status);
  static void TakePulls(Step* step, absl::string_view key,
                        std::vector<std::shared_ptr<Pull>>* pulls);
  // Takes out what waits under `key` to be pushed; the key is held until it was.
  void TakePendingLocked(int64_t step_id, Step* step, const std::string& key,
                         std::vector<PendingSend>* pending);
  // Takes one hold from `key`; after the last, takes out what waits.
  void UnholdLocked(int64_t step_id, absl::string_view key, std::vector<PendingSend>* pending);
  // Pushes on another thread: it may copy large tensors, which the progress thread has no time for.
  void PushSoon(std::vector<PendingSend> pending, std::shared_ptr<Channel> channel);
  void PushPending(const std::vector<PendingSend>& pending,
                   const std::shared_ptr<Channel>& channel);

  Endpoint* const endpoint_;
  const std::string task_;
  const std::chrono::seconds ttl_;
  std::mutex mutex_;
  std::shared_ptr<Channel> channel_;
  absl::flat_hash_map<int64_t, Step> steps_;
  std::chrono::steady_clock::time_point last_sweep_ = std::chrono::steady_clock::now();
  // The steps pushed lately: when the channel is lost, what they pushed may be lost with it.
  int64_t last_step_ = -1;
  static constexpr size_t kRemembered = 1024;
  Newest<int64_t> recent_{kRemembered}, lost_{kRemembered};
  // The same of copies of eager operations, by step and key. The lost ones a receiver that connects is
  // told of, once.
  using Copy = std::pair<int64_t, std::string>;
  Newest<Copy> recent_copies_{kRemembered}, lost_copies_{kRemembered};
  std::vector<Copy> untold_copies_;
  // What a receiver that connects must be told first: lost steps and steps that failed here.
  std::deque<Failure> announcements_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_LINKS_H_
