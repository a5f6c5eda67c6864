// SPDX-License-Identifier: Apache-2.0
#include "send/receiver.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "channel/message.h"
#include "channel/notices.h"
#include "channel/task_call.h"
#include "send/push.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

constexpr std::chrono::seconds kSweepPeriod{10};

// Limits the sessions of a name. Sessions that are over are forgotten long before.
constexpr size_t kMaxSessions = 1024;

absl::Status LostStatus(absl::string_view task) {
  return absl::UnavailableError(
      absl::StrCat("rdmatensor: the channel to ", task, " was lost during this step"));
}

}  // namespace

Receiver::Channels Receiver::ReadyChannels() {
  Channels channels;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : states_) {
    const std::shared_ptr<PeerChannel>& channel = entry.second.channel;
    if (channel != nullptr &&
        std::find(channels.begin(), channels.end(), channel) == channels.end()) {
      channels.push_back(channel);
    }
  }
  return channels;
}

bool Receiver::MayPush(tensorflow::WorkerSession* session, const std::string& name, int64_t step_id,
                       const Channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto state = states_.find(name);
  if (state == states_.end() || state->second.channel.get() != channel ||
      SenderEnd::Of(*state->second.channel)->paused() || !state->second.IsVerified(session)) {
    return false;
  }
  if (!steps_.empty()) {
    auto step = steps_.find(step_id);
    if (step != steps_.end() && (!step->second.pulled.empty() || !step->second.held.empty())) {
      return false;
    }
  }
  state->second.Record(step_id, "", false);
  return true;
}

Receiver::Receiver(const ServerContext* server, const Sessions* sessions,
                   const FailedHere* failed_here, std::string task)
    : ChannelReceiver(std::move(task)),
      server_(server),
      sessions_(sessions),
      failed_here_(failed_here),
      ttl_(server->settings.step_ttl_s) {}

void Receiver::Push(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc, int64_t step_id,
                    const tensorflow::Rendezvous::ParsedKey& key,
                    const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
                    bool is_dead) {
  PushNow(channel, rpc, step_id, key, args, tensor, is_dead);
  SenderEnd::Of(*channel)->EndPush();
}

void Receiver::PushNow(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc,
                       int64_t step_id, const tensorflow::Rendezvous::ParsedKey& key,
                       const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
                       bool is_dead) {
  if (is_dead) {
    PushDead(channel.get(), step_id, key.FullKey());
    return;
  }
  SendSpan span(key.edge_name, key.dst_device, tensor.TotalBytes());
  Path path = Path::kRpc;
  const char* reason = WhyNotPushable(key, tensor);
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
    // Decide must not take the request that follows for a new one.
    std::lock_guard<std::mutex> lock(mutex_);
    ++StepLocked(step_id).referred[key];
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
    UnholdLocked(channel, step_id, key, begins ? &pending : nullptr);
  }
  if (begins && pending.empty()) SenderEnd::Of(*channel)->EndPush();
  PushSoon(std::move(pending), channel->Shared());
}

void Receiver::TakePendingLocked(int64_t step_id, SendStep* step, const std::string& key,
                                 SendState* state, std::vector<PendingSend>* pending) {
  auto found = step->pending.find(key);
  if (found == step->pending.end()) return;
  state->Record(step_id, key, found->second.front().is_copy);
  ++step->held[key];
  for (PendingSend& send : found->second) pending->push_back(std::move(send));
  step->pending.erase(found);
}

void Receiver::UnholdLocked(const Channel* channel, int64_t step_id, absl::string_view key,
                            std::vector<PendingSend>* pending) {
  auto step = steps_.find(step_id);
  if (step == steps_.end()) return;
  auto state = states_.find(step->second.session);
  if (state == states_.end() || state->second.channel.get() != channel) return;
  if (!SendStep::Take(&step->second.held, key) || step->second.held.contains(key)) return;
  if (pending == nullptr) return;
  TakePendingLocked(step_id, &step->second, std::string(key), &state->second, pending);
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
        self->UnholdLocked(channel.get(), step_id, key,
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
      PushNow(channel, send.rpc.get(), send.step_id, send.key, args, send.tensor, send.is_dead);
    }
  }
}

void Receiver::DropStep(int64_t step_id) {
  SendStep dropped;  // freed after the lock
  for (const std::shared_ptr<PeerChannel>& channel : ReadyChannels()) {
    SenderEnd::Of(*channel)->offers().DropStep(step_id);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  std::swap(dropped, found->second);
  steps_.erase(found);
}

void Receiver::SendAbort(const std::string& session, int64_t step_id, const absl::Status& status) {
  // Under the lock, so that the receiver is told before it can leave the channel.
  std::lock_guard<std::mutex> lock(mutex_);
  auto state = states_.find(session);
  if (state == states_.end() || state->second.channel == nullptr) return;
  TellFailure(state->second.channel.get(), step_id, status);
}

std::vector<std::string> Receiver::SessionNames() {
  std::vector<std::string> sessions;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : states_) sessions.push_back(entry.first);
  return sessions;
}

void Receiver::ForgetSession(const std::string& session) {
  decltype(states_)::node_type forgotten;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten = states_.extract(session);
}

bool Receiver::ForgetIdle() {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::erase_if(states_, [](const auto& entry) { return entry.second.IsIdle(); });
  absl::erase_if(steps_, [](const auto& entry) {
    return entry.second.IsEmpty() && entry.second.referred.empty();
  });
  return states_.empty() && steps_.empty() && lost_.empty() && lost_copies_.empty();
}

SendStep& Receiver::StepLocked(int64_t step_id) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sweep_ > kSweepPeriod) {
    last_sweep_ = now;
    for (auto entry = steps_.begin(); entry != steps_.end();) {
      const auto current = entry++;
      // Pending tensors end with their step, as in TensorFlow; requests with their answer.
      if (current->second.IsEmpty() && now - current->second.created > ttl_) {
        steps_.erase(current);
      }
    }
  }
  return steps_[step_id];
}

void Receiver::ForgetPull(int64_t step_id, const std::string& key, const Pull* pull) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto step = steps_.find(step_id);
  if (step != steps_.end()) step->second.ForgetPull(key, pull);
}

absl::StatusOr<bool> Receiver::OnPull(int64_t step_id, absl::string_view key, PendingSend* pending,
                                      tensorflow::Rendezvous::DoneCallback* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.Contains(step_id) ||
      (!lost_copies_.empty() && lost_copies_.Contains(SendState::Copy(step_id, key)))) {
    return LostStatus(task());
  }
  SendStep& step = StepLocked(step_id);
  if (SendStep::Take(&step.referred, key)) return false;
  if (step.TakePending(key, pending)) return true;
  auto pull = std::make_shared<Pull>(std::move(*done));
  step.pulled[key].push_back(pull);
  *done = [self = shared_from_this(), pull, step_id, name = std::string(key)](
              const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
              const tensorflow::Rendezvous::Args& receive_args, const tensorflow::Tensor& tensor,
              bool is_dead) {
    self->ForgetPull(step_id, name, pull.get());
    pull->End(status, send_args, receive_args, tensor, is_dead);
  };
  return false;
}

bool Receiver::AdmitLocked(const std::string& session, const std::shared_ptr<PeerChannel>& channel,
                           std::vector<std::shared_ptr<PeerChannel>>* refused,
                           std::shared_ptr<PeerChannel>* replaced,
                           std::shared_ptr<PeerChannel>* left, SendStep::Pulls* failed) {
  SendState& state = states_[session];
  if (state.channel == channel) return true;
  const bool owns = state.owner == channel->peer_name();
  if (!state.owner.empty() && !owns) {
    refused->push_back(channel);
    return false;
  }
  const auto is_other = [&channel](const std::shared_ptr<PeerChannel>& each) {
    return each != nullptr && each->IsUp() && each->peer_name() != channel->peer_name();
  };
  for (const std::weak_ptr<PeerChannel>& each : state.rivals) {
    std::shared_ptr<PeerChannel> rival = each.lock();
    if (!owns && is_other(rival)) refused->push_back(std::move(rival));
  }
  if (state.channel != nullptr && state.channel->peer_name() == channel->peer_name()) {
    // It came late: the process has left this channel for the other one.
    if (SenderEnd::Of(*channel)->has_paused()) return false;
    if (SenderEnd::Of(*state.channel)->has_paused() && SenderEnd::Of(*channel)->succeeds()) {
      ForgetSentLocked(session, &state);
      *left = std::exchange(state.channel, nullptr);
    }
  }
  if (state.channel != nullptr) {
    LoseStepsLocked(session, &state, failed);
    *replaced = std::exchange(state.channel, nullptr);
    // If it is no other process, that process noticed the loss of the old channel first, or was restarted.
    if (is_other(*replaced)) refused->push_back(std::exchange(*replaced, nullptr));
  }
  state.rivals.clear();
  if (owns || refused->empty()) {
    state.channel = channel;
    return true;
  }
  refused->push_back(channel);
  state.rivals.assign(refused->begin(), refused->end());
  return false;
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
    if (states_.size() >= kMaxSessions && !states_.contains(session)) return;
    SendState& state = states_[session];
    state.SetCluster(workers);
    state.owner = device_name;
    if ((channel = state.channel) == nullptr) return;
    is_former = !device_name.empty() && channel->peer_name() != device_name;
    if (is_former) {
      LoseStepsLocked(session, &state, &failed);
      state.channel.reset();
    } else {
      TakeAllPendingLocked(session, &state, &pending);
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

void Receiver::TakeAllPendingLocked(const std::string& session, SendState* state,
                                    std::vector<PendingSend>* pending) {
  if (!SenderEnd::Of(*state->channel)->BeginPush()) return;
  for (auto& [step_id, step] : steps_) {
    if (step.session != session) continue;
    std::vector<std::string> keys;
    for (const auto& entry : step.pending) {
      if (!step.held.contains(entry.first)) keys.push_back(entry.first);
    }
    for (const std::string& key : keys) TakePendingLocked(step_id, &step, key, state, pending);
  }
  if (pending->empty()) SenderEnd::Of(*state->channel)->EndPush();
}

bool Receiver::Attach(std::shared_ptr<PeerChannel> channel, const std::string& session,
                      const RpcPending& asked) {
  std::vector<PendingSend> pending;
  SendStep::Pulls failed;
  std::vector<std::shared_ptr<PeerChannel>> refused;
  std::deque<int64_t> lost;
  std::vector<SendState::Copy> lost_copies;
  std::shared_ptr<PeerChannel> replaced, left;
  bool admitted = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (states_.size() >= kMaxSessions && !states_.contains(session)) return false;
    admitted = AdmitLocked(session, channel, &refused, &replaced, &left, &failed);
    if (admitted) {
      SendState& state = states_[session];
      lost = state.lost_steps.keys();
      lost_copies.swap(state.untold_copies);
      for (const auto& [step_id, key] : asked) {
        SendStep& step = StepLocked(step_id);
        step.session = session;
        ++step.held[key];
      }
      TakeAllPendingLocked(session, &state, &pending);
    }
  }
  Fail(std::move(failed), LostStatus(task()));
  if (replaced != nullptr) replaced->Refuse();
  for (const std::shared_ptr<PeerChannel>& each : refused)
    (void)TellOfName(each.get(), MessageKind::kContested, session, task());
  if (!admitted && refused.empty()) return true;
  if (left != nullptr) SenderEnd::Of(*channel)->AddFormer(left);
  if (!admitted) {
    RecordPeer(Direction::kSend, task(), kRpcTransport,
               absl::StrCat(channel->peer_name(), " is not the only process of this name"), true);
    FindOwner(session, nullptr);
    return true;
  }
  RecordPeer(Direction::kSend, task(), channel->transport(),
             left != nullptr ? absl::StrCat("the receiver moved from ", left->transport(), " to it")
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
    auto state = states_.find(session);
    is_attached = state != states_.end() && state->second.channel != nullptr;
    return is_attached || !opened.IsUp();
  });
  return is_attached;
}

void Receiver::OnOpenedLost() {
  std::lock_guard<std::mutex> lock(mutex_);
  attached_.notify_all();
}

void Receiver::LoseStepsLocked(const std::string& session, SendState* state,
                               SendStep::Pulls* failed) {
  for (int64_t step_id : state->recent.keys()) {
    lost_.Add(step_id);
    state->lost_steps.Add(step_id);
    auto step = steps_.find(step_id);
    while (step != steps_.end() && !step->second.pulled.empty()) {
      step->second.TakePulls(step->second.pulled.begin()->first, failed);
    }
  }
  for (const SendState::Copy& copy : state->recent_copies.keys()) {
    auto step = steps_.find(copy.first);
    if (step != steps_.end()) step->second.TakePulls(copy.second, failed);
    lost_copies_.Add(copy);
  }
  const std::deque<SendState::Copy>& copies = state->recent_copies.keys();
  state->untold_copies.assign(copies.begin(), copies.end());
  ForgetSentLocked(session, state);
}

void Receiver::ForgetSentLocked(const std::string& session, SendState* state) {
  for (auto& entry : steps_) {
    if (entry.second.session == session) entry.second.held.clear();
  }
  state->recent.Clear();
  state->recent_copies.Clear();
  state->last_step = -1;
}

void Receiver::OnResumed(const std::shared_ptr<PeerChannel>& channel) {
  std::vector<std::vector<PendingSend>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [session, state] : states_) {
      if (state.channel == channel) TakeAllPendingLocked(session, &state, &all.emplace_back());
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
    for (auto& [session, state] : states_) {
      if (state.channel.get() != channel) continue;
      state.channel.reset();
      LoseStepsLocked(session, &state, &failed);
      lost = true;
    }
    if (lost) RecordAbsence(Direction::kSend, task(), Absence::kLost, "the channel ended");
  }
  Fail(std::move(failed), LostStatus(task()));
}

}  // namespace rdmatensor
