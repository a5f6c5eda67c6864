// SPDX-License-Identifier: Apache-2.0
#include "service/peer_table.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "receive/receiver_end.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// The number of new names between two sweeps.
constexpr int kSweepAfter = 64;

void AddOnce(std::shared_ptr<PeerChannel> channel,
             std::vector<std::shared_ptr<PeerChannel>>* channels) {
  if (channel != nullptr &&
      std::find(channels->begin(), channels->end(), channel) == channels->end()) {
    channels->push_back(std::move(channel));
  }
}

}  // namespace

std::shared_ptr<Sender> PeerTable::SenderOf(const PeerNames& names) {
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = senders_.find(names);
    if (found != senders_.end()) return *found;
  }
  CountNew();
  std::unique_lock<std::shared_mutex> lock(mutex_);
  auto found = senders_.find(names);
  if (found == senders_.end()) {
    found =
        senders_.insert(std::make_shared<Sender>(server_, mailboxes_, to_senders_, names)).first;
  }
  return *found;
}

std::shared_ptr<Receiver> PeerTable::ReceiverOf(absl::string_view task) {
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto found = receivers_.find(task);
    if (found != receivers_.end()) return found->second;
  }
  std::unique_lock<std::shared_mutex> lock(mutex_);
  std::shared_ptr<Receiver>& receiver = receivers_[task];
  if (receiver == nullptr) {
    receiver = std::make_shared<Receiver>(server_, &sessions_, &failed_here_, std::string(task));
  }
  return receiver;
}

std::vector<std::shared_ptr<Receiver>> PeerTable::Receivers() {
  std::vector<std::shared_ptr<Receiver>> links;
  std::shared_lock<std::shared_mutex> lock(mutex_);
  links.reserve(receivers_.size());
  for (const auto& entry : receivers_) links.push_back(entry.second);
  return links;
}

void PeerTable::TellOfFailure(const std::string& session, int64_t step_id,
                              const absl::Status& status) {
  // This comes first, so that a receiver that announces itself now is told by one of the two.
  failed_here_.Add(session, step_id, status);
  for (const std::shared_ptr<Receiver>& receiver : Receivers()) {
    receiver->SendAbort(session, step_id, status);
  }
}

void PeerTable::DropStep(int64_t step_id) {
  failed_here_.Forget(step_id);
  for (const std::shared_ptr<Receiver>& receiver : Receivers()) {
    receiver->DropStep(step_id);
  }
}

std::vector<std::shared_ptr<Sender>> PeerTable::Senders() {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return {senders_.begin(), senders_.end()};
}

std::vector<std::shared_ptr<OfferedPlaces>> PeerTable::PlacesFrom(absl::string_view task) {
  std::vector<std::shared_ptr<PeerChannel>> channels;
  for (const std::shared_ptr<Sender>& peer : Senders()) {
    if (peer->task() == task) AddOnce(peer->ReadyChannel(), &channels);
  }
  std::vector<std::shared_ptr<OfferedPlaces>> places;
  for (const std::shared_ptr<PeerChannel>& channel : channels) {
    places.push_back(ReceiverEnd::Of(*channel)->SharedPlaces());
  }
  return places;
}

std::vector<std::shared_ptr<PeerChannel>> PeerTable::Channels() {
  std::vector<std::shared_ptr<PeerChannel>> channels;
  for (const std::shared_ptr<Sender>& peer : Senders()) {
    AddOnce(peer->ReadyChannel(), &channels);
  }
  for (const std::shared_ptr<Receiver>& receiver : Receivers()) {
    for (const std::shared_ptr<PeerChannel>& channel : receiver->ReadyChannels()) {
      AddOnce(channel, &channels);
    }
  }
  return channels;
}

void PeerTable::CountNew() {
  // Looking up sessions takes TensorFlow's locks, which the caller's thread may hold.
  if (new_.fetch_add(1) + 1 == kSweepAfter) {
    tsl::Env::Default()->SchedClosure([this] { Sweep(); });
  }
}

void PeerTable::Sweep() {
  std::map<std::string, bool> over;
  const auto is_over = [&](const std::string& session) {
    auto [known, is_new] = over.try_emplace(session);
    if (is_new) known->second = !session.empty() && sessions_.Find(session) == nullptr;
    return known->second;
  };
  for (const std::shared_ptr<Sender>& peer : Senders()) {
    if (!is_over(peer->session())) continue;
    peer->Leave();
    std::unique_lock<std::shared_mutex> lock(mutex_);
    senders_.erase(peer);
  }
  for (const std::shared_ptr<Receiver>& receiver : Receivers()) {
    for (const std::string& session : receiver->SessionNames()) {
      if (is_over(session)) receiver->ForgetSession(session);
    }
  }
  std::unique_lock<std::shared_mutex> lock(mutex_);
  // Nobody else has it, and nobody can get it meanwhile.
  absl::erase_if(receivers_, [](const auto& entry) {
    return entry.second.use_count() == 1 && entry.second->ForgetIdle();
  });
  lock.unlock();
  new_.store(0);
}

}  // namespace rdmatensor
