// SPDX-License-Identifier: Apache-2.0
//
// Asks a task that sends where its device is, through TensorFlow's own connections.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_WHEREABOUTS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_WHEREABOUTS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "channel/message.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdmatensor {

struct Whereabouts {
  // Not OK if the task does not answer.
  absl::Status status;
  // Otherwise says why it has no device for this process; empty if it has.
  std::string why_none;
  bool may_heal = false;  // the same process may have one later
  AddressAnswer answer;
};

// Asks `task` in the name of `asker`. `done` is called on a thread that may block.
void AskWhereabouts(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                    const std::string& task, const std::string& asker, int timeout_ms,
                    std::function<void(const Whereabouts&)> done);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_WHEREABOUTS_H_
