// SPDX-License-Identifier: Apache-2.0
//
// ABLATION=rpc, for measurements only: a receiver asks for each tensor, as it does in RPC, instead of
// being sent it. This is the sender's half, in which the requests and tensors of one channel meet.
#ifndef RDMATENSOR_TENSORFLOW_SEND_REQUESTS_H_
#define RDMATENSOR_TENSORFLOW_SEND_REQUESTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// Thread-safe.
class Requests {
 public:
  using Answer = std::function<void()>;

  // The receiver will ask, before it is ready. Progress thread.
  void Expect() { expected_.store(true, std::memory_order_release); }
  bool expected() const { return expected_.load(std::memory_order_acquire); }

  // Announces a tensor. True if it was requested: then the caller sends it. Otherwise `answer`, which sends
  // it, is kept.
  bool Take(int64_t step_id, absl::string_view key, Answer answer);
  // Adds a request. *answer is what was kept for it; if it is empty, the request is kept. False: there are
  // more requests than any real receiver makes.
  bool Add(int64_t step_id, absl::string_view key, Answer* answer);

  // Drop what is kept for a step that is over, or for all steps.
  void DropStep(int64_t step_id);
  void Close();

 private:
  struct Waiting {
    int requests = 0;
    std::vector<Answer> answers;
  };
  using Step = absl::flat_hash_map<std::string, Waiting>;  // by key

  std::atomic<bool> expected_{false};
  std::mutex mutex_;
  bool closed_ = false;
  size_t requests_ = 0;
  absl::flat_hash_map<int64_t, Step> steps_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_REQUESTS_H_
