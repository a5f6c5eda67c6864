// SPDX-License-Identifier: Apache-2.0
//
// Questions to another task's server. They travel as RecvBuf calls with keys of the plugin's own, because
// TensorFlow's connection is the only one that exists before a channel does. worker.cc answers them.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_TASK_CALL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_TASK_CALL_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdmatensor {

// Takes the answer to a question, or the reason why there is none.
using TaskAnswered = std::function<void(const absl::StatusOr<std::string>&)>;

// Asks `task`, as `from`, the question `value` of the kind `key`. `done` gets the answer on a thread of
// TensorFlow's RPC. A server without the plugin answers with an error at once. `workers` must live until
// then; nullptr means a cluster without tasks.
void AskTask(tensorflow::WorkerCacheInterface* workers, const std::string& task,
             const std::string& from, const std::string& key, const std::string& value,
             int timeout_ms, TaskAnswered done);

// Asks and waits for the answer.
absl::StatusOr<std::string> AskTask(tensorflow::WorkerCacheInterface* workers,
                                    const std::string& task, const std::string& from,
                                    const std::string& key, const std::string& value,
                                    int timeout_ms);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_TASK_CALL_H_
