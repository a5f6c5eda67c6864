// SPDX-License-Identifier: Apache-2.0
//
// How one channel replaces another one, as far as each of them knows it.
#include <utility>

#include "channel/peer_channel.h"

namespace rdmatensor {

std::shared_ptr<Replacement> PeerChannel::move() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return move_;
}

void PeerChannel::SetMove(std::shared_ptr<Replacement> move) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (released_) return;
  move_.swap(move);
  moves_.store(move_ != nullptr, std::memory_order_release);
}

std::vector<std::shared_ptr<ChannelSource>> PeerChannel::LeaveFor(
    std::shared_ptr<PeerChannel> next) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  // They stay until the channel ends, because failures of their steps may still be told on it.
  if (!released_) successor_ = std::move(next);
  return sources_;
}

std::shared_ptr<PeerChannel> PeerChannel::successor() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return successor_;
}

void PeerChannel::AdvanceMove() {
  if (!moves_.load(std::memory_order_acquire)) return;
  if (const std::shared_ptr<Replacement> replacement = move()) replacement->Advance();
}

bool PeerChannel::BeginPush() {
  if (pushes_.Enter()) return true;
  EndPush();
  return false;
}

void PeerChannel::EndPush() {
  if (pushes_.Leave()) TellPaused();
}

void PeerChannel::TellPaused() {
  std::lock_guard<std::mutex> lock(pause_mutex_);
  if (told_paused_ || !pushes_.is_over()) return;
  // If the channel is down, what it carried is lost, and nobody waits for this.
  told_paused_ = Notify(PackImmediate(MessageKind::kPaused, pause_number_)).ok();
}

bool PeerChannel::has_paused() {
  std::lock_guard<std::mutex> lock(pause_mutex_);
  return told_paused_;
}

void PeerChannel::Pause(uint64_t number) {
  offers_.Retire();
  {
    std::lock_guard<std::mutex> lock(pause_mutex_);
    pause_number_ = number;
    told_paused_ = false;
    pushes_.Close();
  }
  TellPaused();
}

void PeerChannel::Resume() {
  offers_.Resume();
  {
    std::lock_guard<std::mutex> lock(pause_mutex_);
    pushes_.Open();
    told_paused_ = false;
  }
  for (const auto& destination : Destinations()) destination->OnResumed(Shared());
}

void PeerChannel::AddFormer(std::shared_ptr<PeerChannel> former) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  for (const auto& each : former_) {
    if (each == former) return;
  }
  if (!released_) former_.push_back(std::move(former));
}

void PeerChannel::OnLeft(uint64_t number) {
  std::vector<std::shared_ptr<PeerChannel>> former;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    former.swap(former_);
  }
  // It is the last message of the old channel, so what was said there before is heard.
  for (const auto& each : former) (void)each->Notify(PackImmediate(MessageKind::kLeft, number));
  if (former.empty()) (void)Notify(PackImmediate(MessageKind::kLeft, number));
}

}  // namespace rdmatensor
