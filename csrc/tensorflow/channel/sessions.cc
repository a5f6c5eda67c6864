// SPDX-License-Identifier: Apache-2.0
#include "channel/sessions.h"

#include "tensorflow/core/distributed_runtime/session_mgr.h"

namespace rdmatensor {

std::shared_ptr<tensorflow::WorkerSession> Sessions::Find(const std::string& session) const {
  const tensorflow::WorkerEnv* const env = env_.load(std::memory_order_acquire);
  std::shared_ptr<tensorflow::WorkerSession> found;
  if (env == nullptr || env->session_mgr == nullptr ||
      !env->session_mgr->WorkerSessionForSession(session, &found).ok()) {
    return nullptr;
  }
  return found;
}

}  // namespace rdmatensor
