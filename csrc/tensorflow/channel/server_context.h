// SPDX-License-Identifier: Apache-2.0
//
// What the parts of one server have in common, and the servers of this process.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_SERVER_CONTEXT_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_SERVER_CONTEXT_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "base/settings.h"
#include "memory/arena_exports.h"
#include "rdmatensor.h"

namespace rdmatensor {

class Peers;

// What the parts of one server have in common. Lives until the process ends, as TensorFlow's servers do.
struct ServerContext {
  std::string task;  // "/job:worker/replica:0/task:1"
  Settings settings;
  rdt_device* device = nullptr;
  std::string address;                    // the host:port by which peers reach the device
  std::unique_ptr<ArenaExports> exports;  // the arena as the device's peers see it
  Peers* peers = nullptr;
};

// The servers of this process. The newest server of a task is the one whose edges are planned. Thread-safe.
class ServerContexts {
 public:
  static ServerContexts* Get();
  void Add(const ServerContext* server);
  void Remove(const ServerContext* server);
  // nullptr if no server has this task.
  const ServerContext* Of(const std::string& task);
  // nullptr unless the process has exactly one.
  const ServerContext* Only();
  // Calls `visit` under a lock, which a server needs before it closes its device.
  void ForEach(absl::FunctionRef<void(const ServerContext&)> visit);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::string, const ServerContext*> servers_;  // by task
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_SERVER_CONTEXT_H_
