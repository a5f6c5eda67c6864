// SPDX-License-Identifier: Apache-2.0
//
// One task as one cluster names it, and the channel over which it is called. Until there is one, and whenever it
// is lost, the caller uses TensorFlow's own client.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_REMOTE_TASK_H_
#define RDMATENSOR_TENSORFLOW_CALLS_REMOTE_TASK_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/backoff.h"
#include "calls/calls.h"
#include "service/tensor_service.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdmatensor {

// Thread-safe. Made by std::make_shared.
//
// The cluster is asked by its own connection which process the task is, and the channel leads to that process
// only: a restarted task is another process, and closes the old channel by its end. So a call reaches the process
// that TensorFlow's client would reach.
class RemoteTask final : public std::enable_shared_from_this<RemoteTask> {
 public:
  // `cluster`: TensorFlow's own connections.
  RemoteTask(TensorService* service, Schedule schedule, std::string task,
             std::shared_ptr<tensorflow::WorkerCacheInterface> cluster);

  const std::string& task() const { return task_; }
  const Settings& settings() const { return service_->settings(); }

  // The way to call the task, or nullptr. Then a channel is being opened in the background, unless an attempt failed
  // a short while ago. Never blocks.
  std::shared_ptr<Calls> Ready();

  using Found = std::function<void(const absl::StatusOr<std::shared_ptr<Calls>>&)>;
  // Gives `found` the way to call the task, or says why there is none, within three times DEADLINE_MS. Opens a
  // channel if none is up, even if an attempt failed a short while ago. `found` may block, and may be called before
  // this returns. If the task does not answer, the error is that of TensorFlow's client.
  void Find(Found found);

  // Asks the task a question of the plugin (channel/task_call.h) over TensorFlow's connection, and runs `done`, which may
  // block, after the answer, or without one after DEADLINE_MS.
  void AskOverGrpc(const char* key, const std::string& question, std::function<void()> done);

 private:
  // Returns the calls over the best channel to the process that was reached, or nullptr if there is none. Tells in
  // `may_improve` whether it is time to look for a better channel.
  std::shared_ptr<Calls> ReachedLocked(bool* may_improve);
  // Looks for a better transport than that of `present`, and moves the calls to it if there is one. Blocks.
  void Improve(const std::shared_ptr<Calls>& present);
  void Ask();
  void OnAddress(const absl::StatusOr<std::string>& encoded);
  // Makes `channel` carry calls, unless it does already. Returns nullptr if it has ended.
  std::shared_ptr<Calls> CallsOver(const std::shared_ptr<PeerChannel>& channel);
  absl::StatusOr<std::shared_ptr<Calls>> Connect(const absl::StatusOr<std::string>& encoded);

  TensorService* const service_;
  const Schedule schedule_;
  const std::string task_;
  const std::shared_ptr<tensorflow::WorkerCacheInterface> cluster_;
  std::mutex mutex_;
  // The channel owns it, or the memory of a dead peer would stay mapped until the next call.
  std::weak_ptr<Calls> calls_;
  std::string device_name_;  // of the process that was reached last
  bool reached_ = false;     // since the last loss
  bool connecting_ = false, given_up_ = false;
  std::vector<Found> waiting_;  // for the attempt
  Backoff backoff_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_REMOTE_TASK_H_
