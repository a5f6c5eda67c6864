// SPDX-License-Identifier: Apache-2.0
//
// One connection between two tasks, for tensors in one direction: the receiver connects, the sender
// pushes, releases flow back.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fetcher.h"
#include "include/rdmatensor.h"
#include "lender.h"
#include "path_stats.h"
#include "plan_traffic.h"
#include "requests.h"

namespace rdmatensor {

class DestinationLink;
class Endpoint;
class Mailbox;
class SourcePeer;

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Takes over one reference to `handle` and becomes its context. The core's handlers keep the
  // channel alive until they call ReleaseFromCore (on_released).
  static std::shared_ptr<Channel> Adopt(rdt_channel* handle, Endpoint* endpoint);
  // The channel that `handle` is the context of, or nullptr.
  static Channel* FromHandle(const rdt_channel* handle);
  ~Channel();

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Posts one notification of `size` bytes, which `fill(char*)` writes. Never blocks. An error means
  // that nothing was posted.
  template <typename Fill>
  absl::Status Notify(uint64_t immediate, size_t size, const Fill& fill) {
    char* message = Prepare(size);
    fill(message);
    return Post(immediate, message, size);
  }
  template <typename Message>
  absl::Status NotifyMessage(uint64_t immediate, const Message& message) {
    return Notify(immediate, EncodedSize(message), [&](char* out) { Encode(message, out); });
  }
  absl::Status Notify(uint64_t immediate) { return Post(immediate, nullptr, 0); }

  // Ends traffic in both directions.
  void Close() { rdt_channel_close(handle_); }
  // The same, and what arrives meanwhile is not looked at.
  void Refuse() {
    refused = true;
    Close();
  }
  bool IsUp() const;
  const std::string& transport() const { return transport_; }
  const std::string& peer_name() const { return peer_name_; }
  uint64_t max_notify() const { return max_notify_; }
  // The peer's memory can be used in place.
  bool can_map() const { return can_map_; }
  // What to count its tensors in; set before the first one goes.
  Traffic* traffic() const { return traffic_.load(std::memory_order_acquire); }
  void CountFor(Direction direction, absl::string_view task) {
    traffic_.store(TrafficOf(direction, task, transport_), std::memory_order_release);
  }
  // For operations on it; the channel keeps its reference.
  rdt_channel* handle() const { return handle_; }

  // Receiver: brings tensors that lie in the sender's memory.
  Fetcher& fetcher() { return fetcher_; }
  // Sender: the tensors lent over this channel.
  Lender& lender() { return lender_; }

  // Sender: what the receiver asks for, if it does.
  Requests& requests() { return requests_; }

  // Both: the planned ones.
  PlanTraffic& plan() { return plan_; }

  // Whom it serves: at most one of them is set. Both outlive every channel.
  std::atomic<SourcePeer*> source{nullptr};
  std::atomic<DestinationLink*> destination{nullptr};

  // Sender: what the receiver announced that it asked for, until it is ready. Progress thread.
  std::vector<std::pair<int64_t, std::string>> asked;
  size_t asked_bytes = 0;

  // Nothing of this peer is looked at any more: it broke the protocol, its memory is out of reach, or
  // another channel has taken the place of this one.
  std::atomic<bool> refused{false};

  // Receiver: the mailbox of the step that arrived last.
  struct LastStep {
    std::mutex mutex;
    int64_t step_id = -1;
    std::weak_ptr<Mailbox> mailbox;
  };
  LastStep last_step;

  void ReleaseFromCore();

 private:
  Channel(rdt_channel* handle, Endpoint* endpoint);
  char* Prepare(size_t size);
  absl::Status Post(uint64_t immediate, char* message, size_t size);

  rdt_channel* const handle_;
  std::string transport_, peer_name_;
  uint64_t max_notify_ = 0;
  bool can_map_ = false;
  std::atomic<Traffic*> traffic_{nullptr};
  Lender lender_;
  Fetcher fetcher_;
  PlanTraffic plan_;
  Requests requests_;
  std::shared_ptr<Channel> held_by_core_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_H_
