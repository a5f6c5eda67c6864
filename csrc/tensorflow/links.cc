// SPDX-License-Identifier: Apache-2.0
#include "links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "endpoint.h"
#include "message.h"
#include "path_stats.h"
#include "rendezvous.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

constexpr size_t kRememberedSteps = 1024;
constexpr std::chrono::seconds kSweepPeriod{10};

absl::Status LostStatus(absl::string_view task) {
  return absl::UnavailableError(
      absl::StrCat("rdmatensor: the channel to ", task, " was lost during this step"));
}

absl::Status TellFailure(Channel* channel, int64_t step_id, const absl::Status& status) {
  StepMessage message;
  message.step_id = step_id;
  message.code = static_cast<int32_t>(status.code());
  message.derived = tsl::StatusGroup::IsDerived(status);
  // A status may quote whole graphs; the beginning says what happened.
  constexpr size_t kLongestText = 2048;
  const size_t room = channel->max_notify() > EncodedSize(message)
                          ? static_cast<size_t>(channel->max_notify()) - EncodedSize(message)
                          : 0;
  message.text = status.message().substr(0, std::min(kLongestText, room));
  return channel->NotifyMessage(PackImmediate(MessageKind::kAbort), message);
}

}  // namespace

PendingSend::PendingSend() = default;
PendingSend::PendingSend(PendingSend&&) noexcept = default;
PendingSend& PendingSend::operator=(PendingSend&&) noexcept = default;
PendingSend::~PendingSend() = default;

bool DestinationLink::Take(Counts* counts, absl::string_view key) {
  auto found = counts->find(key);
  if (found == counts->end()) return false;
  if (--found->second == 0) counts->erase(found);
  return true;
}

bool DestinationLink::MayPush(int64_t step_id, const Channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (channel_.get() != channel) return false;
  if (!steps_.empty()) {
    auto step = steps_.find(step_id);
    if (step != steps_.end() && !step->second.pulled.empty()) return false;
  }
  RecordStepLocked(step_id);
  return true;
}

void DestinationLink::ExpectPull(int64_t step_id, absl::string_view key) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++StepLocked(step_id).referred[key];
}

DestinationLink::DestinationLink(Endpoint* endpoint, std::string task, std::chrono::seconds ttl)
    : endpoint_(endpoint), task_(std::move(task)), ttl_(ttl) {}

absl::StatusOr<bool> DestinationLink::OnPull(int64_t step_id, absl::string_view key,
                                             PendingSend* pending) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.contains(step_id)) return LostStatus(task_);
  Step& step = StepLocked(step_id);
  if (Take(&step.referred, key)) return false;
  auto found = step.pending.find(key);
  if (found == step.pending.end()) {
    ++step.pulled[key];
    return false;
  }
  *pending = std::move(found->second.front());
  found->second.erase(found->second.begin());
  if (found->second.empty()) step.pending.erase(found);
  return true;
}

void DestinationLink::Attach(std::shared_ptr<Channel> channel) {
  std::vector<PendingSend> pending;
  std::deque<Failure> announcements;
  std::shared_ptr<Channel> replaced;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    replaced = std::exchange(channel_, channel);
    announcements = announcements_;
    for (auto& [step_id, step] : steps_) {
      if (step.pending.empty()) continue;
      RecordStepLocked(step_id);
      for (auto& [key, sends] : step.pending) {
        for (PendingSend& send : sends) pending.push_back(std::move(send));
      }
      step.pending.clear();
    }
  }
  // The task was restarted: nobody reads the old channel.
  if (replaced != nullptr && replaced != channel) replaced->Close();
  RecordPeer(Direction::kSend, task_, channel->transport(), "the receiver opened this channel",
             false);
  for (const Failure& failure : announcements) {
    (void)TellFailure(channel.get(), failure.step_id, failure.status);
  }
  if (pending.empty()) return;
  // Pushing may copy large tensors, which the progress thread has no time for.
  tsl::Env::Default()->SchedClosure([this, channel, pending = std::move(pending)]() mutable {
    PushPending(std::move(pending), channel);
  });
}

void DestinationLink::PushPending(std::vector<PendingSend> pending,
                                  const std::shared_ptr<Channel>& channel) {
  for (PendingSend& send : pending) {
    if (send.refer_reason != nullptr) {
      CountSent(Path::kRpc, send.bytes, TrafficOf(Direction::kSend, task_, kRpcTransport));
      endpoint_->Refer(channel, send.rendezvous->step_id(), send.key.FullKey(), send.refer_reason);
    } else {
      tensorflow::Rendezvous::Args args;
      args.alloc_attrs = send.attributes;
      send.rendezvous->Push(channel, send.key, args, send.tensor, send.is_dead);
    }
  }
}

void DestinationLink::OnDown(Channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (channel_.get() != channel) return;
  channel_.reset();
  RecordAbsence(Direction::kSend, task_, Absence::kLost, "the channel ended");
  for (int64_t step_id : recent_order_) {
    if (lost_.insert(step_id).second) lost_order_.push_back(step_id);
    AnnounceLocked(step_id, LostStatus(task_));
  }
  while (lost_order_.size() > kRememberedSteps) {
    lost_.erase(lost_order_.front());
    lost_order_.pop_front();
  }
  recent_.clear();
  recent_order_.clear();
  last_step_ = -1;
}

void DestinationLink::DropStep(int64_t step_id) {
  Step dropped;  // freed after the lock
  std::shared_ptr<Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    channel = channel_;
  }
  if (channel != nullptr) channel->plan().DropStep(step_id);
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = steps_.find(step_id);
  if (found == steps_.end()) return;
  std::swap(dropped, found->second);
  steps_.erase(found);
}

void DestinationLink::SendAbort(int64_t step_id, const absl::Status& status) {
  std::shared_ptr<Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    channel = channel_;
    if (channel == nullptr) AnnounceLocked(step_id, status);
  }
  if (channel != nullptr) (void)TellFailure(channel.get(), step_id, status);
}

DestinationLink::Step& DestinationLink::StepLocked(int64_t step_id) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sweep_ > kSweepPeriod) {
    last_sweep_ = now;
    for (auto entry = steps_.begin(); entry != steps_.end();) {
      const auto current = entry++;
      // Only what is empty or was asked for: pending tensors end with their step, as in TensorFlow.
      if (current->second.pending.empty() && now - current->second.created > ttl_) {
        steps_.erase(current);
      }
    }
  }
  return steps_[step_id];
}

void DestinationLink::RecordStepLocked(int64_t step_id) {
  if (step_id == last_step_) return;
  last_step_ = step_id;
  if (!recent_.insert(step_id).second) return;
  recent_order_.push_back(step_id);
  if (recent_order_.size() > kRememberedSteps) {
    recent_.erase(recent_order_.front());
    recent_order_.pop_front();
  }
}

void DestinationLink::AnnounceLocked(int64_t step_id, const absl::Status& status) {
  announcements_.push_back({step_id, status});
  if (announcements_.size() > kRememberedSteps) announcements_.pop_front();
}

}  // namespace rdmatensor
