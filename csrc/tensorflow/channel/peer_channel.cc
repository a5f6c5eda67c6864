// SPDX-License-Identifier: Apache-2.0
#include "channel/peer_channel.h"

#include <utility>

#include "channel/message.h"
#include "channel/names.h"

namespace rdmatensor {
namespace {

uint64_t NextChannel() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

PeerChannel::PeerChannel(rdt_channel* handle, const NewEnds& new_ends, Role role, bool opened_here)
    : Channel(handle),
      role_(role),
      opened_here_(opened_here),
      number_(NextChannel()),
      role_is_fixed_(opened_here),
      ends_(new_ends(this)) {}

std::shared_ptr<PeerChannel> PeerChannel::Adopt(rdt_channel* handle, const NewEnds& new_ends,
                                                Role role, bool opened_here) {
  std::shared_ptr<PeerChannel> channel(new PeerChannel(handle, new_ends, role, opened_here));
  channel->held_by_core_ = channel;
  rdt_channel_set_context(handle, channel.get());
  return channel;
}

PeerChannel* PeerChannel::FromHandle(const rdt_channel* handle) {
  return static_cast<PeerChannel*>(rdt_channel_context(handle));
}

void PeerChannel::ReleaseFromCore() {
  lender().ReleaseAll();
  receiver_end()->OnReleased();
  sender_end()->OnReleased();
  std::shared_ptr<ChannelEnd>
      end;  // may hold the channel, whose last reference must not go under its lock
  {
    std::lock_guard<std::mutex> lock(call_mutex_);
    end.swap(call_end_);
    released_ = true;
  }
  // Last: this may be the last reference.
  std::shared_ptr<PeerChannel> self = std::move(held_by_core_);
}

bool PeerChannel::Handle(const NewCallee* new_callee, uint64_t immediate, const char* data,
                         size_t size) {
  const MessageKind kind = ImmediateKind(immediate);
  const uint64_t value = ImmediateValue(immediate);
  if (kind == MessageKind::kRelease) return lender().Release(value);
  if (kind == MessageKind::kCaller) return BecomeCallee(new_callee, data, size);
  if (kind == MessageKind::kSource && !BecomeReceiver()) return false;
  role_is_fixed_ = true;
  switch (role()) {
    case Role::kReceiver:
      return receiver_end()->Handle(kind, value, data, size);
    case Role::kSender:
      return sender_end()->Handle(kind, value, data, size);
    case Role::kCaller:
    case Role::kCallee:
      break;
  }
  const std::shared_ptr<ChannelEnd> end = call_end();
  return end != nullptr && end->Handle(kind, value, data, size);
}

void PeerChannel::OnDown(absl::string_view why) {
  receiver_end()->OnDown(why);
  sender_end()->OnDown(why);
  if (const std::shared_ptr<ChannelEnd> end = call_end()) end->OnDown(why);
}

bool PeerChannel::BecomeReceiver() {
  if (!role_is_fixed_) role_.store(Role::kReceiver, std::memory_order_release);
  return !opened_here_ && role() == Role::kReceiver;
}

bool PeerChannel::BecomeCallee(const NewCallee* new_callee, const char* data, size_t size) {
  ReadyMessage message;
  if (new_callee == nullptr || role_is_fixed_ || !Parse(data, size, &message) ||
      message.version != kProtocolVersion || !NamesTask(message.task)) {
    return false;
  }
  role_is_fixed_ = true;
  role_.store(Role::kCallee, std::memory_order_release);
  std::lock_guard<std::mutex> lock(call_mutex_);
  call_end_ = (*new_callee)(Shared(), message.task);
  return true;
}

std::shared_ptr<ChannelEnd> PeerChannel::SetCallEnd(std::shared_ptr<ChannelEnd> end) {
  std::lock_guard<std::mutex> lock(call_mutex_);
  if (call_end_ != nullptr || released_) return call_end_;
  call_end_ = std::move(end);
  return call_end_;
}

std::shared_ptr<ChannelEnd> PeerChannel::call_end() {
  std::lock_guard<std::mutex> lock(call_mutex_);
  return call_end_;
}

}  // namespace rdmatensor
