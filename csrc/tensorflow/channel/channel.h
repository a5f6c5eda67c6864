// SPDX-License-Identifier: Apache-2.0
//
// One connection between two processes, for tensors in one direction: the sender pushes, releases flow
// back. Every session that both take part in uses it, by whatever names it gives them.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/lender.h"
#include "rdmatensor.h"
#include "stats/path_stats.h"

namespace rdmatensor {

// Thread-safe. Always owned by a std::shared_ptr.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  virtual ~Channel();
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
  // Closes the channel and ignores what arrives meanwhile.
  void Refuse() {
    refused = true;
    Close();
  }
  // Does the same, with one warning that says how the peer broke the protocol.
  void RefuseBroken(absl::string_view how);
  void RefuseMalformed() { RefuseBroken("sent a malformed message"); }
  bool IsUp() const;
  const std::string& transport() const { return transport_; }
  const std::string& peer_name() const { return peer_name_; }
  uint64_t max_notify() const { return max_notify_; }
  // The peer's memory can be used in place.
  bool can_map() const { return can_map_; }
  // The counters of its tensors, under the first name that a session gave the peer. They are set before the
  // first tensor travels.
  Traffic* traffic() const { return traffic_.load(std::memory_order_acquire); }
  // A session calls the peer `task`. The first name counts.
  void SetName(Direction direction, const std::string& task);
  // The first name that a session gave the peer; empty before.
  std::string FirstName();
  // The core's channel, for operations on it. The reference stays with this object.
  rdt_channel* handle() const { return handle_; }

  // Sender: the tensors lent over this channel.
  Lender& lender() { return lender_; }

  // All further messages are ignored: the peer broke the protocol, its memory is out of reach, or
  // another channel has replaced this one.
  std::atomic<bool> refused{false};

 protected:
  // Takes over one reference to `handle`.
  explicit Channel(rdt_channel* handle);

 private:
  char* Prepare(size_t size);
  absl::Status Post(uint64_t immediate, char* message, size_t size);

  rdt_channel* const handle_;
  std::string transport_, peer_name_;
  uint64_t max_notify_ = 0;
  bool can_map_ = false;
  std::atomic<Traffic*> traffic_{nullptr};
  std::mutex name_mutex_;
  std::string first_name_;
  Lender lender_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_CHANNEL_H_
