// SPDX-License-Identifier: Apache-2.0
//
// What a receiver does when a sender cannot be reached, or not any more.
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "receive/receiver_end.h"
#include "receive/source.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// About as long as the peer needs to ask one task for its address.
constexpr std::chrono::milliseconds kContestPause(20);

}  // namespace

void Source::BecomeUnavailable(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
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

std::shared_ptr<PeerChannel> Source::DropChannelLocked() {
  announced_.clear();
  answered_early_.clear();
  incarnations_.clear();
  return std::exchange(channel_, nullptr);
}

void Source::OnDown(Channel* channel, absl::string_view why) {
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("rdmatensor: ", task(), ": ", why));
  std::shared_ptr<PeerChannel> lost;
  std::string by_rpc;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    if (std::exchange(given_up_, false)) {
      // GiveUp has logged the reason.
    } else if (returned_ && backoff_.enabled() && !backoff_.IsStable(ready_since_)) {
      // RPC follows at once, because each loss costs a step.
      by_rpc = absl::StrCat("it was lost soon after it was found again (", why, ")",
                            LeaveToRpcLocked(incarnations_));
    } else {
      backoff_.Reset();
      RecordAbsence(Direction::kReceive, task(), Absence::kLost, status.message());
    }
    lost = DropChannelLocked();
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  if (!by_rpc.empty()) RecordPeer(Direction::kReceive, task(), kRpcTransport, by_rpc, true);
  FailAll(status);
}

void Source::OnContested(Channel* channel) {
  const bool by_rpc = host_->settings.policy != Policy::kRdma;
  const Backoff::Milliseconds timeout(host_->settings.connect_timeout_ms);
  std::string why = absl::StrCat("another process is ", receiver(), " there");
  std::shared_ptr<PeerChannel> left;
  bool again = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (channel_.get() != channel) return;
    const Backoff::Clock::time_point now = Backoff::Clock::now();
    if (!contested_since_ || now - ready_since_ > timeout) contested_since_ = now;
    again = !by_rpc && now - *contested_since_ < timeout;
    if (!again) contested_since_.reset();
    if (by_rpc) absl::StrAppend(&why, LeaveToRpcLocked(incarnations_));
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
void Source::AnnounceAgain() {
  std::this_thread::sleep_for(kContestPause);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asking_ = false;
    epoch_.fetch_add(1, std::memory_order_acq_rel);
  }
  SettleAll();
}

}  // namespace rdmatensor
