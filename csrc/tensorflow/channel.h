// SPDX-License-Identifier: Apache-2.0
//
// One connection between two tasks, for tensors in one direction: the receiver connects, the sender
// pushes, releases flow back.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "include/rdmatensor.h"
#include "lender.h"

namespace rdmatensor {

class DestinationLink;
class Mailbox;
class SourcePeer;

class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Takes over one reference to `handle` and becomes its context. The core's handlers keep the
  // channel alive until they call ReleaseFromCore (on_released).
  static std::shared_ptr<Channel> Adopt(rdt_channel* handle);
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
  bool IsUp() const;
  const std::string& transport() const { return transport_; }
  const std::string& peer_name() const { return peer_name_; }
  uint64_t max_notify() const { return max_notify_; }

  // Receiver: opens the sender's arena. Blocks for at most `timeout_ms`; not from a handler. A sender
  // without an arena is no error: it sends everything inline.
  absl::Status OpenArena(int timeout_ms);
  // Receiver: a tensor over `bytes` bytes at `offset` in the sender's arena. Its destruction releases
  // loan `lend_id`. Returns nullptr if the range is not inside the arena.
  tensorflow::TensorBuffer* Borrow(uint64_t offset, uint64_t bytes, uint64_t lend_id);

  // Sender: the tensors lent over this channel.
  Lender& lender() { return lender_; }

  // Whom it serves: at most one of them is set. Both outlive every channel.
  std::atomic<SourcePeer*> source{nullptr};
  std::atomic<DestinationLink*> destination{nullptr};

  // Progress thread only: the peer broke the protocol.
  bool refused = false;

  // Receiver, progress thread only: the mailbox of the step that arrived last.
  int64_t last_step = -1;
  std::weak_ptr<Mailbox> last_mailbox;

  void ReleaseFromCore();

 private:
  explicit Channel(rdt_channel* handle);
  char* Prepare(size_t size);
  absl::Status Post(uint64_t immediate, char* message, size_t size);

  rdt_channel* const handle_;
  std::string transport_, peer_name_;
  uint64_t max_notify_ = 0;
  rdt_remote_region* arena_ = nullptr;
  uint64_t arena_size_ = 0;
  Lender lender_;
  std::shared_ptr<Channel> held_by_core_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_H_
