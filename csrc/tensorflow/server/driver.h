// SPDX-License-Identifier: Apache-2.0
//
// Channels for the tensors of a client that drives a cluster by eager operations. TensorFlow lets tasks fetch
// what a client sends, or packs it into RPC, because tasks need not reach the client. Here the client opens
// the channels itself.
#ifndef RDMATENSOR_TENSORFLOW_SERVER_DRIVER_H_
#define RDMATENSOR_TENSORFLOW_SERVER_DRIVER_H_

#include <chrono>
#include <string>
#include <vector>

#include "channel/message.h"
#include "service/tensor_service.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace rdmatensor {

// Returns the names of all tasks of the cluster except `self`.
std::vector<std::string> OtherTasks(const tensorflow::ServerDef& server_def,
                                    const std::string& self);

// Opens a channel to each of `tasks`, for what `service`'s server, `self`, sends to them in `session`. Blocks
// for three times DEADLINE_MS at most, and for `patience` if a task does not run yet. An error says why
// one of them failed: the task has no plugin, or no transport reaches it.
absl::Status OpenChannels(TensorService* service, const std::string& session,
                          const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                          const std::vector<std::string>& tasks, const AddressAnswer& self,
                          std::chrono::milliseconds patience);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVER_DRIVER_H_
