// SPDX-License-Identifier: Apache-2.0
//
// The sender's view of one name under which tensors are received. For each session it has the channel of the
// process with that name, if that process opened one, and the tensors for which it is not known yet how they
// will be received.
#ifndef RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_
#define RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/recent_map.h"
#include "channel/peer_channel.h"
#include "channel/rpc_fallback.h"
#include "channel/server_context.h"
#include "channel/sessions.h"
#include "channel/step_failures.h"
#include "send/channel_receiver.h"
#include "send/send_state.h"
#include "send/send_step.h"
#include "send/sender_end.h"
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

  enum class Decision {
    kPush,     // through `channel`, by Push
    kPulled,   // the receiver asked by RPC: the local rendezvous takes it
    kPending,  // kept
  };
  // Decides about one tensor of a step of `session`, whose name is `name`. `is_copy`: an eager operation sends the
  // tensor. All copies of a client share one step, which never ends, so each copy is lost by itself. `make_pending` is
  // called, under the lock, only for kPending: there is no channel, or the receiver has asked for this key by RPC and
  // has no answer yet, or wants to use another channel from now on, or the session's cluster has changed since the last
  // tensor. In the last case *must_verify is set for one caller, which calls FindOwner.
  template <typename MakePending>
  Decision Decide(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
                  absl::string_view key, bool is_copy, const MakePending& make_pending,
                  std::shared_ptr<PeerChannel>* channel, bool* must_verify) {
    std::lock_guard<std::mutex> lock(mutex_);
    bool held = false;
    if (!steps_.empty()) {
      auto step = steps_.find(step_id);
      if (step != steps_.end() && step->second.TakePull(key)) return Decision::kPulled;
      held = step != steps_.end() && step->second.held.contains(key);
    }
    SendState& state = states_[name];
    const bool verified = state.IsVerified(session);
    if (state.channel != nullptr && verified && !held &&
        SenderEnd::Of(*state.channel)->BeginPush()) {
      state.Record(step_id, key, is_copy);
      *channel = state.channel;
      return Decision::kPush;
    }
    if (!verified) *must_verify = !std::exchange(state.verifying, true);
    SendStep& step = StepLocked(step_id);
    step.session = name;
    step.pending[key].push_back(make_pending());
    return Decision::kPending;
  }

  // Ends what Decide began: sends one tensor down `channel`, or puts it into the local rendezvous and refers the
  // receiver.
  void Push(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc, int64_t step_id,
            const tensorflow::Rendezvous::ParsedKey& key, const tensorflow::Rendezvous::Args& args,
            const tensorflow::Tensor& tensor, bool is_dead);

  // True if a planned tensor of this step may go down `channel`, as Decide would have decided.
  bool MayPush(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
               const Channel* channel) override;

  // The receiver asked for `key` by RPC. True if it was pending: the caller puts it into the local
  // rendezvous. Otherwise the request is remembered for Decide, and *done, which is called at least once, may
  // end it: the tensor may have been lost with a channel whose loss the receiver noticed first. Returns an
  // error if the tensor may have been pushed down a channel that was lost.
  absl::StatusOr<bool> OnPull(int64_t step_id, absl::string_view key, PendingSend* pending,
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
  void ForgetPull(int64_t step_id, const std::string& key, const Pull* pull);
  SendStep& StepLocked(int64_t step_id);
  // Does what Push does, without ending anything.
  void PushNow(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc, int64_t step_id,
               const tensorflow::Rendezvous::ParsedKey& key,
               const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
               bool is_dead);
  // Tells the receiver to fetch the tensor by RecvTensor, and counts why.
  void Refer(PeerChannel* channel, RpcFallback* rpc, int64_t step_id, absl::string_view key,
             const char* reason);
  // Gives the state to `channel`. False if another process has the name; then nobody gets the state, unless it is
  // known whose name it is. *refused are the channels whose processes must fetch, *replaced is the channel
  // that the same process used before and that is lost, *left is one that it has paused.
  bool AdmitLocked(const std::string& session, const std::shared_ptr<PeerChannel>& channel,
                   std::vector<std::shared_ptr<PeerChannel>>* refused,
                   std::shared_ptr<PeerChannel>* replaced, std::shared_ptr<PeerChannel>* left,
                   SendStep::Pulls* failed);
  // Nothing is under way on the state's channel any more: forgets what went down it.
  void ForgetSentLocked(const std::string& session, SendState* state);
  // Marks the steps of the state's channel as lost, with what the channel carried, and takes out the requests that
  // wait in them.
  void LoseStepsLocked(const std::string& session, SendState* state, SendStep::Pulls* failed);
  static void Fail(SendStep::Pulls pulls, const absl::Status& status);
  // Takes out what waits for the state's channel and is not held, unless that is paused. If it takes out anything, a
  // push has begun, which PushSoon ends.
  void TakeAllPendingLocked(const std::string& session, SendState* state,
                            std::vector<PendingSend>* pending);
  // Takes out what waits under `key` to be pushed; the key is held until it was.
  static void TakePendingLocked(int64_t step_id, SendStep* step, const std::string& key,
                                SendState* state, std::vector<PendingSend>* pending);
  // Takes one hold from `key`; after the last, takes out what waits, unless `pending` is nullptr, or the step's
  // tensors go down another channel by now.
  void UnholdLocked(const Channel* channel, int64_t step_id, absl::string_view key,
                    std::vector<PendingSend>* pending);
  // Pushes on another thread, because copying large tensors would delay the progress thread.
  void PushSoon(std::vector<PendingSend> pending, std::shared_ptr<PeerChannel> channel);
  void PushPending(const std::vector<PendingSend>& pending,
                   const std::shared_ptr<PeerChannel>& channel);

  const ServerContext* const server_;
  const Sessions* const sessions_;
  const FailedHere* const failed_here_;
  const std::chrono::seconds ttl_;
  std::mutex mutex_;
  std::condition_variable attached_;
  absl::flat_hash_map<std::string, SendState> states_;  // by session
  absl::flat_hash_map<int64_t, SendStep> steps_;
  std::chrono::steady_clock::time_point last_sweep_ = std::chrono::steady_clock::now();
  // The steps and copies that were pushed down channels that were lost.
  RecentMap<int64_t> lost_{SendState::kRemembered};
  RecentMap<SendState::Copy> lost_copies_{SendState::kRemembered};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_RECEIVER_H_
