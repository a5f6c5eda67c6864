// SPDX-License-Identifier: Apache-2.0
//
// One connection between two processes, for tensors in one direction: the sender pushes, releases flow
// back. The receiver opens it; or the sender, if it is a client that its tasks need not reach. Every session that both take part in uses it, by whatever names it gives them.
#ifndef RDMATENSOR_TENSORFLOW_WIRE_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_WIRE_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "memory/lender.h"
#include "plan/plan_traffic.h"
#include "rdmatensor.h"
#include "stats/path_stats.h"
#include "step/fetcher.h"
#include "step/requests.h"

namespace rdmatensor {

class DestinationLink;
class Endpoint;
class Mailbox;
class SourcePeer;

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Which end this process is. Those that a peer opened are for sending, unless it says first that it will.
  enum class Role { kReceiver, kSender };
  // Takes over one reference to `handle` and becomes its context. The core's handlers keep the
  // channel alive until they call ReleaseFromCore (on_released).
  static std::shared_ptr<Channel> Adopt(rdt_channel* handle, Endpoint* endpoint, Role role,
                                        bool opened_here);
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
  Role role() const { return role_.load(std::memory_order_acquire); }
  bool opened_here() const { return opened_here_; }
  // The peer opened it to send. False: it serves tensors in the other direction already.
  bool BecomeReceiver();
  // Opens regions of the peer before its messages name them. Blocks.
  absl::Status OpenAhead(const std::vector<uint64_t>& region_keys);
  const std::string& transport() const { return transport_; }
  const std::string& peer_name() const { return peer_name_; }
  uint64_t max_notify() const { return max_notify_; }
  // The peer's memory can be used in place.
  bool can_map() const { return can_map_; }
  // What to count its tensors in, under the first name that a session gave the peer; set before the first
  // one goes.
  Traffic* traffic() const { return traffic_.load(std::memory_order_acquire); }
  // That name; empty before.
  std::string FirstName();
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

  // Receiver: the peers, as sessions name the process behind it, whose tensors come over it.
  void AddSource(std::shared_ptr<SourcePeer> source);
  // True if that was the last one.
  bool RemoveSource(const SourcePeer* source);
  std::vector<std::shared_ptr<SourcePeer>> Sources();
  // Held while one of them is announced: its messages must not mix with another one's.
  std::mutex announcing;
  bool announced = false;

  // Sender: the names under which the receiver takes tensors. False: it has more than any receiver.
  bool AddDestination(std::shared_ptr<DestinationLink> destination);
  std::vector<std::shared_ptr<DestinationLink>> Destinations();

  // Sender: what the receiver announced that it asked for, until it announces the name that this belongs
  // to. Progress thread.
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
  Channel(rdt_channel* handle, Endpoint* endpoint, Role role, bool opened_here);
  void NameLocked(Direction direction, const std::string& task);
  char* Prepare(size_t size);
  absl::Status Post(uint64_t immediate, char* message, size_t size);

  rdt_channel* const handle_;
  std::atomic<Role> role_;
  const bool opened_here_;
  std::string transport_, peer_name_;
  uint64_t max_notify_ = 0;
  bool can_map_ = false;
  std::atomic<Traffic*> traffic_{nullptr};
  std::mutex peers_mutex_;
  std::string first_name_;
  std::vector<std::shared_ptr<SourcePeer>> sources_;
  std::vector<std::shared_ptr<DestinationLink>> destinations_;
  Lender lender_;
  Fetcher fetcher_;
  PlanTraffic plan_;
  Requests requests_;
  std::shared_ptr<Channel> held_by_core_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_WIRE_CHANNEL_H_
