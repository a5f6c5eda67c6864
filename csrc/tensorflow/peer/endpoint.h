// SPDX-License-Identifier: Apache-2.0
//
// What one server adds to TensorFlow: a device, the peers that send to it and receive from it, and
// the mailboxes where tensors arrive.
#ifndef RDMATENSOR_TENSORFLOW_PEER_ENDPOINT_H_
#define RDMATENSOR_TENSORFLOW_PEER_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "memory/arena_exports.h"
#include "peer/opened_channels.h"
#include "peer/peer_table.h"
#include "rdmatensor.h"
#include "stats/checksum.h"
#include "step/fetcher.h"
#include "step/mailbox.h"

namespace rdmatensor {

// Thread-safe. Lives until the process ends, as TensorFlow's servers do, so that everything may point
// to it; Close ends its traffic before.
class Endpoint {
 public:
  // Activates the process's arena and opens a device for the server of `task`
  // ("/job:worker/replica:0/task:1"), which the cluster expects on `host`.
  static absl::StatusOr<Endpoint*> Open(const std::string& task, const std::string& host,
                                        const Settings& settings);
  // For a server that is destroyed without ever having been started.
  void Close();
  // Closes the channels of a server that nobody uses any more. The device stays.
  void Retire();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const std::string& task() const { return task_; }
  const Settings& settings() const { return settings_; }
  rdt_device* device() const { return device_; }
  // The host:port by which peers reach the device.
  const std::string& address() const { return address_; }
  const ArenaExports& exports() const { return *exports_; }
  MailboxTable& mailboxes() { return mailboxes_; }
  // To those that send to this process, and to those that it sends to and that need not reach it.
  OpenedChannels& to_senders() { return to_senders_; }
  OpenedChannels& to_receivers() { return to_receivers_; }
  // `lost` is called, on the progress thread, when one of the latter ends. It must not block.
  void WatchReceivers(std::function<void()> lost);
  PeerTable& peers() { return peers_; }

  // The part of a full device name before "/device:".
  static absl::string_view TaskOf(absl::string_view device_name);
  // Gives `waiter` its tensor, by RPC if the arrival is a referral; or fails it if the tensor is not what
  // was sent.
  static void Complete(Waiter* waiter, const Arrival& arrival);
  // What a tensor of so many bytes that came over `channel` is to be compared with; nullptr: nothing.
  std::unique_ptr<const Claim> ClaimOf(Channel& channel, const Checksum& checksum, Path path,
                                       Way way, uint64_t bytes) const;

  // Gives what arrived under `key` to its receive. From any thread.
  void Deliver(Channel* channel, int64_t step_id, const KeyId& key, Arrival arrival);

  // For fetchers. A tensor is here: counts it and gives it to its receiver.
  void DeliverTensor(Channel* channel, int64_t step_id, absl::string_view key, Path path, Way way,
                     const Checksum& checksum, const tensorflow::Tensor& tensor);
  // There is no memory for it: fails the step's receives from this peer.
  void FailForMemory(Channel* channel, int64_t step_id, uint64_t bytes);
  // Handles a message that waited for another one of its key.
  Outcome HandleKept(Channel* channel, const KeyOrder::Kept& kept);
  // The peer broke the protocol: closes the channel, with one warning.
  void Refuse(Channel* channel);

 private:
  Endpoint(std::string task, const Settings& settings);
  ~Endpoint();
  // The address it listens on.
  absl::StatusOr<std::string> OpenDevice(const std::string& bind_address);

  // The core's handlers, on the progress thread.
  static void OnNotify(void* context, rdt_channel* handle, uint64_t immediate, const void* data,
                       size_t size);
  static void OnConnect(void* context, rdt_channel* handle);
  static void OnDown(void* context, rdt_channel* handle, rdt_status why);
  static void OnReleased(void* context, rdt_channel* handle);
  // False: the peer broke the protocol.
  bool Handle(Channel* channel, uint64_t immediate, const char* data, size_t size);
  bool HandleTensor(Channel* channel, const char* data, size_t size);
  bool HandleReferral(Channel* channel, const char* data, size_t size);
  // `follows`: see Fetcher::Start.
  Outcome TakeTensor(Channel* channel, const TensorMessage& message, bool follows);
  void TakeReferral(Channel* channel, const StepMessage& message);
  bool HandleAbort(Channel* channel, const char* data, size_t size);
  bool HandleReady(Channel* channel, const char* data, size_t size);
  bool HandleContested(Channel* channel, const char* data, size_t size);
  bool HandleSource(Channel* channel, const char* data, size_t size);
  bool HandleAsked(Channel* channel, const char* data, size_t size);
  bool HandleLost(Channel* channel, const char* data, size_t size);
  bool HandleAsk(Channel* channel, const char* data, size_t size);
  bool HandleAnswered(Channel* channel, const char* data, size_t size);
  // Another one than `gone`.
  std::shared_ptr<Mailbox> MailboxFor(Channel* channel, int64_t step_id, const Mailbox* gone);

  const std::string task_;
  const Settings settings_;
  rdt_device* device_ = nullptr;
  std::string address_;
  std::unique_ptr<ArenaExports> exports_;
  MailboxTable mailboxes_;
  OpenedChannels to_senders_{this, Channel::Role::kReceiver};
  OpenedChannels to_receivers_{this, Channel::Role::kSender};
  std::mutex lost_mutex_;
  std::function<void()> receiver_lost_;
  PeerTable peers_{this};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_ENDPOINT_H_
