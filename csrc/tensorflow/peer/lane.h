// SPDX-License-Identifier: Apache-2.0
//
// What a sender knows about one receiver in one session: the channel that its tensors go down, and what
// may be lost with that channel.
#ifndef RDMATENSOR_TENSORFLOW_PEER_LANE_H_
#define RDMATENSOR_TENSORFLOW_PEER_LANE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/newest.h"
#include "peer/peer_channel.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"

namespace rdmatensor {

// Not thread-safe: its DestinationLink's lock guards it.
struct Lane {
  static constexpr size_t kRemembered = 1024;
  // A copy of an eager operation, by step and key.
  using Copy = std::pair<int64_t, std::string>;
  struct Failure {
    int64_t step_id;
    absl::Status status;
  };

  // A tensor of this step goes down the channel.
  void Record(int64_t step_id, absl::string_view key, bool is_copy) {
    if (is_copy) {
      recent_copies.Add(Copy(step_id, key));
    } else if (step_id != last_step) {
      last_step = step_id;
      recent.Add(step_id);
    }
  }
  // The receiver is told of a failed step once it connects.
  void Announce(int64_t step_id, const absl::Status& status) {
    announcements.push_back({step_id, status});
    if (announcements.size() > kRemembered) announcements.pop_front();
  }

  // Whether the session's cluster is the one in which the name was found to be the channel's process. The
  // first tensor finds it so.
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

  // nullptr: the receiver has opened none yet, or more than one process has its name.
  std::shared_ptr<PeerChannel> channel;
  // The connections by which the session reached its cluster then. It gets others with another cluster.
  const tensorflow::WorkerCacheInterface* cluster = nullptr;
  std::weak_ptr<tensorflow::WorkerCacheInterface> cluster_lives;
  bool verifying = false;  // TensorFlow's cluster is being asked
  // The device of the process that has the name, as TensorFlow's cluster says; empty: not asked yet.
  std::string owner;
  // The processes that announced the name while another one had it.
  std::vector<std::weak_ptr<PeerChannel>> rivals;
  // The steps pushed lately: when the channel is lost, what they pushed may be lost with it.
  int64_t last_step = -1;
  Newest<int64_t> recent{kRemembered};
  // The same of copies of eager operations.
  Newest<Copy> recent_copies{kRemembered};
  // Those that were lost and that the receiver was not told of.
  std::vector<Copy> untold_copies;
  // Lost steps and steps that failed here: told to each process that connects.
  std::deque<Failure> announcements;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_LANE_H_
