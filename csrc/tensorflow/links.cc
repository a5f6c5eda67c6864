// SPDX-License-Identifier: Apache-2.0
#include "links.h"

#include <algorithm>
#include <atomic>
#include <set>
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

// One request of the receiver's by RPC. It ends once.
class DestinationLink::Pull {
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

std::shared_ptr<Channel> DestinationLink::ReadyChannel() {
  std::lock_guard<std::mutex> lock(mutex_);
  return channel_;
}

bool DestinationLink::TakePull(Step* step, absl::string_view key) {
  auto found = step->pulled.find(key);
  if (found == step->pulled.end()) return false;
  found->second.erase(found->second.begin());
  if (found->second.empty()) step->pulled.erase(found);
  return true;
}

void DestinationLink::ForgetPull(int64_t step_id, const std::string& key, const Pull* pull) {
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

bool DestinationLink::MayPush(int64_t step_id, const Channel* channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (channel_.get() != channel) return false;
  if (!steps_.empty()) {
    auto step = steps_.find(step_id);
    if (step != steps_.end() && (!step->second.pulled.empty() || !step->second.held.empty())) {
      return false;
    }
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
                                             PendingSend* pending,
                                             tensorflow::Rendezvous::DoneCallback* done) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_.Contains(step_id) ||
      (!lost_copies_.empty() && lost_copies_.Contains(Copy(step_id, key)))) {
    return LostStatus(task_);
  }
  Step& step = StepLocked(step_id);
  if (Take(&step.referred, key)) return false;
  auto found = step.pending.find(key);
  if (found == step.pending.end()) {
    auto pull = std::make_shared<Pull>(std::move(*done));
    step.pulled[key].push_back(pull);
    *done = [this, pull, step_id, name = std::string(key)](
                const absl::Status& status, const tensorflow::Rendezvous::Args& send_args,
                const tensorflow::Rendezvous::Args& receive_args, const tensorflow::Tensor& tensor,
                bool is_dead) {
      ForgetPull(step_id, name, pull.get());
      pull->End(status, send_args, receive_args, tensor, is_dead);
    };
    return false;
  }
  *pending = std::move(found->second.front());
  found->second.erase(found->second.begin());
  if (found->second.empty()) step.pending.erase(found);
  return true;
}

void DestinationLink::Attach(std::shared_ptr<Channel> channel, const Asked& asked) {
  std::vector<PendingSend> pending;
  std::vector<std::shared_ptr<Pull>> failed;
  std::deque<Failure> announcements;
  std::vector<Copy> lost_copies;
  std::shared_ptr<Channel> replaced;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The task was restarted, or noticed first that the old channel is lost.
    if (channel_ != nullptr && channel_ != channel) LoseStepsLocked(&failed);
    replaced = std::exchange(channel_, channel);
    announcements = announcements_;
    lost_copies.swap(untold_copies_);
    for (const auto& [step_id, key] : asked) ++StepLocked(step_id).held[key];
    for (auto& [step_id, step] : steps_) {
      std::vector<std::string> keys;
      for (const auto& entry : step.pending) {
        if (!step.held.contains(entry.first)) keys.push_back(entry.first);
      }
      for (const std::string& key : keys) TakePendingLocked(step_id, &step, key, &pending);
    }
  }
  Fail(std::move(failed), LostStatus(task_));
  if (replaced != nullptr && replaced != channel) replaced->Refuse();
  RecordPeer(Direction::kSend, task_, channel->transport(), "the receiver opened this channel",
             false);
  for (const Failure& failure : announcements) {
    (void)TellFailure(channel.get(), failure.step_id, failure.status);
  }
  for (const auto& [step_id, key] : lost_copies) {
    StepMessage message;
    message.step_id = step_id;
    message.text = key;
    (void)channel->NotifyMessage(PackImmediate(MessageKind::kLost), message);
  }
  PushSoon(std::move(pending), std::move(channel));
}

void DestinationLink::OnAnswered(Channel* channel, int64_t step_id, absl::string_view key) {
  std::vector<PendingSend> pending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    UnholdLocked(step_id, key, &pending);
  }
  PushSoon(std::move(pending), channel->shared_from_this());
}

void DestinationLink::TakePendingLocked(int64_t step_id, Step* step, const std::string& key,
                                        std::vector<PendingSend>* pending) {
  auto found = step->pending.find(key);
  if (found == step->pending.end()) return;
  RecordLocked(step_id, key, found->second.front().is_copy);
  ++step->held[key];
  for (PendingSend& send : found->second) pending->push_back(std::move(send));
  step->pending.erase(found);
}

void DestinationLink::UnholdLocked(int64_t step_id, absl::string_view key,
                                   std::vector<PendingSend>* pending) {
  auto step = steps_.find(step_id);
  if (step == steps_.end() || !Take(&step->second.held, key)) return;
  if (step->second.held.contains(key)) return;
  TakePendingLocked(step_id, &step->second, std::string(key), pending);
}

void DestinationLink::PushSoon(std::vector<PendingSend> pending, std::shared_ptr<Channel> channel) {
  if (pending.empty()) return;
  tsl::Env::Default()->SchedClosure(
      [this, channel = std::move(channel), pending = std::move(pending)]() mutable {
        while (!pending.empty()) {
          PushPending(pending, channel);
          // What was produced meanwhile waits, so that each key's tensors stay in order.
          std::set<std::pair<int64_t, std::string>> pushed;
          for (const PendingSend& send : pending) {
            pushed.emplace(send.rendezvous->step_id(), send.key.FullKey());
          }
          pending.clear();
          std::lock_guard<std::mutex> lock(mutex_);
          if (channel_ != channel) return;
          for (const auto& [step_id, key] : pushed) UnholdLocked(step_id, key, &pending);
        }
      });
}

void DestinationLink::PushPending(const std::vector<PendingSend>& pending,
                                  const std::shared_ptr<Channel>& channel) {
  for (const PendingSend& send : pending) {
    if (send.refer_reason != nullptr) {
      CountSent(Path::kRpc, send.bytes, TrafficOf(Direction::kSend, task_, kRpcTransport));
      endpoint_->Refer(channel, send.rendezvous->step_id(), send.key.FullKey(), send.refer_reason);
    } else {
      tensorflow::Rendezvous::Args args;
      args.alloc_attrs = send.attributes;
      send.rendezvous->PushWhenAsked(channel, send.key, args, send.tensor, send.is_dead);
    }
  }
}

void DestinationLink::TakePulls(Step* step, absl::string_view key,
                                std::vector<std::shared_ptr<Pull>>* pulls) {
  auto found = step->pulled.find(key);
  if (found == step->pulled.end()) return;
  for (std::shared_ptr<Pull>& pull : found->second) pulls->push_back(std::move(pull));
  step->pulled.erase(found);
}

void DestinationLink::LoseStepsLocked(std::vector<std::shared_ptr<Pull>>* failed) {
  for (int64_t step_id : recent_.keys()) {
    lost_.Add(step_id);
    AnnounceLocked(step_id, LostStatus(task_));
    auto step = steps_.find(step_id);
    while (step != steps_.end() && !step->second.pulled.empty()) {
      TakePulls(&step->second, step->second.pulled.begin()->first, failed);
    }
  }
  for (const Copy& copy : recent_copies_.keys()) {
    auto step = steps_.find(copy.first);
    if (step != steps_.end()) TakePulls(&step->second, copy.second, failed);
    lost_copies_.Add(copy);
  }
  untold_copies_.assign(recent_copies_.keys().begin(), recent_copies_.keys().end());
  for (auto& entry : steps_) entry.second.held.clear();
  recent_.Clear();
  recent_copies_.Clear();
  last_step_ = -1;
}

void DestinationLink::Fail(std::vector<std::shared_ptr<Pull>> pulls, const absl::Status& status) {
  if (pulls.empty()) return;
  // The callers may be any of TensorFlow's.
  tsl::Env::Default()->SchedClosure([pulls = std::move(pulls), status] {
    const tensorflow::Rendezvous::Args none;
    for (const std::shared_ptr<Pull>& pull : pulls) {
      pull->End(status, none, none, tensorflow::Tensor(), false);
    }
  });
}

void DestinationLink::OnDown(Channel* channel) {
  std::vector<std::shared_ptr<Pull>> failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    channel_.reset();
    RecordAbsence(Direction::kSend, task_, Absence::kLost, "the channel ended");
    LoseStepsLocked(&failed);
  }
  Fail(std::move(failed), LostStatus(task_));
}

void DestinationLink::DropStep(int64_t step_id) {
  Step dropped;  // freed after the lock
  if (const std::shared_ptr<Channel> channel = ReadyChannel()) {
    channel->plan().DropStep(step_id);
    channel->requests().DropStep(step_id);
  }
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
      // Pending tensors end with their step, as in TensorFlow; requests with their answer.
      if (current->second.IsEmpty() && now - current->second.created > ttl_) {
        steps_.erase(current);
      }
    }
  }
  return steps_[step_id];
}

void DestinationLink::RecordLocked(int64_t step_id, absl::string_view key, bool is_copy) {
  if (!is_copy) {
    RecordStepLocked(step_id);
    return;
  }
  recent_copies_.Add(Copy(step_id, key));
}

void DestinationLink::RecordStepLocked(int64_t step_id) {
  if (step_id == last_step_) return;
  last_step_ = step_id;
  recent_.Add(step_id);
}

void DestinationLink::AnnounceLocked(int64_t step_id, const absl::Status& status) {
  announcements_.push_back({step_id, status});
  if (announcements_.size() > kRemembered) announcements_.pop_front();
}

}  // namespace rdmatensor
