// SPDX-License-Identifier: Apache-2.0
#include "receive/receiver_end.h"

#include <algorithm>

#include "channel/names.h"
#include "receive/in_plans.h"
#include "xla/tsl/platform/env.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {

ReceiverEnd::ReceiverEnd(const ServerContext* server, MailboxTable* mailboxes, PeerChannel* channel)
    : server_(server),
      channel_(channel),
      reception_(server, mailboxes, channel, &places_, &InPlans::Get()->promotion(), this),
      places_(server, channel, &reception_) {}

bool ReceiverEnd::Handle(MessageKind kind, uint64_t value, const char* data, size_t size) {
  switch (kind) {
    case MessageKind::kTensor:
      return reception_.HandleTensor(data, size);
    case MessageKind::kUseRpc:
      return reception_.HandleUseRpc(data, size);
    case MessageKind::kPlanned:
    case MessageKind::kAccept:
      return places_.Handle(kind, value, data, size);
    case MessageKind::kWithdrawn:
      if (!places_.Handle(kind, value, data, size)) return false;
      AdvanceMove();
      return true;
    case MessageKind::kAbort:
      return HandleAbort(data, size);
    case MessageKind::kLost:
      return HandleLost(data, size);
    case MessageKind::kContested:
      return HandleContested(data, size);
    case MessageKind::kSource:
      return HandleSource(data, size);
    case MessageKind::kPaused:
      // An attempt may be over before its answer comes.
      if (const auto replacement = move()) replacement->OnPaused(value);
      return true;
    case MessageKind::kSwitched:
      if (const auto replacement = move()) replacement->OnSwitched();
      return true;
    default:
      return false;
  }
}

bool ReceiverEnd::HandleAbort(const char* data, size_t size) {
  StepMessage message;
  // absl maps numbers outside the table to kUnknown when they are read; 0 would mean success.
  if (!Parse(data, size, &message) || message.code == 0) return false;
  absl::Status status(static_cast<absl::StatusCode>(message.code), message.text);
  if (message.derived) status = tsl::StatusGroup::MakeDerived(status);
  OnStepFailed(message.step_id, status);
  return true;
}

bool ReceiverEnd::HandleLost(const char* data, size_t size) {
  StepMessage message;
  if (!Parse(data, size, &message)) return false;
  for (const auto& sender : Senders()) sender->OnLost(message.step_id, KeyId::Of(message.text));
  return true;
}

bool ReceiverEnd::HandleContested(const char* data, size_t size) {
  ReadyMessage message;
  if (!Parse(data, size, &message)) return false;
  for (const auto& sender : Senders()) {
    if (sender->session() == message.session && sender->receiver() == message.task) {
      sender->OnContested(channel_);
    }
  }
  return true;
}

bool ReceiverEnd::HandleSource(const char* data, size_t size) {
  SourceMessage message;
  if (!Parse(data, size, &message) || message.self.version != kProtocolVersion ||
      !NamesTask(message.receiver) || !NamesTask(message.sender) ||
      message.session.size() > kLongestName || message.self.incarnations.empty()) {
    return false;
  }
  announced_names_.emplace(message.receiver, message.sender);
  if (announced_names_.size() > kMaxNames) return false;
  const auto sender =
      server_->peers->FindSender({message.session, message.receiver, message.sender});
  tsl::Env::Default()->SchedClosure(
      [sender, opened = channel_->Shared(), self = std::move(message.self)] {
        sender->OnOpened(opened, self);
      });
  return true;
}

void ReceiverEnd::OnDown(absl::string_view why) {
  // This comes first, because those who look for another channel at once shall find the new one.
  if (const auto replacement = move()) replacement->OnDown(channel_);
  for (const auto& sender : Senders()) sender->OnDown(channel_, why);
  places_.OnDown();
}

absl::Status ReceiverEnd::OpenAhead(const std::vector<uint64_t>& region_keys) {
  for (uint64_t region_key : region_keys) {
    if (absl::Status opened = reception_.OpenAhead(region_key); !opened.ok()) return opened;
  }
  return absl::OkStatus();
}

void ReceiverEnd::OnReleased() {
  // They may hold this channel or others, and must not go under the lock.
  std::vector<std::shared_ptr<ChannelSender>> senders;
  std::shared_ptr<Replacement> replacement;
  std::shared_ptr<PeerChannel> successor;
  std::lock_guard<std::mutex> lock(mutex_);
  senders.swap(senders_);
  replacement.swap(move_);
  successor.swap(successor_);
  released_ = true;
}

std::shared_ptr<PeerChannel> ReceiverEnd::Add(std::shared_ptr<ChannelSender> sender) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (successor_ != nullptr) return successor_;
  channel_->SetName(Direction::kReceive, sender->task());
  if (std::find(senders_.begin(), senders_.end(), sender) == senders_.end()) {
    senders_.push_back(std::move(sender));
  }
  return nullptr;
}

bool ReceiverEnd::Remove(const ChannelSender* sender) {
  std::lock_guard<std::mutex> lock(mutex_);
  senders_.erase(std::remove_if(senders_.begin(), senders_.end(),
                                [sender](const auto& each) { return each.get() == sender; }),
                 senders_.end());
  return senders_.empty();
}

std::vector<std::shared_ptr<ChannelSender>> ReceiverEnd::Senders() {
  std::lock_guard<std::mutex> lock(mutex_);
  return senders_;
}

std::shared_ptr<Replacement> ReceiverEnd::move() {
  std::lock_guard<std::mutex> lock(mutex_);
  return move_;
}

void ReceiverEnd::SetMove(std::shared_ptr<Replacement> move) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (released_) return;
  move_.swap(move);
  moves_.store(move_ != nullptr, std::memory_order_release);
}

void ReceiverEnd::AdvanceMove() {
  if (!moves_.load(std::memory_order_acquire)) return;
  if (const std::shared_ptr<Replacement> replacement = move()) replacement->Advance();
}

std::vector<std::shared_ptr<ChannelSender>> ReceiverEnd::LeaveFor(
    std::shared_ptr<PeerChannel> next) {
  std::lock_guard<std::mutex> lock(mutex_);
  // They stay until the channel ends, because failures of their steps may still be told on it.
  if (!released_) successor_ = std::move(next);
  return senders_;
}

std::shared_ptr<PeerChannel> ReceiverEnd::successor() {
  std::lock_guard<std::mutex> lock(mutex_);
  return successor_;
}

void ReceiverEnd::OnStepFailed(int64_t step_id, const absl::Status& status) {
  for (const auto& sender : Senders()) sender->OnStepAbort(step_id, status);
}

void ReceiverEnd::OnUnreachable(const std::string& why) {
  for (const auto& sender : Senders()) sender->GiveUp(channel_, why);
}

}  // namespace rdmatensor
