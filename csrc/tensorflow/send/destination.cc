// SPDX-License-Identifier: Apache-2.0
#include "send/destination.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/spans.h"
#include "channel/message.h"
#include "channel/notices.h"
#include "send/push.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

constexpr std::chrono::seconds kSweepPeriod{10};

}  // namespace

bool Destination::Take(Counts* counts, absl::string_view key) {
  auto found = counts->find(key);
  if (found == counts->end()) return false;
  if (--found->second == 0) counts->erase(found);
  return true;
}

Destination::Channels Destination::ReadyChannels() {
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

bool Destination::TakePull(Step* step, absl::string_view key) {
  auto found = step->pulled.find(key);
  if (found == step->pulled.end()) return false;
  found->second.erase(found->second.begin());
  if (found->second.empty()) step->pulled.erase(found);
  return true;
}

bool Destination::MayPush(tensorflow::WorkerSession* session, const std::string& name,
                          int64_t step_id, const Channel* channel) {
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

Destination::Destination(const Host* host, const Sessions* sessions, const FailedHere* failed_here,
                         std::string task)
    : ChannelDestination(std::move(task)),
      host_(host),
      sessions_(sessions),
      failed_here_(failed_here),
      ttl_(host->settings.step_ttl_s) {}

void Destination::Push(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc,
                       int64_t step_id, const tensorflow::Rendezvous::ParsedKey& key,
                       const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor,
                       bool is_dead) {
  PushNow(channel, rpc, step_id, key, args, tensor, is_dead);
  SenderEnd::Of(*channel)->EndPush();
}

void Destination::PushNow(const std::shared_ptr<PeerChannel>& channel, RpcFallback* rpc,
                          int64_t step_id, const tensorflow::Rendezvous::ParsedKey& key,
                          const tensorflow::Rendezvous::Args& args,
                          const tensorflow::Tensor& tensor, bool is_dead) {
  if (is_dead) {
    PushDead(channel.get(), step_id, key.FullKey());
    return;
  }
  SendSpan span(key.edge_name, key.dst_device, tensor.TotalBytes());
  Path path = Path::kRpc;
  const char* reason = WhyNotPushable(key, tensor);
  if (reason == nullptr) {
    reason = PushTensor(*host_, channel.get(), step_id, key.FullKey(), tensor, &path);
  }
  span.End(PathName(path));
  if (reason == nullptr) return;
  CountSent(Path::kRpc, tensor.TotalBytes(), TrafficOf(Direction::kSend, task(), kRpcTransport));
  // This fails only when the step was aborted, which the receiver is told anyway.
  if (rpc->SendLocal(key, args, tensor, is_dead).ok()) {
    Refer(channel.get(), rpc, step_id, key.FullKey(), reason);
  }
}

void Destination::Refer(PeerChannel* channel, RpcFallback* rpc, int64_t step_id,
                        absl::string_view key, const char* reason) {
  CountRpcReason(reason);
  {
    // Decide must not take the request that follows for a new one.
    std::lock_guard<std::mutex> lock(mutex_);
    ++StepLocked(step_id).referred[key];
  }
  // If the channel is down the receiver's waiters fail with it.
  const absl::Status sent = TellOfKey(channel, MessageKind::kReferral, step_id, key);
  if (absl::IsInternal(sent)) SendAbort(rpc->session_name(), step_id, sent);
}

void Destination::OnAnswered(PeerChannel* channel, int64_t step_id, absl::string_view key) {
  std::vector<PendingSend> pending;
  const bool begins = SenderEnd::Of(*channel)->BeginPush();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    UnholdLocked(channel, step_id, key, begins ? &pending : nullptr);
  }
  if (begins && pending.empty()) SenderEnd::Of(*channel)->EndPush();
  PushSoon(std::move(pending), channel->Shared());
}

void Destination::TakePendingLocked(int64_t step_id, Step* step, const std::string& key,
                                    SendState* state, std::vector<PendingSend>* pending) {
  auto found = step->pending.find(key);
  if (found == step->pending.end()) return;
  state->Record(step_id, key, found->second.front().is_copy);
  ++step->held[key];
  for (PendingSend& send : found->second) pending->push_back(std::move(send));
  step->pending.erase(found);
}

void Destination::UnholdLocked(const Channel* channel, int64_t step_id, absl::string_view key,
                               std::vector<PendingSend>* pending) {
  auto step = steps_.find(step_id);
  if (step == steps_.end()) return;
  auto state = states_.find(step->second.session);
  if (state == states_.end() || state->second.channel.get() != channel) return;
  if (!Take(&step->second.held, key) || step->second.held.contains(key)) return;
  if (pending == nullptr) return;
  TakePendingLocked(step_id, &step->second, std::string(key), &state->second, pending);
}

void Destination::PushSoon(std::vector<PendingSend> pending, std::shared_ptr<PeerChannel> channel) {
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

void Destination::PushPending(const std::vector<PendingSend>& pending,
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

void Destination::DropStep(int64_t step_id) {
  Step dropped;  // freed after the lock
  for (const std::shared_ptr<PeerChannel>& channel : ReadyChannels()) {
    SenderEnd::Of(*channel)->offers().DropStep(step_id);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  std::swap(dropped, found->second);
  steps_.erase(found);
}

void Destination::SendAbort(const std::string& session, int64_t step_id,
                            const absl::Status& status) {
  // Under the lock, so that the receiver is told before it can leave the channel.
  std::lock_guard<std::mutex> lock(mutex_);
  auto state = states_.find(session);
  if (state == states_.end() || state->second.channel == nullptr) return;
  TellFailure(state->second.channel.get(), step_id, status);
}

std::vector<std::string> Destination::SessionNames() {
  std::vector<std::string> sessions;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : states_) sessions.push_back(entry.first);
  return sessions;
}

void Destination::ForgetSession(const std::string& session) {
  decltype(states_)::node_type forgotten;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  forgotten = states_.extract(session);
}

bool Destination::ForgetIdle() {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::erase_if(states_, [](const auto& entry) { return entry.second.IsIdle(); });
  absl::erase_if(steps_, [](const auto& entry) {
    return entry.second.IsEmpty() && entry.second.referred.empty();
  });
  return states_.empty() && steps_.empty() && lost_.empty() && lost_copies_.empty();
}

Destination::Step& Destination::StepLocked(int64_t step_id) {
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

}  // namespace rdmatensor
