// SPDX-License-Identifier: Apache-2.0
//
// The requests by RPC that a receiver has under way to one sender, and those of them that the sender was told of.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_RPC_REQUESTS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_RPC_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/message.h"

namespace rdmatensor {

// Not thread-safe: its Sender's lock guards it.
class RpcRequests {
 public:
  using Request = std::pair<int64_t, std::string>;  // step and key

  void Begin(Request request) { ++pending_[std::move(request)]; }

  // Returns whether the sender has to be told now that the request has ended.
  bool End(const Request& request) {
    TakeOne(&pending_, request);
    if (!TakeOne(&announced_, request)) return false;
    if (!ready_sent_) ended_early_.push_back(request);
    return ready_sent_;
  }

  // Returns whether they are too many to be announced.
  bool TooMany() const {
    size_t bytes = 0;
    for (const auto& [request, count] : pending_) {
      bytes += static_cast<size_t>(count) * RpcPendingBytes(request.second);
    }
    return bytes > kMaxRpcPendingBytes;
  }

  // Returns all of them, which are going to be announced on a new channel, before kReady.
  std::vector<Request> Announce() {
    std::vector<Request> all;
    for (const auto& [request, count] : pending_) {
      all.insert(all.end(), static_cast<size_t>(count), request);
    }
    announced_ = pending_;
    ended_early_.clear();
    ready_sent_ = false;
    return all;
  }

  // kReady was sent. Returns those that have ended since they were announced.
  std::vector<Request> OnReady() {
    ready_sent_ = true;
    return std::exchange(ended_early_, {});
  }

  // What was announced is void, because the channel is gone.
  void ForgetAnnounced() {
    announced_.clear();
    ended_early_.clear();
  }

 private:
  using Counts = absl::flat_hash_map<Request, int>;
  static bool TakeOne(Counts* counts, const Request& request) {
    auto found = counts->find(request);
    if (found == counts->end()) return false;
    if (--found->second == 0) counts->erase(found);
    return true;
  }

  Counts pending_, announced_;
  bool ready_sent_ = false;  // on the channel
  std::vector<Request> ended_early_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_RPC_REQUESTS_H_
