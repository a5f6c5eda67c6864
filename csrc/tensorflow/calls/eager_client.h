// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's clients of eager contexts at other tasks, which call over channels where channels are up.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_EAGER_CLIENT_H_
#define RDMATENSOR_TENSORFLOW_CALLS_EAGER_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "calls/remote_task.h"
#include "tensorflow/core/distributed_runtime/eager/eager_client.h"

namespace rdmatensor {

// Wraps `stock`, TensorFlow's own clients. `task_of` returns the task of a name, or nullptr for one that is not to be
// called over channels; it must be callable as long as the result lives.
std::unique_ptr<tensorflow::eager::EagerClientCache> NewControlEagerClientCache(
    std::function<std::shared_ptr<RemoteTask>(const std::string&)> task_of,
    std::unique_ptr<tensorflow::eager::EagerClientCache> stock);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_EAGER_CLIENT_H_
