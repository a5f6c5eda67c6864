// SPDX-License-Identifier: Apache-2.0
//
// Which process has the name of a receiver, which channel leads to it, and what is lost with a channel.
#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/message.h"
#include "channel/notices.h"
#include "channel/task_call.h"
#include "send/destination.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

// Limits the sessions of a name. Sessions that are over are forgotten long before.
constexpr size_t kMaxSessions = 1024;

absl::Status LostStatus(absl::string_view task) {
  return absl::UnavailableError(
      absl::StrCat("rdmatensor: the channel to ", task, " was lost during this step"));
}

}  // namespace

// One request by RPC from the receiver. It ends once.
class Destination::Pull {
 public:
  explicit Pull(tensorflow::Rendezvous::DoneCallback done) : done_(std::move(done)) {}
  void End(const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
           const tensorflow::Rendezvous::Args& receive_args, const tensorflow::Tensor& tensor,
           bool is_dead) {
    if (!ended_.exchange(true)) done_(status, send_args, receive_args, tensor, is_dead);
  }

 private:
  const tensorflow::Rendezvous::DoneCallback done_;
  std::atomic<bool> ended_{false};
};

void Destination::ForgetPull(int64_t step_id, const std::string& key, const Pull* pull) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto step = steps_.find(step_id);
  if (step == steps_.end()) return;
  auto found = step->second.pulled.find(key);
  if (found == step->second.pulled.end()) return;
  auto& pulls = found->second;
  pulls.erase(std::remove_if(pulls.begin(), pulls.end(),
                             [pull](const auto& each) { return each.get() == pull; }),
              pulls.end());
  if (pulls.empty()) step->second.pulled.erase(found);
}

absl::StatusOr<bool> Destination::OnPull(int64_t step_id, absl::string_view key,
                                         PendingSend* pending,
                                         tensorflow::Rendezvous::DoneCallback* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.Contains(step_id) ||
      (!lost_copies_.empty() && lost_copies_.Contains(SendState::Copy(step_id, key)))) {
    return LostStatus(task());
  }
  Step& step = StepLocked(step_id);
  if (Take(&step.referred, key)) return false;
  auto found = step.pending.find(key);
  if (found == step.pending.end()) {
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
  *pending = std::move(found->second.front());
  found->second.erase(found->second.begin());
  if (found->second.empty()) step.pending.erase(found);
  return true;
}

bool Destination::AdmitLocked(const std::string& session,
                              const std::shared_ptr<PeerChannel>& channel,
                              std::vector<std::shared_ptr<PeerChannel>>* refused,
                              std::shared_ptr<PeerChannel>* replaced,
                              std::shared_ptr<PeerChannel>* left,
                              std::vector<std::shared_ptr<Pull>>* failed) {
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

void Destination::SetOwner(const std::string& session,
                           const std::shared_ptr<tensorflow::WorkerCacheInterface>& workers,
                           const std::string& device_name) {
  std::vector<std::shared_ptr<Pull>> failed;
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

void Destination::FindOwner(const std::string& session,
                            std::shared_ptr<tensorflow::WorkerCacheInterface> workers) {
  // Looking up a session takes locks of TensorFlow that the caller may hold, and asking blocks.
  tsl::Env::Default()->SchedClosure(
      [self = shared_from_this(), session, workers = std::move(workers)]() mutable {
        const std::shared_ptr<tensorflow::WorkerSession> found = self->sessions_->Find(session);
        if (workers == nullptr && found != nullptr) workers = found->GetSharedWorkerCache();
        if (workers == nullptr) return;
        AddressAnswer answer;
        const absl::StatusOr<std::string> encoded =
            AskTask(workers.get(), self->task(), self->host_->task, kAddressKey, "",
                    self->host_->settings.connect_timeout_ms);
        if (!encoded.ok() || !Parse(*encoded, &answer)) answer.device_name.clear();
        self->SetOwner(session, workers, answer.device_name);
      });
}

void Destination::TakeAllPendingLocked(const std::string& session, SendState* state,
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

bool Destination::Attach(std::shared_ptr<PeerChannel> channel, const std::string& session,
                         const Asked& asked) {
  std::vector<PendingSend> pending;
  std::vector<std::shared_ptr<Pull>> failed;
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
        Step& step = StepLocked(step_id);
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

bool Destination::AwaitChannel(const std::string& session, const Channel& opened, int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  bool is_attached = false;
  attached_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    auto state = states_.find(session);
    is_attached = state != states_.end() && state->second.channel != nullptr;
    return is_attached || !opened.IsUp();
  });
  return is_attached;
}

void Destination::OnOpenedLost() {
  std::lock_guard<std::mutex> lock(mutex_);
  attached_.notify_all();
}

void Destination::TakePulls(Step* step, absl::string_view key,
                            std::vector<std::shared_ptr<Pull>>* pulls) {
  auto found = step->pulled.find(key);
  if (found == step->pulled.end()) return;
  for (std::shared_ptr<Pull>& pull : found->second) pulls->push_back(std::move(pull));
  step->pulled.erase(found);
}

void Destination::LoseStepsLocked(const std::string& session, SendState* state,
                                  std::vector<std::shared_ptr<Pull>>* failed) {
  for (int64_t step_id : state->recent.keys()) {
    lost_.Add(step_id);
    state->lost_steps.Add(step_id);
    auto step = steps_.find(step_id);
    while (step != steps_.end() && !step->second.pulled.empty()) {
      TakePulls(&step->second, step->second.pulled.begin()->first, failed);
    }
  }
  for (const SendState::Copy& copy : state->recent_copies.keys()) {
    auto step = steps_.find(copy.first);
    if (step != steps_.end()) TakePulls(&step->second, copy.second, failed);
    lost_copies_.Add(copy);
  }
  const std::deque<SendState::Copy>& copies = state->recent_copies.keys();
  state->untold_copies.assign(copies.begin(), copies.end());
  ForgetSentLocked(session, state);
}

void Destination::ForgetSentLocked(const std::string& session, SendState* state) {
  for (auto& entry : steps_) {
    if (entry.second.session == session) entry.second.held.clear();
  }
  state->recent.Clear();
  state->recent_copies.Clear();
  state->last_step = -1;
}

void Destination::OnResumed(const std::shared_ptr<PeerChannel>& channel) {
  std::vector<std::vector<PendingSend>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [session, state] : states_) {
      if (state.channel == channel) TakeAllPendingLocked(session, &state, &all.emplace_back());
    }
  }
  for (std::vector<PendingSend>& pending : all) PushSoon(std::move(pending), channel);
}

void Destination::Fail(std::vector<std::shared_ptr<Pull>> pulls, const absl::Status& status) {
  if (pulls.empty()) return;
  // This thread may be any of TensorFlow's, and may hold its locks.
  tsl::Env::Default()->SchedClosure([pulls = std::move(pulls), status] {
    const tensorflow::Rendezvous::Args none;
    for (const std::shared_ptr<Pull>& pull : pulls) {
      pull->End(status, none, none, tensorflow::Tensor(), false);
    }
  });
}

void Destination::OnDown(Channel* channel) {
  std::vector<std::shared_ptr<Pull>> failed;
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
