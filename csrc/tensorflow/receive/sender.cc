// SPDX-License-Identifier: Apache-2.0
#include "receive/sender.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "channel/notices.h"
#include "channel/remote_error.h"
#include "receive/channel_move.h"
#include "receive/in_plans.h"
#include "receive/receiver_end.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// About as long as the peer needs to ask one task for its address.
constexpr std::chrono::milliseconds kContestPause(20);

// As the error of a receive from `task`.
absl::Status FromSender(const std::string& task, const absl::Status& status) {
  return AsErrorOf(task, "/tensorflow.WorkerService/RecvTensor", status);
}

absl::Status LostStatus(const std::string& task) {
  return FromSender(task, absl::UnavailableError(absl::StrCat("rdmatensor: the connection to ",
                                                              task, " was lost with this tensor")));
}

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

Sender::Sender(const ServerContext* server, MailboxTable* mailboxes, OpenedChannels* to_senders,
               const PeerNames& names)
    : ChannelSender(names),
      server_(server),
      mailboxes_(mailboxes),
      to_senders_(to_senders),
      waits_(WaitsOf(task(), receiver(), "")),
      incarnations_(task(), Backoff::Milliseconds(server->settings.failback_ms)) {}

Sender::Decision Sender::Decide(uint64_t incarnation, int64_t step_id, const Waiter& waiter,
                                absl::Status* failed) {
  const Decision decision = DecideByPeer(incarnation, step_id, waiter);
  if (decision != Decision::kWait && decision != Decision::kConnect) return decision;
  *failed = StatusOf(step_id, waiter);
  return failed->ok() ? decision : Decision::kFailed;
}

Sender::Decision Sender::DecideByPeer(uint64_t incarnation, int64_t step_id, const Waiter& waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (incarnations_.IsBehindChannel(incarnation)) {
    ImproveLocked();
    return Decision::kWait;
  }
  const bool retried = incarnations_.IsRetried(incarnation);
  if (retried || server_->settings.by_rpc || incarnations_.IsLeft(incarnation)) {
    requests_.Begin({step_id, waiter.FullKey()});
    return retried && !asking_ && incarnations_.RetryIsDue() ? Decision::kRpcAndRetry
                                                             : Decision::kRpc;
  }
  return asking_ ? Decision::kWait : Decision::kConnect;
}

bool Sender::IsReady(uint64_t incarnation) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool ready = incarnations_.IsBehindChannel(incarnation);
  if (ready) ImproveLocked();
  return ready;
}

void Sender::ImproveLocked() {
  if (channel_->opened_here() && channel_->MayImprove()) {
    ChannelMove::Try(server_, to_senders_, channel_);
  }
}

void Sender::ReceiveByRpc(int64_t step_id, RpcFallback* rpc, Waiter waiter) {
  using Args = tensorflow::Rendezvous::Args;
  waiter.done = [self = shared_from_this(),
                 request = RpcRequests::Request(step_id, waiter.FullKey()),
                 done = std::move(waiter.done)](const absl::Status& status, const Args& send_args,
                                                const Args& receive_args,
                                                const tensorflow::Tensor& tensor, bool is_dead) {
    self->OnRpcDone(request);
    done(status, send_args, receive_args, tensor, is_dead);
  };
  rpc->ReceiveByRpc(std::move(waiter));
}

// If the channel is lost, its announcements are void, so the error is ignored.
void Sender::TellRpcDone(Channel* channel, const RpcRequests::Request& request) {
  (void)TellOfKey(channel, MessageKind::kRpcDone, request.first, request.second);
}

void Sender::OnRpcDone(const RpcRequests::Request& request) {
  std::shared_ptr<PeerChannel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (requests_.End(request)) channel = channel_;
  }
  if (channel != nullptr) TellRpcDone(channel.get(), request);
}

std::shared_ptr<PeerChannel> Sender::ReadyChannel() {
  std::lock_guard<std::mutex> lock(mutex_);
  return channel_;
}

absl::Status Sender::StatusOf(int64_t step_id, const Waiter& waiter) const {
  if (!failures_.Any()) return absl::OkStatus();
  absl::Status status = failures_.OfStep(step_id);
  return status.ok() && failures_.LacksTensor(step_id, waiter.Id()) ? LostStatus(task()) : status;
}

void Sender::Settle(const std::shared_ptr<Mailbox>& mailbox) {
  const int64_t step_id = mailbox->step_id();
  if (absl::Status failed = failures_.OfStep(step_id); !failed.ok()) {
    for (Waiter& waiter :
         mailbox->Extract([this](const Waiter& w) { return w.sender.get() == this; })) {
      waiter.Fail(failed);
    }
    return;
  }
  if (failures_.Any()) {
    for (Waiter& waiter : mailbox->Extract([&](const Waiter& w) {
           return w.sender.get() == this && failures_.LacksTensor(step_id, w.Id());
         })) {
      waiter.Fail(LostStatus(task()));
    }
  }
  std::vector<std::pair<std::shared_ptr<tensorflow::WorkerCacheInterface>, uint64_t>> reconnect;
  auto by_rpc = mailbox->Extract([&](const Waiter& waiter) {
    if (waiter.sender.get() != this) return false;
    const Decision decision = DecideByPeer(waiter.source_incarnation, step_id, waiter);
    if (decision == Decision::kConnect) {
      reconnect.emplace_back(waiter.rpc->workers(), waiter.source_incarnation);
    }
    return decision == Decision::kRpc || decision == Decision::kRpcAndRetry;
  });
  for (auto& [workers, incarnation] : reconnect) EnsureConnecting(workers, incarnation);
  for (Waiter& waiter : by_rpc) {
    RpcFallback* const rpc = waiter.rpc;
    ReceiveByRpc(step_id, rpc, std::move(waiter));
  }
}

void Sender::SettleAll() {
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) Settle(mailbox);
}

void Sender::FailAll(const absl::Status& status) {
  const absl::Status told = FromSender(task(), status);
  const auto is_lost = [this](const Waiter& waiter) {
    if (waiter.sender.get() != this) return false;
    // The peer may have opened a channel itself meanwhile.
    std::lock_guard<std::mutex> lock(mutex_);
    return !incarnations_.IsBehindChannel(waiter.source_incarnation);
  };
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) {
    for (Waiter& waiter : mailbox->Extract(is_lost)) waiter.Fail(told);
  }
}

void Sender::OnStepAbort(int64_t step_id, const absl::Status& status) {
  failures_.AddStep(step_id, FromSender(task(), status));
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  if (std::shared_ptr<Mailbox> mailbox = mailboxes_->Find(step_id)) Settle(mailbox);
}

void Sender::OnLost(int64_t step_id, const KeyId& key) {
  const std::shared_ptr<Mailbox> mailbox = mailboxes_->Find(step_id);
  if (mailbox != nullptr && mailbox->HasArrived(key)) return;
  failures_.AddTensor(step_id, key);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  if (mailbox != nullptr) Settle(mailbox);
}

void Sender::Leave() {
  std::shared_ptr<PeerChannel> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left = DropChannelLocked();
  }
  if (left != nullptr) ReceiverEnd::Of(*left)->Remove(this);
}

void Sender::EnsureConnecting(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                              uint64_t incarnation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (asking_) return;
    asking_ = true;
    if (channel_ == nullptr) {
      RecordAbsence(Direction::kReceive, task(), Absence::kConnecting, "it was asked where it is");
    }
  }
  AskWhereabouts(std::move(workers), task(), receiver(), server_->settings.connect_timeout_ms,
                 [self = shared_from_this(), incarnation](const Whereabouts& found) {
                   self->OnFound(found, incarnation);
                 });
}

void Sender::OnFound(const Whereabouts& found, uint64_t incarnation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (incarnations_.IsBehindChannel(incarnation)) {
      asking_ = false;  // the peer opened a channel itself meanwhile
      return;
    }
  }
  if (!found.status.ok()) {
    BecomeUnavailable(found.status);
  } else if (!found.why_none.empty()) {
    BecomeUnreachable(found.may_heal ? Heals::kPerhaps : Heals::kNever, found.why_none,
                      {incarnation});
  } else {
    Connect(found.answer, incarnation);
  }
}

bool Sender::KeepsPresentState(const AddressAnswer& answer, uint64_t incarnation) {
  std::shared_ptr<PeerChannel> outlived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (incarnations_.Keep(answer.incarnations, incarnation)) {
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

void Sender::Connect(const AddressAnswer& answer, uint64_t incarnation) {
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

void Sender::BecomeReady(std::shared_ptr<PeerChannel> channel, const AddressAnswer& answer) {
  std::vector<RpcRequests::Request> asked;
  bool returned = false, too_many = false;
  for (;;) {
    // This comes first: once others find the channel, they make offers on it, and the peer answers.
    if (std::shared_ptr<PeerChannel> next = ReceiverEnd::Of(*channel)->Add(shared_from_this())) {
      channel = std::move(next);
      continue;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    // Whoever replaces a channel finds this sender at it, or is found here.
    if (std::shared_ptr<PeerChannel> next = ReceiverEnd::Of(*channel)->successor()) {
      channel = std::move(next);
      continue;
    }
    too_many = requests_.TooMany();
    if (too_many) break;
    returned = incarnations_.Reach(answer.incarnations);
    asking_ = false;
    given_up_ = false;
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

std::vector<RpcRequests::Request> Sender::TakeChannelLocked(std::shared_ptr<PeerChannel> channel) {
  channel_ = std::move(channel);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return requests_.Announce();
}

void Sender::Announce(const std::shared_ptr<PeerChannel>& channel,
                      const std::vector<RpcRequests::Request>& asked) {
  // Offers are sent before the peer pushes anything.
  InPlans::Get()->OfferAll(*server_, task(), ReceiverEnd::Of(*channel)->SharedPlaces());
  const absl::Status sent = SendReady(channel.get(), asked);
  if (!sent.ok()) channel->Close();
  // The channel may have gone down before it had this sender.
  if (!sent.ok() || !channel->IsUp())
    OnDown(channel.get(), sent.ok() ? "the connection ended as it began" : sent.message());
  SettleAll();
}

bool Sender::OnMoved(const std::shared_ptr<PeerChannel>& from,
                     const std::shared_ptr<PeerChannel>& to) {
  (void)ReceiverEnd::Of(*to)->Add(shared_from_this());
  std::vector<RpcRequests::Request> asked;
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

absl::Status Sender::SendReady(PeerChannel* channel,
                               const std::vector<RpcRequests::Request>& asked) {
  {
    std::lock_guard<std::mutex> lock(ReceiverEnd::Of(*channel)->announcing);
    for (const RpcRequests::Request& each : asked) {
      const absl::Status sent =
          TellOfKey(channel, MessageKind::kRpcPending, each.first, each.second);
      if (!sent.ok()) return sent;
    }
    const absl::Status sent = TellOfName(channel, MessageKind::kReady, session(), receiver());
    if (!sent.ok()) return sent;
  }
  std::vector<RpcRequests::Request> answered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return absl::OkStatus();
    answered = requests_.OnReady();
  }
  for (const RpcRequests::Request& each : answered) TellRpcDone(channel, each);
  return absl::OkStatus();
}

bool Sender::StaysLocked(const PeerChannel& opened, const AddressAnswer& answer) const {
  if (channel_ == nullptr || !channel_->IsUp()) return false;
  // A peer opens another channel only after it has lost the former, which this process may not know yet.
  if (channel_.get() != &opened && !channel_->opened_here())
    return channel_->number() > opened.number();
  return incarnations_.AreBehindChannel(answer.incarnations);
}

void Sender::OnOpened(const std::shared_ptr<PeerChannel>& channel, const AddressAnswer& answer) {
  if (server_->settings.by_rpc) return;
  std::lock_guard<std::mutex> one_at_a_time(opening_);
  std::shared_ptr<PeerChannel> outlived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (StaysLocked(*channel, answer)) return;
    outlived = DropChannelLocked();
    incarnations_.TakeBack(answer.incarnations);
  }
  if (outlived != nullptr && ReceiverEnd::Of(*outlived)->Remove(this)) outlived->Refuse();
  const absl::Status opened = channel->OpenAhead(answer.region_keys);
  if (opened.ok()) {
    BecomeReady(channel, answer);
  } else {
    BecomeUnreachable(Heals::kPerhaps, std::string(opened.message()), answer.incarnations);
  }
}

void Sender::BecomeUnavailable(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
    incarnations_.OnUnavailable();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
    if (channel_ == nullptr) {
      RecordAbsence(Direction::kReceive, task(), Absence::kLost, status.message());
    }
  }
  FailAll(status);
}

void Sender::BecomeUnreachable(Heals heals, const std::string& why,
                               std::vector<uint64_t> incarnations) {
  if (server_->settings.policy == Policy::kRdma) {
    const std::string text =
        absl::StrCat("rdmatensor: no channel to ", task(), " and RDMATENSOR_POLICY is rdma: ", why);
    BecomeUnavailable(heals == Heals::kNever ? absl::FailedPreconditionError(text)
                                             : absl::UnavailableError(text));
    RecordPeer(Direction::kReceive, task(), "none", why, true);
    return;
  }
  bool news = true;
  std::string text = why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
    for (uint64_t each : incarnations) news &= !incarnations_.IsRetried(each);
    if (heals == Heals::kPerhaps) {
      text += incarnations_.LeaveForNow(incarnations);
    } else {
      incarnations_.Leave(incarnations);
      RecordRetry(task(), {});
    }
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  RecordPeer(Direction::kReceive, task(), kRpcTransport, text, true, news);
  SettleAll();
}

void Sender::GiveUp(Channel* channel, const std::string& why) {
  const bool by_rpc = server_->settings.policy != Policy::kRdma;
  std::string text = why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel || std::exchange(given_up_, true)) return;
    if (by_rpc) text += incarnations_.LeaveForNow();
  }
  RecordPeer(Direction::kReceive, task(), by_rpc ? kRpcTransport : "none", text, true);
}

std::shared_ptr<PeerChannel> Sender::DropChannelLocked() {
  requests_.ForgetAnnounced();
  incarnations_.DropChannel();
  return std::exchange(channel_, nullptr);
}

void Sender::OnDown(Channel* channel, absl::string_view why) {
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("rdmatensor: ", task(), ": ", why));
  std::shared_ptr<PeerChannel> lost;
  std::string by_rpc;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    if (std::exchange(given_up_, false)) {
      // GiveUp has logged the reason.
    } else if (incarnations_.OnLost()) {
      by_rpc = absl::StrCat("it was lost soon after it was found again (", why, ")",
                            incarnations_.LeaveForNow());
    } else {
      RecordAbsence(Direction::kReceive, task(), Absence::kLost, status.message());
    }
    lost = DropChannelLocked();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!by_rpc.empty()) RecordPeer(Direction::kReceive, task(), kRpcTransport, by_rpc, true);
  FailAll(status);
}

void Sender::OnContested(Channel* channel) {
  const bool by_rpc = server_->settings.policy != Policy::kRdma;
  const Backoff::Milliseconds timeout(server_->settings.connect_timeout_ms);
  std::string why = absl::StrCat("another process is ", receiver(), " there");
  std::shared_ptr<PeerChannel> left;
  bool again = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    const Backoff::Clock::time_point now = Backoff::Clock::now();
    if (!contested_since_ || now - incarnations_.reached() > timeout) contested_since_ = now;
    again = !by_rpc && now - *contested_since_ < timeout;
    if (!again) contested_since_.reset();
    if (by_rpc) absl::StrAppend(&why, incarnations_.LeaveForNow());
    left = DropChannelLocked();
    asking_ |= again;  // what comes now waits
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  ReceiverEnd::Of(*left)->Remove(this);
  RecordPeer(Direction::kReceive, task(), by_rpc ? kRpcTransport : "none", why, true);
  // This is the progress thread, which must not be delayed by requests.
  tsl::Env::Default()->SchedClosure([self = shared_from_this(), by_rpc, again, why] {
    if (again) {
      self->AnnounceAgain();
    } else if (by_rpc) {
      self->SettleAll();
    } else {
      self->FailAll(absl::UnavailableError(absl::StrCat("rdmatensor: no channel to ", self->task(),
                                                        " and RDMATENSOR_POLICY is rdma: ", why)));
    }
  });
}

// The peer asks meanwhile which process has the name, and rejects only the other one from then on.
void Sender::AnnounceAgain() {
  std::this_thread::sleep_for(kContestPause);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  SettleAll();
}

}  // namespace rdmatensor
