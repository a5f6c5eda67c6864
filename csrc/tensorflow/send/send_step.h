// SPDX-License-Identifier: Apache-2.0
//
// What waits in one step for one receiver: tensors of which it is not known yet how they are received, and requests by
// RPC for tensors that are not here yet.
#ifndef RDMATENSOR_TENSORFLOW_SEND_SEND_STEP_H_
#define RDMATENSOR_TENSORFLOW_SEND_SEND_STEP_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/rpc_fallback.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {

// A tensor for which it is not known yet whether the receiver fetches it (RPC) or takes pushes (channel).
struct PendingSend {
  tensorflow::Rendezvous::ParsedKey key;
  tensorflow::AllocatorAttributes attributes;
  tensorflow::Tensor tensor;
  bool is_dead = false;
  bool is_copy = false;
  uint64_t bytes = 0;
  // Says why the tensor cannot be pushed. It is set when the tensor lies in the local rendezvous already.
  const char* refer_reason = nullptr;
  // As in stock TensorFlow, an unclaimed tensor keeps its rendezvous.
  RpcReference rpc;
  int64_t step_id = 0;
};

// One request by RPC from the receiver. It ends once.
class Pull {
 public:
  explicit Pull(tensorflow::Rendezvous::DoneCallback done) : done_(std::move(done)) {}
  void End(const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
           const tensorflow::Rendezvous::Args& receive_args, const tensorflow::Tensor& tensor,
           bool is_dead) {
    if (!ended_.exchange(true)) done_(status, send_args, receive_args, tensor, is_dead);
  }

 private:
  const tensorflow::Rendezvous::DoneCallback done_;
  std::atomic<bool> ended_{false};
};

// Not thread-safe: its Receiver's lock guards it.
struct SendStep {
  using Counts = absl::flat_hash_map<std::string, int>;
  using Pulls = std::vector<std::shared_ptr<Pull>>;

  bool IsEmpty() const { return pending.empty() && pulled.empty() && held.empty(); }

  // Takes one of `key`; false if there is none.
  static bool Take(Counts* counts, absl::string_view key) {
    auto found = counts->find(key);
    if (found == counts->end()) return false;
    if (--found->second == 0) counts->erase(found);
    return true;
  }
  // Takes out one tensor of `key`; false if there is none.
  bool TakePending(absl::string_view key, PendingSend* taken) {
    auto found = pending.find(key);
    if (found == pending.end()) return false;
    *taken = std::move(found->second.front());
    found->second.erase(found->second.begin());
    if (found->second.empty()) pending.erase(found);
    return true;
  }
  // Takes out the oldest request for `key`; false if there is none.
  bool TakePull(absl::string_view key) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return false;
    found->second.erase(found->second.begin());
    if (found->second.empty()) pulled.erase(found);
    return true;
  }
  // Takes out all requests for `key`.
  void TakePulls(absl::string_view key, Pulls* pulls) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return;
    pulls->insert(pulls->end(), found->second.begin(), found->second.end());
    pulled.erase(found);
  }
  void ForgetPull(absl::string_view key, const Pull* pull) {
    auto found = pulled.find(key);
    if (found == pulled.end()) return;
    Pulls& pulls = found->second;
    pulls.erase(std::remove_if(pulls.begin(), pulls.end(),
                               [pull](const auto& each) { return each.get() == pull; }),
                pulls.end());
    if (pulls.empty()) pulled.erase(found);
  }

  std::chrono::steady_clock::time_point created = std::chrono::steady_clock::now();
  std::string session;  // once anything is pending or held
  // By key; nearly always one each, TensorFlow allows more.
  absl::flat_hash_map<std::string, std::vector<PendingSend>> pending;
  absl::flat_hash_map<std::string, Pulls> pulled;
  Counts referred;
  // Keys whose tensors are not pushed, because the receiver has an RPC request under way or because earlier
  // tensors of the key are being pushed.
  Counts held;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_SEND_STEP_H_
