// SPDX-License-Identifier: Apache-2.0
#include "receive/source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/notices.h"
#include "channel/remote_error.h"
#include "receive/channel_move.h"
#include "receive/receiver_end.h"
#include "stats/path_stats.h"

namespace rdmatensor {
namespace {

// As the error of a receive from `task`.
absl::Status FromSender(const std::string& task, const absl::Status& status) {
  return AsErrorOf(task, "/tensorflow.WorkerService/RecvTensor", status);
}

absl::Status LostStatus(const std::string& task) {
  return FromSender(task, absl::UnavailableError(absl::StrCat("rdmatensor: the connection to ",
                                                              task, " was lost with this tensor")));
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
  if (IsBehindChannelLocked(incarnation)) {
    ImproveLocked();
    return Decision::kWait;
  }
  const bool retried = retried_.contains(incarnation);
  if (retried || host_->settings.by_rpc || rpc_incarnations_.contains(incarnation)) {
    ++asked_[{step_id, waiter.FullKey()}];
    return retried && !asking_ && backoff_.Due() ? Decision::kRpcAndRetry : Decision::kRpc;
  }
  return asking_ ? Decision::kWait : Decision::kConnect;
}

bool Source::IsReady(uint64_t incarnation) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool ready = IsBehindChannelLocked(incarnation);
  if (ready) ImproveLocked();
  return ready;
}

void Source::ImproveLocked() {
  if (channel_->opened_here() && channel_->MayImprove()) {
    ChannelMove::Try(host_, to_senders_, channel_);
  }
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

// If the channel is lost, its announcements are void, so the error is ignored.
void Source::TellAnswered(Channel* channel, const AskedKey& asked) {
  (void)TellOfKey(channel, MessageKind::kAnswered, asked.first, asked.second);
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

bool Source::IsBehindChannelLocked(uint64_t incarnation) const {
  return channel_ != nullptr &&
         std::find(incarnations_.begin(), incarnations_.end(), incarnation) != incarnations_.end();
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
  auto by_rpc = mailbox->Extract([&](const Waiter& waiter) {
    if (waiter.source.get() != this) return false;
    const Decision decision = Decide(waiter.source_incarnation, step_id, waiter);
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

void Source::SettleAll() {
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) Settle(mailbox);
}

void Source::FailAll(const absl::Status& status) {
  const absl::Status told = FromSender(task(), status);
  const auto is_lost = [this](const Waiter& waiter) {
    if (waiter.source.get() != this) return false;
    // The peer may have opened a channel itself meanwhile.
    std::lock_guard<std::mutex> lock(mutex_);
    return !IsBehindChannelLocked(waiter.source_incarnation);
  };
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) {
    for (Waiter& waiter : mailbox->Extract(is_lost)) waiter.Fail(told);
  }
}

void Source::OnStepAbort(int64_t step_id, const absl::Status& status) {
  failures_.AddStep(step_id, FromSender(task(), status));
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

void Source::Leave() {
  std::shared_ptr<PeerChannel> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left = DropChannelLocked();
  }
  if (left != nullptr) ReceiverEnd::Of(*left)->Remove(this);
}

}  // namespace rdmatensor
