// SPDX-License-Identifier: Apache-2.0
#include "send/requests.h"

#include <utility>

namespace rdmatensor {
namespace {

// Limits the requests that wait for their tensors.
constexpr size_t kMaxRequests = 1 << 17;

}  // namespace

bool Requests::Take(int64_t step_id, absl::string_view key, Answer answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return true;  // in vain, as everything that is sent now
  Step& step = steps_[step_id];
  Waiting& waiting = step[key];
  if (waiting.requests == 0) {
    waiting.answers.push_back(std::move(answer));
    return false;
  }
  --requests_;
  if (--waiting.requests == 0) step.erase(key);
  if (step.empty()) steps_.erase(step_id);
  return true;
}

bool Requests::Add(int64_t step_id, absl::string_view key, Answer* answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return true;
  Step& step = steps_[step_id];
  Waiting& waiting = step[key];
  if (waiting.answers.empty()) {
    ++waiting.requests;
    return ++requests_ <= kMaxRequests;
  }
  *answer = std::move(waiting.answers.front());
  waiting.answers.erase(waiting.answers.begin());
  if (waiting.answers.empty()) step.erase(key);
  if (step.empty()) steps_.erase(step_id);
  return true;
}

void Requests::DropStep(int64_t step_id) {
  Step dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  for (const auto& entry : found->second) requests_ -= static_cast<size_t>(entry.second.requests);
  std::swap(dropped, found->second);
  steps_.erase(found);
}

void Requests::Close() {
  absl::flat_hash_map<int64_t, Step> dropped;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  steps_.swap(dropped);
}

}  // namespace rdmatensor
