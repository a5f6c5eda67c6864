// SPDX-License-Identifier: Apache-2.0
//
// What a sender keeps for one receiver: by session, where its tensors go; by step, what waits; and what was lost.
#ifndef RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_
#define RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/recent_map.h"
#include "channel/channel.h"
#include "channel/peer_channel.h"
#include "channel/rpc_fallback.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {

// For one receiver in one session: the channel for its tensors, and what may be lost with that channel.
struct SendState {
  static constexpr size_t kRemembered = 1024;
  // A copy of an eager operation, by step and key.
  using Copy = std::pair<int64_t, std::string>;

  // Records that a tensor of this step goes down the channel.
  void Record(int64_t step_id, absl::string_view key, bool is_copy) {
    if (is_copy) {
      recent_copies.Add(Copy(step_id, key));
    } else if (step_id != last_step) {
      last_step = step_id;
      recent.Add(step_id);
    }
  }

  // Returns whether the session still uses the cluster in which the name was found to be the channel's process.
  // The first tensor sets that cluster.
  bool IsVerified(tensorflow::WorkerSession* session) {
    if (session == nullptr) return true;
    if (cluster == nullptr) SetCluster(session->GetSharedWorkerCache());
    return cluster == session->worker_cache() && !cluster_lives.expired();
  }
  void SetCluster(const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers) {
    cluster = workers.get();
    cluster_lives = workers;
    verifying = false;
  }

  // Returns whether it says no more than a new one would.
  bool IsIdle() const {
    return channel == nullptr && owner.empty() && !verifying && recent.empty() &&
           recent_copies.empty() && untold_copies.empty() && lost_steps.empty() &&
           std::all_of(rivals.begin(), rivals.end(),
                       [](const auto& each) { return each.expired(); });
  }

  // nullptr: the receiver has opened none yet, or more than one process has its name.
  std::shared_ptr<PeerChannel> channel;
  // The connections by which the session reached its cluster then. Another cluster has other connections.
  const tensorflow::WorkerCacheInterface* cluster = nullptr;
  std::weak_ptr<tensorflow::WorkerCacheInterface> cluster_lives;
  bool verifying = false;  // TensorFlow's cluster is being asked
  // The device of the process that has the name, as TensorFlow's cluster says; empty: not asked yet.
  std::string owner;
  // The processes that announced the name while another one had it.
  std::vector<std::weak_ptr<PeerChannel>> rivals;
  // The steps pushed lately: when the channel is lost, what they pushed may be lost with it.
  int64_t last_step = -1;
  RecentMap<int64_t> recent{kRemembered};
  // The copies of eager operations that were pushed lately.
  RecentMap<Copy> recent_copies{kRemembered};
  // The lost copies of which the receiver was not told yet.
  std::vector<Copy> untold_copies;
  // The steps whose tensors were lost with a channel. Each process that connects is told of them.
  RecentMap<int64_t> lost_steps{kRemembered};
};

// A tensor for which it is not known yet whether the receiver fetches it (RPC) or takes pushes (channel).
struct PendingSend {
  tensorflow::Rendezvous::ParsedKey key;
  tensorflow::AllocatorAttributes attributes;
  tensorflow::Tensor tensor;
  bool is_dead = false;
  bool is_copy = false;
  uint64_t bytes = 0;
  // Says why the tensor cannot be pushed. It is set when the tensor lies in the local rendezvous already.
  const char* refer_reason = nullptr;
  // As in stock TensorFlow, an unclaimed tensor keeps its rendezvous.
  RpcReference rpc;
  int64_t step_id = 0;
};

// One request by RPC from the receiver. It ends once.
class Pull {
 public:
  explicit Pull(tensorflow::Rendezvous::DoneCallback done) : done_(std::move(done)) {}
  void End(const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
           const tensorflow::Rendezvous::Args& receive_args, const tensorflow::Tensor& tensor,
           bool is_dead) {
    if (!ended_.exchange(true)) done_(status, send_args, receive_args, tensor, is_dead);
  }

 private:
  const tensorflow::Rendezvous::DoneCallback done_;
  std::atomic<bool> ended_{false};
};

// What waits in one step for one receiver: tensors of which it is not known yet how they are received, and requests by
// RPC for tensors that are not here yet.
struct SendStep {
  using Counts = absl::flat_hash_map<std::string, int>;
  using Pulls = std::vector<std::shared_ptr<Pull>>;

  bool IsEmpty() const { return pending.empty() && pulled.empty() && held.empty(); }

  // Takes one of `key`; false if there is none.
  static bool Take(Counts* counts, absl::string_view key) {
    auto found = counts->find(key);
    if (found == counts->end()) return false;
    if (--found->second == 0) counts->erase(found);
    return true;
  }
  // Takes out one tensor of `key`; false if there is none.
  bool TakePending(absl::string_view key, PendingSend* taken) {
    auto found = pending.find(key);
    if (found == pending.end()) return false;
    *taken = std::move(found->second.front());
    found->second.erase(found->second.begin());
    if (found->second.empty()) pending.erase(found);
    return true;
  }
  // Takes out the oldest request for `key`; false if there is none.
  bool TakePull(absl::string_view key) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return false;
    found->second.erase(found->second.begin());
    if (found->second.empty()) pulled.erase(found);
    return true;
  }
  // Takes out all requests for `key`.
  void TakePulls(absl::string_view key, Pulls* pulls) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return;
    pulls->insert(pulls->end(), found->second.begin(), found->second.end());
    pulled.erase(found);
  }
  void ForgetPull(absl::string_view key, const Pull* pull) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return;
    Pulls& pulls = found->second;
    pulls.erase(std::remove_if(pulls.begin(), pulls.end(),
                               [pull](const auto& each) { return each.get() == pull; }),
                pulls.end());
    if (pulls.empty()) pulled.erase(found);
  }

  std::chrono::steady_clock::time_point created = std::chrono::steady_clock::now();
  std::string session;  // once anything is pending or held
  // By key; nearly always one each, TensorFlow allows more.
  absl::flat_hash_map<std::string, std::vector<PendingSend>> pending;
  absl::flat_hash_map<std::string, Pulls> pulled;
  Counts referred;
  // Keys whose tensors are not pushed, because the receiver has an RPC request under way or because earlier
  // tensors of the key are being pushed.
  Counts held;
};

// Not thread-safe: its Receiver's lock guards it.
class SendStates {
 public:
  explicit SendStates(std::chrono::seconds ttl) : ttl_(ttl) {}

  // The receiver in one session; nullptr if more sessions name it than any real process takes part in.
  SendState* Of(const std::string& session);
  // nullptr if nothing is known of the session.
  SendState* Find(const std::string& session);
  absl::flat_hash_map<std::string, SendState>& all() { return states_; }
  // Returns what is forgotten, which is freed without the lock.
  absl::flat_hash_map<std::string, SendState>::node_type Forget(const std::string& session) {
    return states_.extract(session);
  }
  // Forgets what says no more than something new would. True if nothing is left.
  bool ForgetIdle();

  SendStep& Step(int64_t step_id);
  // nullptr if nothing waits in it.
  SendStep* FindStep(int64_t step_id);
  SendStep TakeStep(int64_t step_id);

  // Gives the session's state to `channel`. False if another process has the name; then nobody gets the state, unless
  // it is known whose name it is.
  struct Admitted {
    std::vector<std::shared_ptr<PeerChannel>> refused;  // their processes must fetch
    std::shared_ptr<PeerChannel> replaced;  // the same process used it before, and it is lost
    std::shared_ptr<PeerChannel> left;      // the same process has paused it
    SendStep::Pulls failed;
  };
  bool Admit(const std::string& session, const std::shared_ptr<PeerChannel>& channel,
             Admitted* admitted);

  // Takes out what waits for the state's channel and is not held, unless that is paused. If it takes out anything, a
  // push has begun.
  std::vector<PendingSend> TakePending(const std::string& session, SendState* state);
  // Takes one hold from `key`; after the last, takes out what waits, unless `pending` is nullptr, or the step's
  // tensors go down another channel by now.
  void Unhold(const Channel* channel, int64_t step_id, absl::string_view key,
              std::vector<PendingSend>* pending);

  // Marks the steps of the state's channel as lost, with what the channel carried, and takes out the requests that
  // wait in them.
  void LoseSteps(const std::string& session, SendState* state, SendStep::Pulls* failed);
  // The step, or this key of it, was pushed down a channel that was lost.
  bool WasLost(int64_t step_id, absl::string_view key) const;

 private:
  // Nothing is under way on the state's channel any more: forgets what went down it.
  void ForgetSent(const std::string& session, SendState* state);
  // Takes out what waits under `key` to be pushed; the key is held until it was.
  static void TakeKey(int64_t step_id, SendStep* step, const std::string& key, SendState* state,
                      std::vector<PendingSend>* pending);

  const std::chrono::seconds ttl_;
  absl::flat_hash_map<std::string, SendState> states_;  // by session
  absl::flat_hash_map<int64_t, SendStep> steps_;
  std::chrono::steady_clock::time_point last_sweep_ = std::chrono::steady_clock::now();
  // The steps and copies that were pushed down channels that were lost.
  RecentMap<int64_t> lost_{SendState::kRemembered};
  RecentMap<SendState::Copy> lost_copies_{SendState::kRemembered};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_SEND_STATES_H_
