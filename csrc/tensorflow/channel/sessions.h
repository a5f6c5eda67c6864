// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's sessions at one server.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_SESSIONS_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_SESSIONS_H_

#include <atomic>
#include <memory>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"

namespace rdmatensor {

// TensorFlow's sessions at one server. Thread-safe.
class Sessions {
 public:
  // Sets where sessions are looked up, before the first one begins. `env` lives as long as the process.
  void Serve(const tensorflow::WorkerEnv* env) { env_.store(env, std::memory_order_release); }
  // nullptr if the session is over. Takes locks of TensorFlow.
  std::shared_ptr<tensorflow::WorkerSession> Find(const std::string& session) const;

 private:
  std::atomic<const tensorflow::WorkerEnv*> env_{nullptr};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_SESSIONS_H_
