// SPDX-License-Identifier: Apache-2.0
#include "send/send_states.h"

#include <deque>
#include <utility>

#include "send/sender_end.h"

namespace rdmatensor {
namespace {

constexpr std::chrono::seconds kSweepPeriod{10};

// Limits the sessions of a name. Sessions that are over are forgotten long before.
constexpr size_t kMaxSessions = 1024;

}  // namespace

SendState* SendStates::Of(const std::string& session) {
  if (states_.size() >= kMaxSessions && !states_.contains(session)) return nullptr;
  return &states_[session];
}

SendState* SendStates::Find(const std::string& session) {
  auto found = states_.find(session);
  return found == states_.end() ? nullptr : &found->second;
}

bool SendStates::ForgetIdle() {
  absl::erase_if(states_, [](const auto& entry) { return entry.second.IsIdle(); });
  absl::erase_if(steps_, [](const auto& entry) {
    return entry.second.IsEmpty() && entry.second.referred.empty();
  });
  return states_.empty() && steps_.empty() && lost_.empty() && lost_copies_.empty();
}

SendStep& SendStates::Step(int64_t step_id) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sweep_ > kSweepPeriod) {
    last_sweep_ = now;
    // Pending tensors end with their step, as in TensorFlow; requests with their answer.
    absl::erase_if(steps_, [&](const auto& entry) {
      return entry.second.IsEmpty() && now - entry.second.created > ttl_;
    });
  }
  return steps_[step_id];
}

SendStep* SendStates::FindStep(int64_t step_id) {
  if (steps_.empty()) return nullptr;
  auto found = steps_.find(step_id);
  return found == steps_.end() ? nullptr : &found->second;
}

SendStep SendStates::TakeStep(int64_t step_id) {
  SendStep taken;
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return taken;
  std::swap(taken, found->second);
  steps_.erase(found);
  return taken;
}

bool SendStates::Admit(const std::string& session, const std::shared_ptr<PeerChannel>& channel,
                       Admitted* admitted) {
  SendState& state = states_[session];
  if (state.channel == channel) return true;
  std::vector<std::shared_ptr<PeerChannel>>& refused = admitted->refused;
  const bool owns = state.owner == channel->peer_name();
  if (!state.owner.empty() && !owns) {
    refused.push_back(channel);
    return false;
  }
  const auto is_other = [&channel](const std::shared_ptr<PeerChannel>& each) {
    return each != nullptr && each->IsUp() && each->peer_name() != channel->peer_name();
  };
  for (const std::weak_ptr<PeerChannel>& each : state.rivals) {
    std::shared_ptr<PeerChannel> rival = each.lock();
    if (!owns && is_other(rival)) refused.push_back(std::move(rival));
  }
  if (state.channel != nullptr && state.channel->peer_name() == channel->peer_name()) {
    // It came late: the process has left this channel for the other one.
    if (SenderEnd::Of(*channel)->has_paused()) return false;
    if (SenderEnd::Of(*state.channel)->has_paused() && SenderEnd::Of(*channel)->succeeds()) {
      ForgetSent(session, &state);
      admitted->left = std::exchange(state.channel, nullptr);
    }
  }
  if (state.channel != nullptr) {
    LoseSteps(session, &state, &admitted->failed);
    admitted->replaced = std::exchange(state.channel, nullptr);
    // If it is no other process, that process noticed the loss of the old channel first, or was restarted.
    if (is_other(admitted->replaced)) {
      refused.push_back(std::exchange(admitted->replaced, nullptr));
    }
  }
  state.rivals.clear();
  if (owns || refused.empty()) {
    state.channel = channel;
    return true;
  }
  refused.push_back(channel);
  state.rivals.assign(refused.begin(), refused.end());
  return false;
}

void SendStates::TakeKey(int64_t step_id, SendStep* step, const std::string& key, SendState* state,
                         std::vector<PendingSend>* pending) {
  auto found = step->pending.find(key);
  if (found == step->pending.end()) return;
  state->Record(step_id, key, found->second.front().is_copy);
  ++step->held[key];
  for (PendingSend& send : found->second) pending->push_back(std::move(send));
  step->pending.erase(found);
}

std::vector<PendingSend> SendStates::TakePending(const std::string& session, SendState* state) {
  std::vector<PendingSend> pending;
  if (!SenderEnd::Of(*state->channel)->BeginPush()) return pending;
  for (auto& [step_id, step] : steps_) {
    if (step.session != session) continue;
    std::vector<std::string> keys;
    for (const auto& entry : step.pending) {
      if (!step.held.contains(entry.first)) keys.push_back(entry.first);
    }
    for (const std::string& key : keys) TakeKey(step_id, &step, key, state, &pending);
  }
  if (pending.empty()) SenderEnd::Of(*state->channel)->EndPush();
  return pending;
}

void SendStates::Unhold(const Channel* channel, int64_t step_id, absl::string_view key,
                        std::vector<PendingSend>* pending) {
  SendStep* const step = FindStep(step_id);
  SendState* const state = step == nullptr ? nullptr : Find(step->session);
  if (state == nullptr || state->channel.get() != channel) return;
  if (!SendStep::Take(&step->held, key) || step->held.contains(key)) return;
  if (pending != nullptr) TakeKey(step_id, step, std::string(key), state, pending);
}

void SendStates::LoseSteps(const std::string& session, SendState* state, SendStep::Pulls* failed) {
  for (int64_t step_id : state->recent.keys()) {
    lost_.Add(step_id);
    state->lost_steps.Add(step_id);
    SendStep* const step = FindStep(step_id);
    while (step != nullptr && !step->pulled.empty()) {
      step->TakePulls(step->pulled.begin()->first, failed);
    }
  }
  for (const SendState::Copy& copy : state->recent_copies.keys()) {
    if (SendStep* const step = FindStep(copy.first)) step->TakePulls(copy.second, failed);
    lost_copies_.Add(copy);
  }
  const std::deque<SendState::Copy>& copies = state->recent_copies.keys();
  state->untold_copies.assign(copies.begin(), copies.end());
  ForgetSent(session, state);
}

bool SendStates::WasLost(int64_t step_id, absl::string_view key) const {
  return lost_.Contains(step_id) ||
         (!lost_copies_.empty() && lost_copies_.Contains(SendState::Copy(step_id, key)));
}

void SendStates::ForgetSent(const std::string& session, SendState* state) {
  for (auto& entry : steps_) {
    if (entry.second.session == session) entry.second.held.clear();
  }
  state->recent.Clear();
  state->recent_copies.Clear();
  state->last_step = -1;
}

}  // namespace rdmatensor
