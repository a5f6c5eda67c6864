// SPDX-License-Identifier: Apache-2.0
//
// The receiver's view of one task that sends to it, as one session names it: no channel, connecting, or
// ready. It also knows which incarnations of the task are left to TensorFlow's RPC, for good or until they can
// be reached again.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_SENDER_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_SENDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/backoff.h"
#include "channel/message.h"
#include "channel/opened_channels.h"
#include "channel/peer_channel.h"
#include "channel/peers.h"
#include "channel/rpc_fallback.h"
#include "channel/server_context.h"
#include "channel/step_failures.h"
#include "receive/channel_sender.h"
#include "receive/incarnations.h"
#include "receive/mailbox.h"
#include "receive/rpc_requests.h"
#include "receive/whereabouts.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdmatensor {

// Thread-safe. Made by std::make_shared.
//
// Every change of state raises `epoch`. A receive reads the epoch before it puts its waiter into the
// mailbox and compares it after: either the change saw the waiter, or the receive sees the change and
// calls Settle. Thus no waiter is left behind.
class Sender final : public ChannelSender, public std::enable_shared_from_this<Sender> {
 public:
  Sender(const ServerContext* server, MailboxTable* mailboxes, OpenedChannels* to_senders,
         const PeerNames& names);

  // Counts the waits for tensors from the task that no plan names.
  EdgeWaits* waits() const { return waits_; }
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // The channel to it, or nullptr.
  std::shared_ptr<PeerChannel> ReadyChannel();

  // How a receive of a tensor from the device with `incarnation` goes on: wait in the mailbox, also
  // ask the peer where it is (EnsureConnecting), or take TensorFlow's RPC (kRpc), and then perhaps also
  // see whether the peer can be reached otherwise by now (kRpcAndRetry: EnsureConnecting as well).
  //
  // A process that is sent pushes must never be asked by RPC as well, except for what it referred:
  // the push and the request could pass each other. So RPC is for processes to which no channel is
  // ready, and for incarnations that are known to be gone, which the RPC answers with the error that
  // TensorFlow users know. Each request is noted until it has ended. Requests that are under way when a channel
  // becomes ready are announced on it, and their tensors are not pushed.
  //
  // kFailed: *failed says why the tensor will not come.
  enum class Decision { kWait, kConnect, kRpc, kRpcAndRetry, kFailed };
  Decision Decide(uint64_t incarnation, int64_t step_id, const Waiter& waiter,
                  absl::Status* failed);
  // True if every receive from the device with `incarnation` waits in the mailbox at present.
  bool IsReady(uint64_t incarnation);
  // Fetches the tensor by RecvTensor, as Decide decided.
  void ReceiveByRpc(int64_t step_id, RpcFallback* rpc, Waiter waiter);
  // Fails if the peer said that nothing more will come for this step, or of the waiter's key.
  absl::Status StatusOf(int64_t step_id, const Waiter& waiter) const;

  // Asks the peer for its address, and connects if it is not the process that the channel leads to,
  // unless that is being done. Returns at once; never fails.
  void EnsureConnecting(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                        uint64_t incarnation);
  // Brings the waiters of `mailbox` in line with the present state.
  void Settle(const std::shared_ptr<Mailbox>& mailbox);

  void OnStepAbort(int64_t step_id, const absl::Status& status) override;
  void OnLost(int64_t step_id, const KeyId& key) override;
  void OnDown(Channel* channel, absl::string_view why) override;
  void OnContested(Channel* channel) override;
  void GiveUp(Channel* channel, const std::string& why) override;
  bool OnMoved(const std::shared_ptr<PeerChannel>& from,
               const std::shared_ptr<PeerChannel>& to) override;
  void OnOpened(const std::shared_ptr<PeerChannel>& channel, const AddressAnswer& answer) override;
  // Its session is over: nobody receives from it any more.
  void Leave();

 private:
  // Decides by the state of the peer alone.
  Decision DecideByPeer(uint64_t incarnation, int64_t step_id, const Waiter& waiter);
  void OnFound(const Whereabouts& found, uint64_t incarnation);
  void Connect(const AddressAnswer& answer, uint64_t incarnation);
  // A request by RPC has ended.
  void OnRpcDone(const RpcRequests::Request& request);
  static void TellRpcDone(Channel* channel, const RpcRequests::Request& request);
  // The ways in which connecting ends follow.
  void BecomeReady(std::shared_ptr<PeerChannel> channel, const AddressAnswer& answer);
  // Whether the present channel remains, although the peer opened `opened`.
  bool StaysLocked(const PeerChannel& opened, const AddressAnswer& answer) const;
  // Looks for a better transport in the background, when it is time for that.
  void ImproveLocked();
  // Uses `channel`, and returns the requests that are to be announced on it.
  std::vector<RpcRequests::Request> TakeChannelLocked(std::shared_ptr<PeerChannel> channel);
  // Offers places on the channel, and then says that this process is ready.
  void Announce(const std::shared_ptr<PeerChannel>& channel,
                const std::vector<RpcRequests::Request>& asked);
  bool KeepsPresentState(const AddressAnswer& answer, uint64_t incarnation);
  void BecomeUnavailable(const absl::Status& status);
  // Whether the same process may be reached later.
  enum class Heals { kNever, kPerhaps };
  void BecomeUnreachable(Heals heals, const std::string& why, std::vector<uint64_t> incarnations);
  // Forgets the channel, if there is one, and what was announced on it. Returns it, because its last reference must not
  // end under the lock.
  std::shared_ptr<PeerChannel> DropChannelLocked();
  // Announces the requests under way, then that this process is ready.
  absl::Status SendReady(PeerChannel* channel, const std::vector<RpcRequests::Request>& asked);
  // POLICY=rdma: after a pause, lets what waits reach the peer, which told this process of a contest for its name.
  void AnnounceAgain();
  void SettleAll();
  void FailAll(const absl::Status& status);

  const ServerContext* const server_;
  MailboxTable* const mailboxes_;
  OpenedChannels* const to_senders_;
  EdgeWaits* const waits_;
  std::atomic<uint64_t> epoch_{0};
  StepFailures failures_;

  std::mutex opening_;  // held while a channel that the peer opened is taken
  std::mutex mutex_;
  std::shared_ptr<PeerChannel> channel_;  // nullptr: none is ready
  bool asking_ = false;                   // where the peer is, and then connecting
  bool given_up_ = false;                 // GiveUp has said why the channel goes down
  Incarnations incarnations_;
  std::optional<Backoff::Clock::time_point> contested_since_;  // with POLICY=rdma
  RpcRequests requests_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_SENDER_H_
