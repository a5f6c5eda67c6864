// SPDX-License-Identifier: Apache-2.0
#include "send/sender_end.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/names.h"
#include "channel/peers.h"
#include "send/out_edges.h"

namespace rdmatensor {

SenderEnd::SenderEnd(const ServerContext* server, PeerChannel* channel)
    : server_(server),
      channel_(channel),
      offers_(server, channel,
              [this](const std::shared_ptr<AcceptedOffer>& accepted) { Bind(accepted); }) {}

bool SenderEnd::Handle(MessageKind kind, uint64_t value, const char* data, size_t size) {
  switch (kind) {
    case MessageKind::kReady:
      return HandleReady(data, size);
    case MessageKind::kRpcPending:
      return HandleRpcPending(data, size);
    case MessageKind::kRpcDone:
      return HandleRpcDone(data, size);
    case MessageKind::kOffer:
      return offers_.TakePiece(value, data, size);
    case MessageKind::kWithdraw:
      return offers_.Withdraw(value);
    case MessageKind::kPause:
      Pause(value);
      return true;
    case MessageKind::kResume:
      Resume();
      return true;
    case MessageKind::kDrained:
      succeeds_.store(true);
      return true;
    case MessageKind::kSwitched:
      OnSwitched(value);
      return true;
    default:
      return false;
  }
}

bool SenderEnd::HandleReady(const char* data, size_t size) {
  ReadyMessage message;
  if (!Parse(data, size, &message) || message.version != kProtocolVersion ||
      !NamesTask(message.task) || message.session.size() > kLongestName) {
    return false;
  }
  const std::shared_ptr<ChannelReceiver> receiver = server_->peers->FindReceiver(message.task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    channel_->SetName(Direction::kSend, message.task);
    if (std::find(receivers_.begin(), receivers_.end(), receiver) == receivers_.end()) {
      if (receivers_.size() >= kMaxNames) return false;
      receivers_.push_back(receiver);
    }
  }
  offers_.BindAll();
  rpc_pending_bytes_ = 0;
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("tensorflow: ", channel_->peer_name(), " receives as ",
                                           message.task, " in session '", message.session, "'")
                                  .c_str());
  return receiver->Attach(channel_->Shared(), message.session, std::exchange(rpc_pending_, {}));
}

bool SenderEnd::HandleRpcPending(const char* data, size_t size) {
  StepMessage message;
  if (!Parse(data, size, &message)) return false;
  rpc_pending_bytes_ += RpcPendingBytes(message.text);
  if (rpc_pending_bytes_ > kMaxRpcPendingBytes) return false;
  rpc_pending_.emplace_back(message.step_id, message.text);
  return true;
}

bool SenderEnd::HandleRpcDone(const char* data, size_t size) {
  StepMessage message;
  const auto receivers = Receivers();
  if (receivers.empty() || !Parse(data, size, &message)) return false;
  for (const auto& receiver : receivers) {
    receiver->OnRpcDone(channel_, message.step_id, message.text);
  }
  return true;
}

void SenderEnd::OnDown(absl::string_view /*why*/) {
  for (const auto& receiver : Receivers()) receiver->OnDown(channel_);
  offers_.OnDown();
}

void SenderEnd::OnReleased() {
  // They may hold this channel or others, and must not go under the lock.
  std::vector<std::shared_ptr<ChannelReceiver>> receivers;
  std::vector<std::shared_ptr<PeerChannel>> former;
  std::lock_guard<std::mutex> lock(mutex_);
  receivers.swap(receivers_);
  former.swap(former_);
  released_ = true;
}

std::vector<std::shared_ptr<ChannelReceiver>> SenderEnd::Receivers() {
  std::lock_guard<std::mutex> lock(mutex_);
  return receivers_;
}

void SenderEnd::Bind(const std::shared_ptr<AcceptedOffer>& accepted) {
  for (const std::shared_ptr<ChannelReceiver>& receiver : Receivers()) {
    OutEdges::Get()->Bind(*server_, receiver->task(), receiver, accepted);
  }
}

bool SenderEnd::BeginPush() {
  if (pushes_.Enter()) return true;
  EndPush();
  return false;
}

void SenderEnd::EndPush() {
  if (pushes_.Leave()) TellPaused();
}

void SenderEnd::TellPaused() {
  std::lock_guard<std::mutex> lock(pause_mutex_);
  if (told_paused_ || !pushes_.is_over()) return;
  // If the channel is down, what it carried is lost, and nobody waits for this.
  told_paused_ = channel_->Notify(PackImmediate(MessageKind::kPaused, pause_number_)).ok();
}

bool SenderEnd::has_paused() {
  std::lock_guard<std::mutex> lock(pause_mutex_);
  return told_paused_;
}

void SenderEnd::Pause(uint64_t number) {
  offers_.Retire();
  {
    std::lock_guard<std::mutex> lock(pause_mutex_);
    pause_number_ = number;
    told_paused_ = false;
    pushes_.Close();
  }
  TellPaused();
}

void SenderEnd::Resume() {
  offers_.Resume();
  {
    std::lock_guard<std::mutex> lock(pause_mutex_);
    pushes_.Open();
    told_paused_ = false;
  }
  for (const auto& receiver : Receivers()) receiver->OnResumed(channel_->Shared());
}

void SenderEnd::AddFormer(std::shared_ptr<PeerChannel> former) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (released_ || std::find(former_.begin(), former_.end(), former) != former_.end()) return;
  former_.push_back(std::move(former));
}

void SenderEnd::OnSwitched(uint64_t number) {
  std::vector<std::shared_ptr<PeerChannel>> former;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    former.swap(former_);
  }
  // It is the last message of the old channel, so what was said there before is heard.
  for (const auto& each : former) (void)each->Notify(PackImmediate(MessageKind::kSwitched, number));
  if (former.empty()) (void)channel_->Notify(PackImmediate(MessageKind::kSwitched, number));
}

}  // namespace rdmatensor
