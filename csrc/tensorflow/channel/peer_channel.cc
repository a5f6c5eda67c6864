// SPDX-License-Identifier: Apache-2.0
#include "channel/peer_channel.h"

#include <algorithm>
#include <atomic>

#include "receive/in_plans.h"
#include "send/out_edges.h"

namespace rdmatensor {
namespace {

// Limits the names of a process. Sessions that name one process differently are rare.
constexpr size_t kMaxNames = 64;

uint64_t NextChannel() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

PeerChannel::PeerChannel(rdt_channel* handle, const Host* host, MailboxTable* mailboxes, Role role,
                         bool opened_here)
    : Channel(handle),
      host_(host),
      role_(role),
      opened_here_(opened_here),
      number_(NextChannel()),
      reception_(&host->settings, mailboxes, this, this),
      places_(host, this, &reception_),
      offers_(host, this,
              [this](const std::shared_ptr<AcceptedOffer>& accepted) { Bind(accepted); }) {}

std::shared_ptr<PeerChannel> PeerChannel::Adopt(rdt_channel* handle, const Host* host,
                                                MailboxTable* mailboxes, Role role,
                                                bool opened_here) {
  std::shared_ptr<PeerChannel> channel(new PeerChannel(handle, host, mailboxes, role, opened_here));
  channel->held_by_core_ = channel;
  rdt_channel_set_context(handle, channel.get());
  return channel;
}

PeerChannel* PeerChannel::FromHandle(const rdt_channel* handle) {
  return static_cast<PeerChannel*>(rdt_channel_context(handle));
}

void PeerChannel::ReleaseFromCore() {
  lender().ReleaseAll();
  // They may hold this channel or others, and this lock guards its last reference.
  std::shared_ptr<CallEnd> end;
  std::shared_ptr<Replacement> move;
  std::shared_ptr<PeerChannel> successor;
  std::vector<std::shared_ptr<PeerChannel>> former;
  {
    std::lock_guard<std::mutex> lock(peers_mutex_);
    sources_.clear();
    destinations_.clear();
    end = std::move(call_end_);
    call_end_ = nullptr;
    move = std::move(move_);
    successor = std::move(successor_);
    former.swap(former_);
    released_ = true;
  }
  // Last: this may be the last reference.
  std::shared_ptr<PeerChannel> self = std::move(held_by_core_);
}

bool PeerChannel::BecomeReceiver() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (!destinations_.empty()) return false;
  role_.store(Role::kReceiver, std::memory_order_release);
  return true;
}

bool PeerChannel::BecomeCallee(std::shared_ptr<CallEnd> end) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (opened_here_ || role() != Role::kSender || !destinations_.empty()) {
    return false;
  }
  role_.store(Role::kCallee, std::memory_order_release);
  call_end_ = std::move(end);
  return true;
}

std::shared_ptr<CallEnd> PeerChannel::SetCallEnd(std::shared_ptr<CallEnd> end) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (call_end_ != nullptr || released_) return call_end_;
  call_end_ = std::move(end);
  return call_end_;
}

std::shared_ptr<CallEnd> PeerChannel::call_end() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return call_end_;
}

absl::Status PeerChannel::OpenAhead(const std::vector<uint64_t>& region_keys) {
  for (uint64_t region_key : region_keys) {
    if (absl::Status opened = reception_.OpenAhead(region_key); !opened.ok()) return opened;
  }
  return absl::OkStatus();
}

std::shared_ptr<PeerChannel> PeerChannel::AddSource(std::shared_ptr<ChannelSource> source) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  if (successor_ != nullptr) return successor_;
  SetName(Direction::kReceive, source->task());
  if (std::find(sources_.begin(), sources_.end(), source) == sources_.end()) {
    sources_.push_back(std::move(source));
  }
  return nullptr;
}

bool PeerChannel::RemoveSource(const ChannelSource* source) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  sources_.erase(std::remove_if(sources_.begin(), sources_.end(),
                                [source](const auto& each) { return each.get() == source; }),
                 sources_.end());
  return sources_.empty();
}

std::vector<std::shared_ptr<ChannelSource>> PeerChannel::Sources() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return sources_;
}

bool PeerChannel::AddAnnounced(const std::string& receiver, const std::string& sender) {
  announced_names_.emplace(receiver, sender);
  return announced_names_.size() <= kMaxNames;
}

bool PeerChannel::AddDestination(std::shared_ptr<ChannelDestination> destination) {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  SetName(Direction::kSend, destination->task());
  if (std::find(destinations_.begin(), destinations_.end(), destination) != destinations_.end()) {
    return true;
  }
  if (destinations_.size() >= kMaxNames) return false;
  destinations_.push_back(std::move(destination));
  return true;
}

std::vector<std::shared_ptr<ChannelDestination>> PeerChannel::Destinations() {
  std::lock_guard<std::mutex> lock(peers_mutex_);
  return destinations_;
}

void PeerChannel::OnDynamicTensor(absl::string_view key, const tensorflow::TensorShape& shape) {
  InPlans::Get()->promotion().Observe(*host_, key, shape, SharedPlaces());
}

void PeerChannel::OnStepFailed(int64_t step_id, const absl::Status& status) {
  for (const auto& source : Sources()) source->OnStepAbort(step_id, status);
}

void PeerChannel::OnUnreachable(const std::string& why) {
  for (const auto& source : Sources()) source->GiveUp(this, why);
}

void PeerChannel::Bind(const std::shared_ptr<AcceptedOffer>& accepted) {
  for (const std::shared_ptr<ChannelDestination>& destination : Destinations()) {
    OutEdges::Get()->Bind(*host_, destination->task(), destination, accepted);
  }
}

}  // namespace rdmatensor
