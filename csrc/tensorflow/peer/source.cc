// SPDX-License-Identifier: Apache-2.0
#include "peer/source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "plan/plan_book.h"
#include "stats/path_stats.h"
#include "wire/notices.h"
#include "wire/task_call.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// A channel that was found again counts as stable after this many times the delay before it was found.
constexpr int kLasting = 8;

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

absl::Status LostStatus(const std::string& task) {
  return absl::UnavailableError(
      absl::StrCat("rdmatensor: the connection to ", task, " was lost with this tensor"));
}

// If the channel is lost, its announcements are void, so the error is ignored.
void TellAnswered(Channel* channel, const std::pair<int64_t, std::string>& asked) {
  (void)TellOfKey(channel, MessageKind::kAnswered, asked.first, asked.second);
}

}  // namespace

Source::Source(const Host* host, MailboxTable* mailboxes, OpenedChannels* to_senders,
               const PeerNames& names)
    : ChannelSource(names),
      host_(host),
      mailboxes_(mailboxes),
      to_senders_(to_senders),
      waits_(WaitsOf(task(), receiver(), "")),
      backoff_(Backoff::Milliseconds(host->settings.failback_ms)) {}

Source::Decision Source::Decide(uint64_t incarnation, int64_t step_id, const Waiter& waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsBehindChannelLocked(incarnation)) return Decision::kWait;
  const bool retried = retried_.contains(incarnation);
  if (retried || rpc_incarnations_.contains(incarnation)) {
    ++asked_[{step_id, waiter.FullKey()}];
    return retried && !asking_ && backoff_.Due() ? Decision::kRpcAndRetry : Decision::kRpc;
  }
  return asking_ ? Decision::kWait : Decision::kConnect;
}

bool Source::IsReady(uint64_t incarnation) {
  std::lock_guard<std::mutex> lock(mutex_);
  return IsBehindChannelLocked(incarnation);
}

void Source::ReceiveByRpc(int64_t step_id, RpcFallback* rpc, Waiter waiter) {
  using Args = tensorflow::Rendezvous::Args;
  waiter.done = [self = shared_from_this(), step_id, key = waiter.FullKey(),
                 done = std::move(waiter.done)](const absl::Status& status, const Args& send_args,
                                                const Args& receive_args,
                                                const tensorflow::Tensor& tensor, bool is_dead) {
    self->OnAnswered(step_id, key);
    done(status, send_args, receive_args, tensor, is_dead);
  };
  rpc->ReceiveByRpc(std::move(waiter));
}

void Source::OnAnswered(int64_t step_id, const std::string& key) {
  const AskedKey asked(step_id, key);
  std::shared_ptr<PeerChannel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = asked_.find(asked); found != asked_.end() && --found->second == 0) {
      asked_.erase(found);
    }
    auto found = announced_.find(asked);
    if (found == announced_.end()) return;
    if (--found->second == 0) announced_.erase(found);
    if (ready_sent_) {
      channel = channel_;
    } else {
      answered_early_.push_back(asked);
    }
  }
  if (channel != nullptr) TellAnswered(channel.get(), asked);
}

std::shared_ptr<PeerChannel> Source::ReadyChannel() {
  std::lock_guard<std::mutex> lock(mutex_);
  return channel_;
}

absl::Status Source::StatusOf(int64_t step_id, const KeyId& key) const {
  absl::Status status = failures_.OfStep(step_id);
  return status.ok() && failures_.LacksTensor(step_id, key) ? LostStatus(task()) : status;
}

void Source::EnsureConnecting(std::shared_ptr<tensorflow::WorkerCacheInterface> workers,
                              uint64_t incarnation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (asking_) return;
    asking_ = true;
    if (mode_ == Mode::kIdle) mode_ = Mode::kConnecting;
    if (mode_ == Mode::kConnecting) {
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

bool Source::IsBehindChannelLocked(uint64_t incarnation) const {
  return mode_ == Mode::kReady &&
         std::find(incarnations_.begin(), incarnations_.end(), incarnation) != incarnations_.end();
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
      if (mode_ == Mode::kConnecting) mode_ = Mode::kIdle;
      epoch_.fetch_add(1, std::memory_order_acq_rel);
      return true;
    }
    // The task was restarted, and its old channel has not gone down yet.
    outlived = std::move(channel_);
    channel_.reset();
    incarnations_.clear();
    mode_ = Mode::kConnecting;
  }
  // Other sessions may still use the process that had this name.
  if (outlived != nullptr && outlived->RemoveSource(this)) outlived->Refuse();
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
  // This comes first: once others find the channel, they make offers on it, and the peer answers.
  channel->AddSource(shared_from_this());
  std::vector<AskedKey> asked;
  size_t asked_bytes = 0;
  bool returned = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, count] : asked_) {
      asked.insert(asked.end(), static_cast<size_t>(count), key);
      asked_bytes += static_cast<size_t>(count) * AskedBytes(key.second);
    }
    if (asked_bytes <= kMaxAskedBytes) {
      for (uint64_t each : answer.incarnations) returned |= retried_.erase(each) != 0;
      mode_ = Mode::kReady;
      asking_ = false;
      given_up_ = false;
      returned_ = returned;
      ready_since_ = Backoff::Clock::now();
      channel_ = channel;
      incarnations_ = answer.incarnations;
      announced_ = asked_;
      answered_early_.clear();
      ready_sent_ = false;
      epoch_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  if (asked_bytes > kMaxAskedBytes) {
    channel->RemoveSource(this);
    BecomeUnreachable(Heals::kPerhaps, "too many requests by RPC are under way",
                      answer.incarnations);
    return;
  }
  if (returned) CountFailback(task());
  RecordPeer(Direction::kReceive, task(), channel->transport(),
             absl::StrCat(returned ? "it can be reached again: " : "", WhyThisTransport(*channel)),
             false);
  // Offers are sent before the peer pushes anything.
  PlanBook::Get()->OfferAll(*host_, task(), channel->SharedPlanned());
  const absl::Status sent = SendReady(channel.get(), asked);
  if (!sent.ok()) channel->Close();
  // The channel may have gone down before it had this source.
  if (!sent.ok() || !channel->IsUp())
    OnDown(channel.get(), sent.ok() ? "the connection ended as it began" : sent.message());
  SettleAll();
}

void Source::Request(int64_t step_id, const std::string& key) {
  std::shared_ptr<PeerChannel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ready_sent_) channel = channel_;
  }
  if (channel == nullptr) return;
  CountRequest();
  // If the channel is down, what waits fails with it.
  (void)TellOfKey(channel.get(), MessageKind::kRequest, step_id, key);
}

absl::Status Source::SendReady(PeerChannel* channel, const std::vector<AskedKey>& asked) {
  {
    std::lock_guard<std::mutex> lock(channel->announcing);
    for (const AskedKey& each : asked) {
      const absl::Status sent = TellOfKey(channel, MessageKind::kAsked, each.first, each.second);
      if (!sent.ok()) return sent;
    }
    if (host_->settings.by_request && !std::exchange(channel->announced, true)) {
      const absl::Status sent = channel->Notify(PackImmediate(MessageKind::kWillRequest));
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

void Source::BecomeUnavailable(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
    if (mode_ == Mode::kConnecting) mode_ = Mode::kIdle;
    if (!retried_.empty()) DelayRetryLocked();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
    if (channel_ == nullptr) {
      RecordAbsence(Direction::kReceive, task(), Absence::kLost, status.message());
    }
  }
  FailAll(status);
}

void Source::DelayRetryLocked() {
  backoff_.Failed();
  if (backoff_.enabled()) RecordRetry(task(), backoff_.next());
}

std::string Source::LeaveToRpcLocked(const std::vector<uint64_t>& incarnations) {
  if (!backoff_.enabled()) {
    rpc_incarnations_.insert(incarnations.begin(), incarnations.end());
    return "";
  }
  DelayRetryLocked();
  retried_.insert(incarnations.begin(), incarnations.end());
  return absl::StrCat("; tried again in ", backoff_.delay().count(), " ms");
}

void Source::BecomeUnreachable(Heals heals, const std::string& why,
                               std::vector<uint64_t> incarnations) {
  if (host_->settings.policy == Policy::kRdma) {
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
    if (mode_ == Mode::kConnecting) mode_ = Mode::kIdle;
    for (uint64_t each : incarnations) news &= !retried_.contains(each);
    if (heals == Heals::kPerhaps) {
      text += LeaveToRpcLocked(incarnations);
    } else {
      for (uint64_t each : incarnations) retried_.erase(each);
      rpc_incarnations_.insert(incarnations.begin(), incarnations.end());
      RecordRetry(task(), {});
    }
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  RecordPeer(Direction::kReceive, task(), kRpcTransport, text, true, news);
  SettleAll();
}

void Source::GiveUp(Channel* channel, const std::string& why) {
  const bool by_rpc = host_->settings.policy != Policy::kRdma;
  std::string text = why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel || std::exchange(given_up_, true)) return;
    if (by_rpc) text += LeaveToRpcLocked(incarnations_);
  }
  RecordPeer(Direction::kReceive, task(), by_rpc ? kRpcTransport : "none", text, true);
}

void Source::Settle(const std::shared_ptr<Mailbox>& mailbox) {
  const int64_t step_id = mailbox->step_id();
  if (absl::Status failed = failures_.OfStep(step_id); !failed.ok()) {
    for (Waiter& waiter :
         mailbox->Extract([this](const Waiter& w) { return w.source.get() == this; })) {
      waiter.Fail(failed);
    }
    return;
  }
  if (failures_.Any()) {
    for (Waiter& waiter : mailbox->Extract([&](const Waiter& w) {
           return w.source.get() == this && failures_.LacksTensor(step_id, w.Id());
         })) {
      waiter.Fail(LostStatus(task()));
    }
  }
  std::vector<std::pair<std::shared_ptr<tensorflow::WorkerCacheInterface>, uint64_t>> reconnect;
  std::vector<std::string> requested;
  auto by_rpc = mailbox->Extract([&](const Waiter& waiter) {
    if (waiter.source.get() != this) return false;
    if (host_->settings.by_request) requested.push_back(waiter.FullKey());
    const Decision decision = Decide(waiter.source_incarnation, step_id, waiter);
    if (decision == Decision::kConnect) {
      reconnect.emplace_back(waiter.rpc->workers(), waiter.source_incarnation);
    }
    return decision == Decision::kRpc || decision == Decision::kRpcAndRetry;
  });
  for (auto& [workers, incarnation] : reconnect) EnsureConnecting(workers, incarnation);
  for (const std::string& key : requested) Request(step_id, key);
  for (Waiter& waiter : by_rpc) {
    RpcFallback* const rpc = waiter.rpc;
    ReceiveByRpc(step_id, rpc, std::move(waiter));
  }
}

void Source::SettleAll() {
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) Settle(mailbox);
}

void Source::FailAll(const absl::Status& status) {
  const auto is_lost = [this](const Waiter& waiter) {
    if (waiter.source.get() != this) return false;
    // The peer may have opened a channel itself meanwhile.
    std::lock_guard<std::mutex> lock(mutex_);
    return !IsBehindChannelLocked(waiter.source_incarnation);
  };
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) {
    for (Waiter& waiter : mailbox->Extract(is_lost)) waiter.Fail(status);
  }
}

void Source::OnStepAbort(int64_t step_id, const absl::Status& status) {
  failures_.AddStep(step_id, status);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  if (std::shared_ptr<Mailbox> mailbox = mailboxes_->Find(step_id)) Settle(mailbox);
}

void Source::OnLost(int64_t step_id, const KeyId& key) {
  const std::shared_ptr<Mailbox> mailbox = mailboxes_->Find(step_id);
  if (mailbox != nullptr && mailbox->HasArrived(key)) return;
  failures_.AddTensor(step_id, key);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  if (mailbox != nullptr) Settle(mailbox);
}

void Source::OnDown(Channel* channel, absl::string_view why) {
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("rdmatensor: ", task(), ": ", why));
  std::shared_ptr<PeerChannel> lost;
  std::string by_rpc;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    lost = std::move(channel_);
    channel_.reset();
    mode_ = asking_ ? Mode::kConnecting : Mode::kIdle;
    announced_.clear();
    answered_early_.clear();
    if (std::exchange(given_up_, false)) {
      // GiveUp has logged the reason.
    } else if (returned_ && backoff_.enabled() &&
               Backoff::Clock::now() - ready_since_ < kLasting * backoff_.delay()) {
      // RPC follows at once, because each loss costs a step.
      by_rpc = absl::StrCat("it was lost soon after it was found again (", why, ")",
                            LeaveToRpcLocked(incarnations_));
    } else {
      backoff_.Reset();
      RecordAbsence(Direction::kReceive, task(), Absence::kLost, status.message());
    }
    incarnations_.clear();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!by_rpc.empty()) RecordPeer(Direction::kReceive, task(), kRpcTransport, by_rpc, true);
  FailAll(status);
}

void Source::OnOpened(const std::shared_ptr<PeerChannel>& channel, const AddressAnswer& answer) {
  std::shared_ptr<PeerChannel> outlived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_known =
        std::all_of(answer.incarnations.begin(), answer.incarnations.end(),
                    [this](uint64_t each) { return IsBehindChannelLocked(each); });
    if (is_known && channel_->IsUp()) return;
    outlived = std::exchange(channel_, nullptr);
    mode_ = Mode::kConnecting;
    for (uint64_t each : answer.incarnations) rpc_incarnations_.erase(each);
  }
  if (outlived != nullptr && outlived->RemoveSource(this)) outlived->Refuse();
  const absl::Status opened = channel->OpenAhead(answer.region_keys);
  if (opened.ok()) {
    BecomeReady(channel, answer);
  } else {
    BecomeUnreachable(Heals::kPerhaps, std::string(opened.message()), answer.incarnations);
  }
}

void Source::OnContested(Channel* channel) {
  const bool by_rpc = host_->settings.policy != Policy::kRdma;
  std::string why = absl::StrCat("another process is ", receiver(), " there");
  std::shared_ptr<PeerChannel> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    left = std::move(channel_);
    channel_.reset();
    mode_ = asking_ ? Mode::kConnecting : Mode::kIdle;
    announced_.clear();
    answered_early_.clear();
    if (by_rpc) absl::StrAppend(&why, LeaveToRpcLocked(incarnations_));
    incarnations_.clear();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  left->RemoveSource(this);
  RecordPeer(Direction::kReceive, task(), by_rpc ? kRpcTransport : "none", why, true);
  // This is the progress thread, which must not be delayed by requests.
  tsl::Env::Default()->SchedClosure([self = shared_from_this(), by_rpc, why] {
    if (by_rpc) {
      self->SettleAll();
    } else {
      self->FailAll(absl::UnavailableError(absl::StrCat("rdmatensor: no channel to ", self->task(),
                                                        " and RDMATENSOR_POLICY is rdma: ", why)));
    }
  });
}

void Source::Leave() {
  std::shared_ptr<PeerChannel> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left = std::move(channel_);
    channel_.reset();
    mode_ = Mode::kIdle;
    incarnations_.clear();
  }
  if (left != nullptr) left->RemoveSource(this);
}

}  // namespace rdmatensor
