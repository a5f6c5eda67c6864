// SPDX-License-Identifier: Apache-2.0
#include "channel/server_context.h"

namespace rdmatensor {

ServerContexts* ServerContexts::Get() {
  static ServerContexts* servers = new ServerContexts;
  return servers;
}

void ServerContexts::Add(const ServerContext* server) {
  std::lock_guard<std::mutex> lock(mutex_);
  servers_[server->task] = server;
}

void ServerContexts::Remove(const ServerContext* server) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = servers_.find(server->task);
  if (found != servers_.end() && found->second == server) servers_.erase(found);
}

const ServerContext* ServerContexts::Of(const std::string& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = servers_.find(task);
  return found == servers_.end() ? nullptr : found->second;
}

const ServerContext* ServerContexts::Only() {
  std::lock_guard<std::mutex> lock(mutex_);
  return servers_.size() == 1 ? servers_.begin()->second : nullptr;
}

void ServerContexts::ForEach(absl::FunctionRef<void(const ServerContext&)> visit) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : servers_) visit(*entry.second);
}

}  // namespace rdmatensor
