// SPDX-License-Identifier: Apache-2.0
//
// The state that a sender keeps for one receiver in one session: the channel for its tensors, and what may be
// lost with that channel.
#ifndef RDMATENSOR_TENSORFLOW_SEND_SEND_STATE_H_
#define RDMATENSOR_TENSORFLOW_SEND_SEND_STATE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/recent_map.h"
#include "channel/peer_channel.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"

namespace rdmatensor {

// Not thread-safe: its Receiver's lock guards it.
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

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_SEND_STATE_H_
