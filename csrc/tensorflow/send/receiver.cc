// SPDX-License-Identifier: Apache-2.0
#include "send/receiver.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "channel/message.h"
#include "channel/notices.h"
#include "channel/task_call.h"
#include "send/push.h"
#include "send/sender_end.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

// The receiver's server is stock, or it has no channel; the peer's line in the statistics says which.
constexpr char kReasonFetched[] = "fetched by the receiver";

// Eager operations copy tensors under numbers such as 6855027017910325044_1; edges of graphs have names.
bool IsEagerCopy(const tensorflow::Rendezvous::ParsedKey& key) {
  return !key.edge_name.empty() &&
         std::all_of(key.edge_name.begin(), key.edge_name.end(),
                     [](char c) { return c == '_' || absl::ascii_isdigit(c); });
}

absl::Status LostStatus(absl::string_view task) {
  return absl::UnavailableError(
      absl::StrCat("rdmatensor: the channel to ", task, " was lost during this step"));
}

}  // namespace

Receiver::Channels Receiver::ReadyChannels() {
  Channels channels;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : states_.all()) {
    const std::shared_ptr<PeerChannel>& channel = entry.second.channel;
    if (channel != nullptr &&
        std::find(channels.begin(), channels.end(), channel) == channels.end()) {
      channels.push_back(channel);
    }
  }
  return channels;
}

Receiver::Receiver(const ServerContext* server, const Sessions* sessions,
                   const FailedHere* failed_here, std::string task)
    : ChannelReceiver(std::move(task)),
      server_(server),
      sessions_(sessions),
      failed_here_(failed_here),
      states_(std::chrono::seconds(server->settings.step_ttl_s)) {}

void Receiver::CountFetched(uint64_t bytes, const char* reason) {
  CountSent(Path::kRpc, bytes, TrafficOf(Direction::kSend, task(), kRpcTransport));
  CountRpcReason(reason != nullptr ? reason : kReasonFetched);
}

absl::Status Receiver::Send(tensorflow::WorkerSession* session, RpcFallback* rpc, int64_t step_id,
                            const tensorflow::Rendezvous::ParsedKey& key,
                            const tensorflow::Rendezvous::Args& args,
                            const tensorflow::Tensor& tensor, bool is_dead) {
  const std::string& name = rpc->session_name();
  const bool is_copy = IsEagerCopy(key);
  Decision decision = Decision::kKeep;
  std::shared_ptr<PeerChannel> channel;
  bool must_verify = false, local = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SendStep* const step = states_.FindStep(step_id);
    if (step != nullptr && step->TakePull(key.FullKey())) {
      decision = Decision::kPull;
    } else {
      const bool held = step != nullptr && step->held.contains(key.FullKey());
      SendState& state = states_.all()[name];
      const bool verified = state.IsVerified(session);
      if (state.channel != nullptr && verified && !held &&
          SenderEnd::Of(*state.channel)->BeginPush()) {
        state.Record(step_id, key.FullKey(), is_copy);
        channel = state.channel;
        decision = Decision::kPush;
      } else {
        must_verify = !verified && !std::exchange(state.verifying, true);
      }
    }
    if (decision == Decision::kKeep) {
      PendingSend pending;
      pending.is_copy = is_copy;
      pending.key = key;
      pending.rpc = HoldRpc(rpc);
      pending.step_id = step_id;
      pending.refer_reason = is_dead ? nullptr : WhyNotPushable(key, args.alloc_attrs, tensor);
      pending.bytes = tensor.TotalBytes();
      local = pending.refer_reason != nullptr;
      if (!local) {
        pending.attributes = args.alloc_attrs;
        pending.tensor = tensor;
        pending.is_dead = is_dead;
      }
      SendStep& kept_in = states_.Step(step_id);
      kept_in.session = name;
      kept_in.pending[key.FullKey()].push_back(std::move(pending));
    }
  }
  if (must_verify) FindOwner(name, rpc->workers());
  if (decision == Decision::kPush) {
    Push(channel, rpc, step_id, key, args, tensor, is_dead);
    SenderEnd::Of(*channel)->EndPush();
  } else if (decision == Decision::kPull) {
    CountFetched(tensor.TotalBytes(),
                 is_dead ? nullptr : WhyNotPushable(key, args.alloc_attrs, tensor));
    local = true;
  }
  return local ? rpc->SendLocal(key, args, tensor, is_dead) : absl::OkStatus();
}

bool Receiver::MayPush(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
                       const Channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  SendState* const state = states_.Find(name);
  if (state == nullptr || state->channel.get() != channel ||
      SenderEnd::Of(*state->channel)->paused() || !state->IsVerified(session)) {
    return false;
  }
  const SendStep* const step = states_.FindStep(step_id);
  if (step != nullptr && (!step->pulled.empty() || !step->held.empty())) return false;
  state->Record(step_id, "", false);
  return true;
}

void Receiver::Push(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc, int64_t step_id,
                    const tensorflow::Rendezvous::ParsedKey& key,
                    const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
                    bool is_dead) {
  if (is_dead) {
    PushDead(channel.get(), step_id, key.FullKey());
    return;
  }
  SendSpan span(key.edge_name, key.dst_device, tensor.TotalBytes());
  Path path = Path::kRpc;
  const char* reason = WhyNotPushable(key, args.alloc_attrs, tensor);
  if (reason == nullptr) {
    reason = PushTensor(*server_, channel.get(), step_id, key.FullKey(), tensor, &path);
  }
  span.End(PathName(path));
  if (reason == nullptr) return;
  CountSent(Path::kRpc, tensor.TotalBytes(), TrafficOf(Direction::kSend, task(), kRpcTransport));
  // This fails only when the step was aborted, which the receiver is told anyway.
  if (rpc->SendLocal(key, args, tensor, is_dead).ok()) {
    Refer(channel.get(), rpc, step_id, key.FullKey(), reason);
  }
}

void Receiver::Refer(PeerChannel* channel, RpcFallback* rpc, int64_t step_id, absl::string_view key,
                     const char* reason) {
  CountRpcReason(reason);
  {
    // Send must not take the request that follows for a new one.
    std::lock_guard<std::mutex> lock(mutex_);
    ++states_.Step(step_id).referred[key];
  }
  // If the channel is down the receiver's waiters fail with it.
  const absl::Status sent = TellOfKey(channel, MessageKind::kUseRpc, step_id, key);
  if (absl::IsInternal(sent)) SendAbort(rpc->session_name(), step_id, sent);
}

void Receiver::OnRpcDone(PeerChannel* channel, int64_t step_id, absl::string_view key) {
  std::vector<PendingSend> pending;
  const bool begins = SenderEnd::Of(*channel)->BeginPush();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    states_.Unhold(channel, step_id, key, begins ? &pending : nullptr);
  }
  if (begins && pending.empty()) SenderEnd::Of(*channel)->EndPush();
  PushSoon(std::move(pending), channel->Shared());
}

void Receiver::PushSoon(std::vector<PendingSend> pending, std::shared_ptr<PeerChannel> channel) {
  if (pending.empty()) return;
  tsl::Env::Default()->SchedClosure([self = shared_from_this(), channel = std::move(channel),
                                     pending = std::move(pending)]() mutable {
    while (!pending.empty()) {
      self->PushPending(pending, channel);
      // Tensors that were produced meanwhile have waited, so that each key's tensors stay in order.
      std::set<std::pair<int64_t, std::string>> pushed;
      for (const PendingSend& send : pending) {
        pushed.emplace(send.step_id, send.key.FullKey());
      }
      pending.clear();
      std::lock_guard<std::mutex> lock(self->mutex_);
      for (const auto& [step_id, key] : pushed) {
        self->states_.Unhold(channel.get(), step_id, key,
                             SenderEnd::Of(*channel)->paused() ? nullptr : &pending);
      }
    }
    SenderEnd::Of(*channel)->EndPush();
  });
}

void Receiver::PushPending(const std::vector<PendingSend>& pending,
                           const std::shared_ptr<PeerChannel>& channel) {
  for (const PendingSend& send : pending) {
    if (send.refer_reason != nullptr) {
      CountSent(Path::kRpc, send.bytes, TrafficOf(Direction::kSend, task(), kRpcTransport));
      Refer(channel.get(), send.rpc.get(), send.step_id, send.key.FullKey(), send.refer_reason);
    } else {
      tensorflow::Rendezvous::Args args;
      args.alloc_attrs = send.attributes;
      Push(channel, send.rpc.get(), send.step_id, send.key, args, send.tensor, send.is_dead);
    }
  }
}

void Receiver::DropStep(int64_t step_id) {
  SendStep dropped;  // freed after the lock
  for (const std::shared_ptr<PeerChannel>& channel : ReadyChannels()) {
    SenderEnd::Of(*channel)->offers().DropStep(step_id);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  dropped = states_.TakeStep(step_id);
}

void Receiver::SendAbort(const std::string& session, int64_t step_id, const absl::Status& status) {
  // Under the lock, so that the receiver is told before it can leave the channel.
  std::lock_guard<std::mutex> lock(mutex_);
  const SendState* const state = states_.Find(session);
  if (state != nullptr && state->channel != nullptr) {
    TellFailure(state->channel.get(), step_id, status);
  }
}

std::vector<std::string> Receiver::SessionNames() {
  std::vector<std::string> sessions;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : states_.all()) sessions.push_back(entry.first);
  return sessions;
}

void Receiver::ForgetSession(const std::string& session) {
  absl::flat_hash_map<std::string, SendState>::node_type forgotten;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten = states_.Forget(session);
}

bool Receiver::ForgetIdle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return states_.ForgetIdle();
}

void Receiver::ForgetPull(int64_t step_id, const std::string& key, const Pull* pull) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (SendStep* const step = states_.FindStep(step_id)) step->ForgetPull(key, pull);
}

absl::Status Receiver::OnPull(int64_t step_id, absl::string_view key,
                              tensorflow::Rendezvous::DoneCallback* done) {
  PendingSend pending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (states_.WasLost(step_id, key)) return LostStatus(task());
    SendStep& step = states_.Step(step_id);
    if (SendStep::Take(&step.referred, key)) return absl::OkStatus();
    if (!step.TakePending(key, &pending)) {
      auto pull = std::make_shared<Pull>(std::move(*done));
      step.pulled[key].push_back(pull);
      *done = [self = shared_from_this(), pull, step_id, name = std::string(key)](
                  const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
                  const tensorflow::Rendezvous::Args& receive_args,
                  const tensorflow::Tensor& tensor, bool is_dead) {
        self->ForgetPull(step_id, name, pull.get());
        pull->End(status, send_args, receive_args, tensor, is_dead);
      };
      return absl::OkStatus();
    }
  }
  CountFetched(pending.bytes, pending.refer_reason);
  if (pending.refer_reason == nullptr) {
    tensorflow::Rendezvous::Args args;
    args.alloc_attrs = pending.attributes;
    // An aborted rendezvous refuses the tensor, and then the receive fails, too.
    (void)pending.rpc->SendLocal(pending.key, args, pending.tensor, pending.is_dead);
  }
  return absl::OkStatus();
}

void Receiver::SetOwner(const std::string& session,
                        const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                        const std::string& device_name) {
  SendStep::Pulls failed;
  std::vector<PendingSend> pending;
  std::shared_ptr<PeerChannel> channel;
  bool is_former = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SendState* const state = states_.Of(session);
    if (state == nullptr) return;
    state->SetCluster(workers);
    state->owner = device_name;
    if ((channel = state->channel) == nullptr) return;
    is_former = !device_name.empty() && channel->peer_name() != device_name;
    if (is_former) {
      states_.LoseSteps(session, state, &failed);
      state->channel.reset();
    } else {
      pending = states_.TakePending(session, state);
    }
  }
  Fail(std::move(failed), LostStatus(task()));
  if (is_former) (void)TellOfName(channel.get(), MessageKind::kContested, session, task());
  PushSoon(std::move(pending), std::move(channel));
}

void Receiver::FindOwner(const std::string& session,
                         std::shared_ptr<tensorflow::WorkerCacheInterface> workers) {
  // Looking up a session takes locks of TensorFlow that the caller may hold, and asking blocks.
  tsl::Env::Default()->SchedClosure(
      [self = shared_from_this(), session, workers = std::move(workers)]() mutable {
        const std::shared_ptr<tensorflow::WorkerSession> found = self->sessions_->Find(session);
        if (workers == nullptr && found != nullptr) workers = found->GetSharedWorkerCache();
        if (workers == nullptr) return;
        AddressAnswer answer;
        const absl::StatusOr<std::string> encoded =
            AskTask(workers.get(), self->task(), self->server_->task, kAddressKey, "",
                    self->server_->settings.connect_timeout_ms);
        if (!encoded.ok() || !Parse(*encoded, &answer)) answer.device_name.clear();
        self->SetOwner(session, workers, answer.device_name);
      });
}

bool Receiver::Attach(std::shared_ptr<PeerChannel> channel, const std::string& session,
                      const RpcPending& asked) {
  std::vector<PendingSend> pending;
  SendStates::Admitted others;
  std::deque<int64_t> lost;
  std::vector<SendState::Copy> lost_copies;
  bool admitted = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SendState* const state = states_.Of(session);
    if (state == nullptr) return false;
    admitted = states_.Admit(session, channel, &others);
    if (admitted) {
      lost = state->lost_steps.keys();
      lost_copies.swap(state->untold_copies);
      for (const auto& [step_id, key] : asked) {
        SendStep& step = states_.Step(step_id);
        step.session = session;
        ++step.held[key];
      }
      pending = states_.TakePending(session, state);
    }
  }
  Fail(std::move(others.failed), LostStatus(task()));
  if (others.replaced != nullptr) others.replaced->Refuse();
  for (const std::shared_ptr<PeerChannel>& each : others.refused)
    (void)TellOfName(each.get(), MessageKind::kContested, session, task());
  if (!admitted && others.refused.empty()) return true;
  if (others.left != nullptr) SenderEnd::Of(*channel)->AddFormer(others.left);
  if (!admitted) {
    RecordPeer(Direction::kSend, task(), kRpcTransport,
               absl::StrCat(channel->peer_name(), " is not the only process of this name"), true);
    FindOwner(session, nullptr);
    return true;
  }
  RecordPeer(Direction::kSend, task(), channel->transport(),
             others.left != nullptr
                 ? absl::StrCat("the receiver moved from ", others.left->transport(), " to it")
             : channel->opened_here() ? "the receiver takes tensors from this channel"
                                      : "the receiver opened this channel",
             false);
  attached_.notify_all();
  for (int64_t step_id : lost) TellFailure(channel.get(), step_id, LostStatus(task()));
  for (const auto& [step_id, status] : failed_here_->Of(session)) {
    TellFailure(channel.get(), step_id, status);
  }
  for (const auto& [step_id, key] : lost_copies) {
    (void)TellOfKey(channel.get(), MessageKind::kLost, step_id, key);
  }
  PushSoon(std::move(pending), std::move(channel));
  return true;
}

bool Receiver::AwaitChannel(const std::string& session, const Channel& opened, int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  bool is_attached = false;
  attached_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    const SendState* const state = states_.Find(session);
    is_attached = state != nullptr && state->channel != nullptr;
    return is_attached || !opened.IsUp();
  });
  return is_attached;
}

void Receiver::OnOpenedLost() {
  std::lock_guard<std::mutex> lock(mutex_);
  attached_.notify_all();
}

void Receiver::OnResumed(const std::shared_ptr<PeerChannel>& channel) {
  std::vector<std::vector<PendingSend>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [session, state] : states_.all()) {
      if (state.channel == channel) all.push_back(states_.TakePending(session, &state));
    }
  }
  for (std::vector<PendingSend>& pending : all) PushSoon(std::move(pending), channel);
}

void Receiver::Fail(SendStep::Pulls pulls, const absl::Status& status) {
  if (pulls.empty()) return;
  // This thread may be any of TensorFlow's, and may hold its locks.
  tsl::Env::Default()->SchedClosure([pulls = std::move(pulls), status] {
    const tensorflow::Rendezvous::Args none;
    for (const std::shared_ptr<Pull>& pull : pulls) {
      pull->End(status, none, none, tensorflow::Tensor(), false);
    }
  });
}

void Receiver::OnDown(Channel* channel) {
  SendStep::Pulls failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    bool lost = false;
    for (auto& [session, state] : states_.all()) {
      if (state.channel.get() != channel) continue;
      state.channel.reset();
      states_.LoseSteps(session, &state, &failed);
      lost = true;
    }
    if (lost) RecordAbsence(Direction::kSend, task(), Absence::kLost, "the channel ended");
  }
  Fail(std::move(failed), LostStatus(task()));
}

}  // namespace rdmatensor
