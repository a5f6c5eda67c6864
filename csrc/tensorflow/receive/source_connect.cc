// SPDX-License-Identifier: Apache-2.0
//
// How a receiver finds the process that sends to it, and gets a channel to it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "channel/notices.h"
#include "channel/task_call.h"
#include "receive/in_plans.h"
#include "receive/receiver_end.h"
#include "receive/source.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// Why the channel has this transport, for people.
std::string WhyThisTransport(const PeerChannel& channel) {
  std::string why = channel.can_map()
                        ? "its device answered on this transport, its memory can be mapped"
                        : "its device answered on this transport, its memory is read";
  const char* const passed_over = rdt_channel_passed_over(channel.handle());
  for (absl::string_view each : absl::StrSplit(passed_over, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&why, "; not ", each);
  }
  return why;
}

}  // namespace

void Source::EnsureConnecting(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                              uint64_t incarnation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (asking_) return;
    asking_ = true;
    if (channel_ == nullptr) {
      RecordAbsence(Direction::kReceive, task(), Absence::kConnecting, "it was asked where it is");
    }
  }
  tsl::Env::Default()->SchedClosure(
      [self = shared_from_this(), workers = std::move(workers), incarnation]() mutable {
        self->AskAddress(std::move(workers), incarnation);
      });
}

void Source::AskAddress(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                        uint64_t incarnation) {
  AskTask(workers.get(), task(), receiver(), kAddressKey, "", host_->settings.connect_timeout_ms,
          [self = shared_from_this(), workers,
           incarnation](const absl::StatusOr<std::string>& encoded) {
            // What follows blocks, and this thread belongs to TensorFlow's RPC.
            tsl::Env::Default()->SchedClosure(
                [self, workers, encoded, incarnation] { self->OnAddress(encoded, incarnation); });
          });
}

void Source::OnAddress(const absl::StatusOr<std::string>& encoded, uint64_t incarnation) {
  const absl::Status& status = encoded.status();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (IsBehindChannelLocked(incarnation)) {
      asking_ = false;  // the peer opened a channel itself meanwhile
      return;
    }
  }
  if (absl::IsUnavailable(status) || absl::IsCancelled(status)) {
    BecomeUnavailable(absl::UnavailableError(
        absl::StrCat("rdmatensor: ", task(), " does not answer: ", status.message())));
    return;
  }
  AddressAnswer answer;
  if (absl::IsDeadlineExceeded(status)) {
    BecomeUnreachable(
        Heals::kPerhaps,
        absl::StrCat("it did not answer within ", host_->settings.connect_timeout_ms, " ms"),
        {incarnation});
  } else if (!status.ok()) {
    BecomeUnreachable(
        Heals::kNever,
        "its server has no grpc+rdma (stock protocol, or the plugin is not loaded there)",
        {incarnation});
  } else if (!Parse(*encoded, &answer)) {
    BecomeUnreachable(Heals::kNever, "its answer is malformed", {incarnation});
  } else if (answer.version != kProtocolVersion) {
    BecomeUnreachable(
        Heals::kNever,
        absl::StrCat("it speaks version ", answer.version, " of the tensor protocol, ",
                     "this process version ", kProtocolVersion),
        {incarnation});
  } else if (answer.address.empty()) {
    BecomeUnreachable(Heals::kNever, "its server could not open a device", {incarnation});
  } else {
    Connect(answer, incarnation);
  }
}

bool Source::KeepsPresentState(const AddressAnswer& answer, uint64_t incarnation) {
  std::shared_ptr<PeerChannel> outlived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    bool known_rpc = false, behind_channel = true, wanted = false;
    for (uint64_t each : answer.incarnations) {
      known_rpc |= rpc_incarnations_.contains(each);
      behind_channel &= IsBehindChannelLocked(each);
      wanted |= each == incarnation;
    }
    // The process with the wanted incarnation is gone.
    if (!wanted) {
      rpc_incarnations_.insert(incarnation);
      retried_.erase(incarnation);
    }
    if (known_rpc) rpc_incarnations_.insert(answer.incarnations.begin(), answer.incarnations.end());
    if (known_rpc || behind_channel) {
      asking_ = false;
      epoch_.fetch_add(1, std::memory_order_acq_rel);
      return true;
    }
    // The task was restarted, and its old channel has not gone down yet.
    outlived = DropChannelLocked();
  }
  // Other sessions may still use the process that had this name.
  if (outlived != nullptr && ReceiverEnd::Of(*outlived)->Remove(this)) outlived->Refuse();
  return false;
}

void Source::Connect(const AddressAnswer& answer, uint64_t incarnation) {
  if (KeepsPresentState(answer, incarnation)) {
    SettleAll();
    return;
  }
  absl::StatusOr<std::shared_ptr<PeerChannel>> channel = to_senders_->To(answer);
  if (channel.ok()) {
    BecomeReady(*std::move(channel), answer);
  } else {
    BecomeUnreachable(Heals::kPerhaps, std::string(channel.status().message()),
                      answer.incarnations);
  }
}

void Source::BecomeReady(std::shared_ptr<PeerChannel> channel, const AddressAnswer& answer) {
  std::vector<AskedKey> asked;
  bool returned = false, too_many = false;
  for (;;) {
    // This comes first: once others find the channel, they make offers on it, and the peer answers.
    if (std::shared_ptr<PeerChannel> next = ReceiverEnd::Of(*channel)->Add(shared_from_this())) {
      channel = std::move(next);
      continue;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    // Whoever replaces a channel finds this source at it, or is found here.
    if (std::shared_ptr<PeerChannel> next = ReceiverEnd::Of(*channel)->successor()) {
      channel = std::move(next);
      continue;
    }
    size_t asked_bytes = 0;
    for (const auto& [key, count] : asked_) {
      asked_bytes += static_cast<size_t>(count) * AskedBytes(key.second);
    }
    too_many = asked_bytes > kMaxAskedBytes;
    if (too_many) break;
    for (uint64_t each : answer.incarnations) returned |= retried_.erase(each) != 0;
    asking_ = false;
    given_up_ = false;
    returned_ = returned;
    ready_since_ = Backoff::Clock::now();
    incarnations_ = answer.incarnations;
    asked = TakeChannelLocked(channel);
    break;
  }
  if (too_many) {
    ReceiverEnd::Of(*channel)->Remove(this);
    BecomeUnreachable(Heals::kPerhaps, "too many requests by RPC are under way",
                      answer.incarnations);
    return;
  }
  if (returned) CountFailback(task());
  RecordPeer(Direction::kReceive, task(), channel->transport(),
             absl::StrCat(returned ? "it can be reached again: " : "", WhyThisTransport(*channel)),
             false);
  Announce(channel, asked);
}

std::vector<Source::AskedKey> Source::TakeChannelLocked(std::shared_ptr<PeerChannel> channel) {
  std::vector<AskedKey> asked;
  for (const auto& [key, count] : asked_) {
    asked.insert(asked.end(), static_cast<size_t>(count), key);
  }
  channel_ = std::move(channel);
  announced_ = asked_;
  answered_early_.clear();
  ready_sent_ = false;
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return asked;
}

void Source::Announce(const std::shared_ptr<PeerChannel>& channel,
                      const std::vector<AskedKey>& asked) {
  // Offers are sent before the peer pushes anything.
  InPlans::Get()->OfferAll(*host_, task(), ReceiverEnd::Of(*channel)->SharedPlaces());
  const absl::Status sent = SendReady(channel.get(), asked);
  if (!sent.ok()) channel->Close();
  // The channel may have gone down before it had this source.
  if (!sent.ok() || !channel->IsUp())
    OnDown(channel.get(), sent.ok() ? "the connection ended as it began" : sent.message());
  SettleAll();
}

bool Source::OnMoved(const std::shared_ptr<PeerChannel>& from,
                     const std::shared_ptr<PeerChannel>& to) {
  (void)ReceiverEnd::Of(*to)->Add(shared_from_this());
  std::vector<AskedKey> asked;
  bool moves = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    moves = channel_ == from;
    if (moves) asked = TakeChannelLocked(to);
  }
  if (!moves) {
    // It found the new channel itself, or has none, or another one.
    if (ReadyChannel() != to) ReceiverEnd::Of(*to)->Remove(this);
    return false;
  }
  RecordPeer(Direction::kReceive, task(), to->transport(),
             absl::StrCat("it can be reached over it again, and ", from->transport(),
                          " was used meanwhile; ", WhyThisTransport(*to)),
             false);
  Announce(to, asked);
  return true;
}

absl::Status Source::SendReady(PeerChannel* channel, const std::vector<AskedKey>& asked) {
  {
    std::lock_guard<std::mutex> lock(ReceiverEnd::Of(*channel)->announcing);
    for (const AskedKey& each : asked) {
      const absl::Status sent = TellOfKey(channel, MessageKind::kAsked, each.first, each.second);
      if (!sent.ok()) return sent;
    }
    const absl::Status sent = TellOfName(channel, MessageKind::kReady, session(), receiver());
    if (!sent.ok()) return sent;
  }
  std::vector<AskedKey> answered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return absl::OkStatus();
    ready_sent_ = true;
    answered.swap(answered_early_);
  }
  for (const AskedKey& each : answered) TellAnswered(channel, each);
  return absl::OkStatus();
}

bool Source::StaysLocked(const PeerChannel& opened, const AddressAnswer& answer) const {
  if (channel_ == nullptr || !channel_->IsUp()) return false;
  // A peer opens another channel only after it has lost the former, which this process may not know yet.
  if (channel_.get() != &opened && !channel_->opened_here())
    return channel_->number() > opened.number();
  return std::all_of(answer.incarnations.begin(), answer.incarnations.end(),
                     [this](uint64_t each) { return IsBehindChannelLocked(each); });
}

void Source::OnOpened(const std::shared_ptr<PeerChannel>& channel, const AddressAnswer& answer) {
  if (host_->settings.by_rpc) return;
  std::lock_guard<std::mutex> one_at_a_time(opening_);
  std::shared_ptr<PeerChannel> outlived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (StaysLocked(*channel, answer)) return;
    outlived = DropChannelLocked();
    for (uint64_t each : answer.incarnations) rpc_incarnations_.erase(each);
  }
  if (outlived != nullptr && ReceiverEnd::Of(*outlived)->Remove(this)) outlived->Refuse();
  const absl::Status opened = channel->OpenAhead(answer.region_keys);
  if (opened.ok()) {
    BecomeReady(channel, answer);
  } else {
    BecomeUnreachable(Heals::kPerhaps, std::string(opened.message()), answer.incarnations);
  }
}

}  // namespace rdmatensor
