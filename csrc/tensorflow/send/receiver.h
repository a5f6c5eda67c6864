// SPDX-License-Identifier: Apache-2.0
//
// The sender's view of one name under which tensors are received. For each session it has the channel of the
// process with that name, if that process opened one, and the tensors for which it is not known yet how they
// will be received.
#ifndef RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_
#define RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "channel/peer_channel.h"
#include "channel/rpc_fallback.h"
#include "channel/server_context.h"
#include "channel/sessions.h"
#include "channel/step_failures.h"
#include "send/channel_receiver.h"
#include "send/send_states.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace rdmatensor {

// Thread-safe. Made by std::make_shared.
class Receiver final : public ChannelReceiver, public std::enable_shared_from_this<Receiver> {
 public:
  Receiver(const ServerContext* server, const Sessions* sessions, const FailedHere* failed_here,
           std::string task);

  // The channels down which tensors are pushed, each once.
  using Channels = absl::InlinedVector<std::shared_ptr<PeerChannel>, 2>;
  Channels ReadyChannels();

  // Sends one tensor of a step of `session`: pushes it, or puts it into the local rendezvous where the receiver asked
  // for it by RPC, or keeps it while it is not known what the receiver does. Never blocks.
  //
  // It is kept if there is no channel, if the receiver has asked for this key by RPC and has no answer yet, or wants to
  // use another channel from now on, or if the session's cluster has changed since the last tensor. All copies that
  // eager operations of a client make share one step, which never ends, so each copy is lost by itself.
  absl::Status Send(tensorflow::WorkerSession* session, RpcFallback* rpc, int64_t step_id,
                    const tensorflow::Rendezvous::ParsedKey& key,
                    const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
                    bool is_dead);

  // True if a planned tensor of this step may go down `channel`, as Send would have decided.
  bool MayPush(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
               const Channel* channel) override;

  // The receiver asked for `key` by RPC. A tensor that was kept goes into the local rendezvous. Otherwise the request
  // is remembered for Send, and *done, which is called at least once, may end it: the tensor may have been lost with a
  // channel whose loss the receiver noticed first. Returns an error if the tensor may have been pushed down a channel
  // that was lost.
  absl::Status OnPull(int64_t step_id, absl::string_view key,
                      tensorflow::Rendezvous::DoneCallback* done);

  bool Attach(std::shared_ptr<PeerChannel> channel, const std::string& session,
              const RpcPending& asked) override;
  // Asks TensorFlow's cluster whose name this is in `session`, by `workers`, or by what the session has if that
  // is nullptr. The answer goes to SetOwner, later.
  void FindOwner(const std::string& session,
                 std::shared_ptr<tensorflow::WorkerCacheInterface> workers);
  // The name belongs to the process with the device `device_name`, says the cluster that `session` reaches by
  // `workers`. An empty name means that the cluster did not answer, which changes nothing. `workers` may be
  // nullptr: then the answer is for the cluster that the session has at its next tensor.
  void SetOwner(const std::string& session,
                const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                const std::string& device_name);
  // Waits until a channel is attached for `session`. False if there is none after `timeout_ms`, or when `opened`,
  // which this process opened for it, is down.
  bool AwaitChannel(const std::string& session, const Channel& opened, int timeout_ms);
  // A channel that this process opened is down; AwaitChannel may wait for it.
  void OnOpenedLost();
  void OnRpcDone(PeerChannel* channel, int64_t step_id, absl::string_view key) override;
  void OnDown(Channel* channel) override;
  void OnResumed(const std::shared_ptr<PeerChannel>& channel) override;

  // Drops the tensors of a step that is over here.
  void DropStep(int64_t step_id);
  // Tells the receiver that the step failed here, if there is one yet.
  void SendAbort(const std::string& session, int64_t step_id, const absl::Status& status);

  std::vector<std::string> SessionNames();
  void ForgetSession(const std::string& session);
  // Forgets what was kept for sessions that send nothing to it now. True if nothing is left.
  bool ForgetIdle();

 private:
  enum class Decision { kPush, kPull, kKeep };
  void ForgetPull(int64_t step_id, const std::string& key, const Pull* pull);
  // Counts a tensor that the receiver asked for. `reason`: why it would not have been pushed; may be nullptr.
  void CountFetched(uint64_t bytes, const char* reason);
  // Sends one tensor down `channel`, or puts it into the local rendezvous and refers the receiver.
  void Push(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc, int64_t step_id,
            const tensorflow::Rendezvous::ParsedKey& key, const tensorflow::Rendezvous::Args& args,
            const tensorflow::Tensor& tensor, bool is_dead);
  // Tells the receiver to fetch the tensor by RecvTensor, and counts why.
  void Refer(PeerChannel* channel, RpcFallback* rpc, int64_t step_id, absl::string_view key,
             const char* reason);
  static void Fail(SendStep::Pulls pulls, const absl::Status& status);
  // Pushes on another thread, because copying large tensors would delay the progress thread. If there is anything, a
  // push has begun, which this ends.
  void PushSoon(std::vector<PendingSend> pending, std::shared_ptr<PeerChannel> channel);
  void PushPending(const std::vector<PendingSend>& pending,
                   const std::shared_ptr<PeerChannel>& channel);

  const ServerContext* const server_;
  const Sessions* const sessions_;
  const FailedHere* const failed_here_;
  std::mutex mutex_;
  std::condition_variable attached_;
  SendStates states_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_
