// SPDX-License-Identifier: Apache-2.0
#include "receive/channel_move.h"

#include <atomic>
#include <set>
#include <string>
#include <utility>

#include "channel/message.h"
#include "receive/in_plans.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

uint64_t NextMove() {
  static std::atomic<uint64_t> last{0};
  return (last.fetch_add(1) + 1) & kMaxImmediateValue;
}

}  // namespace

ChannelMove::ChannelMove(const ServerContext* server, OpenedChannels* opened,
                         std::shared_ptr<PeerChannel> from, std::shared_ptr<PeerChannel> to)
    : server_(server),
      opened_(opened),
      from_(std::move(from)),
      to_(std::move(to)),
      number_(NextMove()) {}

void ChannelMove::Try(const ServerContext* server, OpenedChannels* opened,
                      std::shared_ptr<PeerChannel> from) {
  tsl::Env::Default()->SchedClosure([server, opened, from = std::move(from)] {
    if (ReceiverEnd::Of(*from)->move() != nullptr) {
      opened->ImproveLater(from);  // it has just become the better one
    } else if (std::shared_ptr<PeerChannel> to = opened->OpenBetter(from)) {
      std::shared_ptr<ChannelMove>(new ChannelMove(server, opened, from, std::move(to)))->Begin();
    }
  });
}

void ChannelMove::Begin() {
  ReceiverEnd* const former = ReceiverEnd::Of(*from_);
  former->SetMove(shared_from_this());
  former->places().Retire();
  const bool asked = from_->Notify(PackImmediate(MessageKind::kPause, number_)).ok();
  {
    // The end of this channel resumes the other one, which must have been paused before that.
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kOver) ReceiverEnd::Of(*to_)->SetMove(shared_from_this());
  }
  // Either may have ended before it knew of the move.
  if (!asked || !from_->IsUp()) OnDown(from_.get());
  if (!to_->IsUp()) OnDown(to_.get());
}

void ChannelMove::OnPaused(uint64_t number) {
  if (number != number_) return;  // of an attempt that was given up
  {
    std::lock_guard<std::mutex> lock(mutex_);
    paused_ = true;
  }
  Advance();
}

void ChannelMove::Advance() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ReceiverEnd* const former = ReceiverEnd::Of(*from_);
    if (state_ != State::kPausing || !paused_ || !former->places().IsQuiet() ||
        !former->reception().IsIdle()) {
      return;
    }
    state_ = State::kMoving;
  }
  tsl::Env::Default()->SchedClosure([self = shared_from_this()] { self->Move(); });
}

void ChannelMove::Move() {
  // This comes first: once others find the channel, they announce names on it.
  (void)to_->Notify(PackImmediate(MessageKind::kDrained, number_));
  opened_->Replace(from_.get(), to_);
  std::set<std::string> moved;  // several sessions may name it alike
  for (const std::shared_ptr<ChannelSender>& sender : ReceiverEnd::Of(*from_)->LeaveFor(to_)) {
    if (sender->OnMoved(from_, to_)) moved.insert(sender->task());
  }
  for (const std::string& task : moved) CountMove(task);
  if (!to_->Notify(PackImmediate(MessageKind::kSwitched, number_)).ok()) OnDown(to_.get());
}

void ChannelMove::OnSwitched() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kMoving) return;
    state_ = State::kOver;
  }
  from_->Close();
  Forget();
}

void ChannelMove::OnDown(const PeerChannel* channel) {
  State state;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state = std::exchange(state_, State::kOver);
  }
  if (state == State::kOver) return;
  if (state == State::kMoving) {
    // What was announced on the new channel is lost with it, and everything else was received.
    if (channel == to_.get()) from_->Close();
  } else if (channel == from_.get()) {
    opened_->Replace(from_.get(), to_);
  } else {
    tsl::Env::Default()->SchedClosure([self = shared_from_this()] { self->Resume(); });
  }
  Forget();
}

void ChannelMove::Resume() {
  ReceiverEnd* const end = ReceiverEnd::Of(*from_);
  end->places().Resume();
  (void)from_->Notify(PackImmediate(MessageKind::kResume, number_));
  for (const std::shared_ptr<ChannelSender>& sender : end->Senders()) {
    InPlans::Get()->OfferAllAgain(*server_, sender->task(), end->SharedPlaces());
  }
  opened_->ImproveLater(from_);
}

void ChannelMove::Forget() {
  ReceiverEnd::Of(*from_)->SetMove(nullptr);
  ReceiverEnd::Of(*to_)->SetMove(nullptr);
}

}  // namespace rdmatensor
