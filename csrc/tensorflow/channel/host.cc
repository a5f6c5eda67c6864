// SPDX-License-Identifier: Apache-2.0
#include "channel/host.h"

namespace rdmatensor {

Hosts* Hosts::Get() {
  static Hosts* hosts = new Hosts;
  return hosts;
}

void Hosts::Add(const Host* host) {
  std::lock_guard<std::mutex> lock(mutex_);
  hosts_[host->task] = host;
}

void Hosts::Remove(const Host* host) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = hosts_.find(host->task);
  if (found != hosts_.end() && found->second == host) hosts_.erase(found);
}

const Host* Hosts::Of(const std::string& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = hosts_.find(task);
  return found == hosts_.end() ? nullptr : found->second;
}

const Host* Hosts::Only() {
  std::lock_guard<std::mutex> lock(mutex_);
  return hosts_.size() == 1 ? hosts_.begin()->second : nullptr;
}

void Hosts::ForEach(absl::FunctionRef<void(const Host&)> visit) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : hosts_) visit(*entry.second);
}

}  // namespace rdmatensor
