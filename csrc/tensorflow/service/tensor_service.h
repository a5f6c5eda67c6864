// SPDX-License-Identifier: Apache-2.0
//
// The plugin's part of one server: a device, the peers that send to it and receive from it, and the mailboxes in
// which tensors arrive.
#ifndef RDMATENSOR_TENSORFLOW_SERVICE_TENSOR_SERVICE_H_
#define RDMATENSOR_TENSORFLOW_SERVICE_TENSOR_SERVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "channel/channel_end.h"
#include "channel/opened_channels.h"
#include "channel/server_context.h"
#include "channel/step_failures.h"
#include "rdmatensor.h"
#include "receive/mailbox.h"
#include "service/peer_table.h"

namespace rdmatensor {

// Thread-safe. Lives until the process ends, as TensorFlow's servers do, so everything may point to it. Close
// ends its traffic before that.
class TensorService {
 public:
  // Activates the process's arena and opens a device for the server of `task`
  // ("/job:worker/replica:0/task:1"), which the cluster expects on `host`.
  static absl::StatusOr<TensorService*> Open(const std::string& task, const std::string& host,
                                             const Settings& settings);
  // Closes the device of a server that is destroyed before it was started.
  void Close();
  // Closes the channels of a server that nobody uses any more. The device stays.
  void Retire();
  TensorService(const TensorService&) = delete;
  TensorService& operator=(const TensorService&) = delete;

  const ServerContext& server() const { return server_; }
  const std::string& task() const { return server_.task; }
  const Settings& settings() const { return server_.settings; }
  rdt_device* device() const { return server_.device; }
  const std::string& address() const { return server_.address; }
  MailboxTable& mailboxes() { return mailboxes_; }
  // The steps that were cancelled, or that failed at another task, when their part here had perhaps not begun yet.
  // TensorFlow forgets a cancellation that comes so early. Such a part fails as it begins.
  StepFailures& ended_early() { return ended_early_; }
  // Channels to receivers that need not reach this server.
  OpenedChannels& to_receivers() { return to_receivers_; }
  // Channels to the processes that this server calls.
  OpenedChannels& to_callees() { return to_callees_; }
  // Answers calls by what `new_callee` makes, from now on. To be called once.
  void ServeCalls(NewCallee new_callee) {
    new_callee_.store(new NewCallee(std::move(new_callee)), std::memory_order_release);
  }
  // Calls `lost` on the progress thread when one of these channels ends. It must not block.
  void WatchReceivers(std::function<void()> lost);
  PeerTable& peers() { return peers_; }

 private:
  TensorService(std::string task, const Settings& settings);
  ~TensorService();
  // The address it listens on.
  absl::StatusOr<std::string> OpenDevice(const std::string& bind_address);

  // The core's handlers, on the progress thread.
  static void OnNotify(void* context, rdt_channel* handle, uint64_t immediate, const void* data,
                       size_t size);
  static void OnConnect(void* context, rdt_channel* handle);
  static void OnDown(void* context, rdt_channel* handle, rdt_status why);
  static void OnReleased(void* context, rdt_channel* handle);

  ServerContext server_;
  MailboxTable mailboxes_;
  StepFailures ended_early_;
  const PeerChannel::NewEnds new_ends_;
  OpenedChannels to_senders_{&server_, &new_ends_, PeerChannel::Role::kReceiver};
  OpenedChannels to_receivers_{&server_, &new_ends_, PeerChannel::Role::kSender};
  OpenedChannels to_callees_{&server_, &new_ends_, PeerChannel::Role::kCaller};
  std::atomic<const NewCallee*> new_callee_{nullptr};
  std::mutex lost_mutex_;
  std::function<void()> receiver_lost_;
  PeerTable peers_{&server_, &mailboxes_, &to_senders_};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVICE_TENSOR_SERVICE_H_
