// SPDX-License-Identifier: Apache-2.0
#include "receive/mailbox.h"

#include <algorithm>
#include <utility>

#include "base/spans.h"
#include "xla/tsl/platform/status.h"

namespace rdmatensor {
namespace {

constexpr std::chrono::seconds kSweepPeriod{10};

absl::Status Cancelled() {
  return tsl::StatusGroup::MakeDerived(absl::CancelledError("RecvAsync is cancelled."));
}

}  // namespace

void Waiter::Fail(const absl::Status& status) const {
  done(status, tensorflow::Rendezvous::Args(), args, tensorflow::Tensor(), false);
}

absl::string_view Waiter::EdgeName() const {
  return edge != nullptr ? absl::string_view(edge->name) : EdgeNameIn(key);
}

bool Mailbox::TakeArrivalLocked(const KeyId& key, Arrival* arrival) {
  auto found = slots_.find(key);
  if (found == slots_.end() || found->second.arrivals.empty()) return false;
  *arrival = std::move(found->second.arrivals.front());
  found->second.arrivals.erase(found->second.arrivals.begin());
  if (found->second.arrivals.empty()) slots_.erase(found);
  return true;
}

bool Mailbox::TakeWaiterLocked(const KeyId& key, Waiter* waiter) {
  auto found = slots_.find(key);
  if (found == slots_.end() || found->second.waiters.empty()) return false;
  *waiter = std::move(found->second.waiters.front());
  DeregisterLocked(waiter->args.cancellation_manager);
  found->second.waiters.erase(found->second.waiters.begin());
  if (found->second.waiters.empty()) slots_.erase(found);
  return true;
}

Mailbox::Received Mailbox::Receive(Waiter* waiter, Arrival* arrival, absl::Status* status) {
  const KeyId key = waiter->Id();
  tensorflow::CancellationManager* manager = waiter->args.cancellation_manager;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) {
    *status = aborted_;
    return Received::kFailed;
  }
  if (TakeArrivalLocked(key, arrival)) return Received::kArrived;
  if (manager != nullptr && !RegisterLocked(manager)) {
    *status = Cancelled();
    return Received::kFailed;
  }
  waiter->since = WaitMoment();
  slots_[key].waiters.push_back(std::move(*waiter));
  return Received::kWaiting;
}

Mailbox::Received Mailbox::ReceiveAll(std::vector<Waiter>* waiters, std::vector<Met>* met,
                                      absl::Status* status) {
  const uint64_t now = WaitMoment();
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) {
    *status = aborted_;
    return Received::kFailed;
  }
  slots_.reserve(slots_.size() + waiters->size());
  for (auto waiter = waiters->begin(); waiter != waiters->end(); ++waiter) {
    const KeyId key = waiter->Id();
    Arrival arrival;
    if (TakeArrivalLocked(key, &arrival)) {
      met->push_back({std::move(*waiter), std::move(arrival)});
      continue;
    }
    tensorflow::CancellationManager* manager = waiter->args.cancellation_manager;
    if (manager != nullptr && !RegisterLocked(manager)) {
      *status = Cancelled();
      waiters->erase(waiters->begin(), waiter);  // those were met: none registered before
      return Received::kFailed;
    }
    waiter->since = now;
    slots_[key].waiters.push_back(std::move(*waiter));
  }
  return Received::kWaiting;
}

Mailbox::Delivered Mailbox::Deliver(const KeyId& key,
                                    const std::shared_ptr<UnclaimedBudget>& unclaimed,
                                    Arrival* arrival, Waiter* waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (gone_) return Delivered::kGone;
  if (!aborted_.ok()) return Delivered::kKept;
  if (TakeWaiterLocked(key, waiter)) return Delivered::kTaken;
  if (!arrival->share.Take(unclaimed, arrival->Cost())) return Delivered::kTooMuch;
  slots_[key].arrivals.push_back(std::move(*arrival));
  return Delivered::kKept;
}

Mailbox::Delivered Mailbox::DeliverAll(const std::shared_ptr<UnclaimedBudget>& unclaimed,
                                       std::vector<std::pair<KeyId, Arrival>>* arrivals,
                                       std::vector<Met>* met) {
  met->reserve(arrivals->size());
  std::lock_guard<std::mutex> lock(mutex_);
  if (gone_) return Delivered::kGone;
  if (!aborted_.ok()) return Delivered::kKept;
  for (auto& [key, arrival] : *arrivals) {
    Waiter waiter;
    if (TakeWaiterLocked(key, &waiter)) {
      met->push_back({std::move(waiter), std::move(arrival)});
    } else if (arrival.share.Take(unclaimed, arrival.Cost())) {
      slots_[key].arrivals.push_back(std::move(arrival));
    } else {
      return Delivered::kTooMuch;
    }
  }
  return Delivered::kKept;
}

void Mailbox::Drop(const UnclaimedBudget* unclaimed) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    const auto current = slot++;
    auto& arrivals = current->second.arrivals;
    arrivals.erase(
        std::remove_if(arrivals.begin(), arrivals.end(),
                       [&](const Arrival& each) { return each.share.of() == unclaimed; }),
        arrivals.end());
    if (arrivals.empty() && current->second.waiters.empty()) slots_.erase(current);
  }
}

void Mailbox::Retire() {
  std::lock_guard<std::mutex> lock(mutex_);
  gone_ = true;
}

bool Mailbox::RetireIfEmpty() {
  std::lock_guard<std::mutex> lock(mutex_);
  gone_ = slots_.empty();
  return gone_;
}

bool Mailbox::RegisterLocked(tensorflow::CancellationManager* manager) {
  auto found = cancellations_.find(manager);
  if (found != cancellations_.end()) {
    ++found->second.waiters;
    return true;
  }
  const tensorflow::CancellationToken token = manager->get_cancellation_token();
  // Runs on the cancelling thread, possibly when no waiter is left.
  if (!manager->RegisterCallback(token,
                                 [self = shared_from_this(), manager] { self->Cancel(manager); })) {
    return false;
  }
  cancellations_.emplace(manager, Cancellation{token, 1});
  return true;
}

void Mailbox::DeregisterLocked(tensorflow::CancellationManager* manager) {
  if (manager == nullptr) return;
  auto found = cancellations_.find(manager);
  if (found == cancellations_.end() || --found->second.waiters > 0) return;
  // False while the manager is cancelling: then Cancel finds nothing to do.
  (void)manager->TryDeregisterCallback(found->second.token);
  cancellations_.erase(found);
}

void Mailbox::Cancel(tensorflow::CancellationManager* manager) {
  {
    // Before the waiters are taken: a receive that comes now asks the manager, which refuses.
    std::lock_guard<std::mutex> lock(mutex_);
    cancellations_.erase(manager);
  }
  for (Waiter& waiter :
       Extract([manager](const Waiter& w) { return w.args.cancellation_manager == manager; })) {
    waiter.Fail(Cancelled());
  }
}

void Mailbox::Abort(const absl::Status& status) {
  Slots slots;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = status;
    slots.swap(slots_);
    for (auto& [key, slot] : slots) {
      for (Waiter& waiter : slot.waiters) DeregisterLocked(waiter.args.cancellation_manager);
    }
  }
  for (auto& [key, slot] : slots) {
    for (Waiter& waiter : slot.waiters) waiter.Fail(status);
  }
}

std::vector<Waiter> Mailbox::Extract(const std::function<bool(const Waiter&)>& wanted) {
  std::vector<Waiter> taken;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    auto& waiters = slot->second.waiters;
    for (auto waiter = waiters.begin(); waiter != waiters.end();) {
      if (wanted(*waiter)) {
        DeregisterLocked(waiter->args.cancellation_manager);
        taken.push_back(std::move(*waiter));
        waiter = waiters.erase(waiter);
      } else {
        ++waiter;
      }
    }
    const auto current = slot++;
    if (waiters.empty() && current->second.arrivals.empty()) slots_.erase(current);
  }
  return taken;
}

bool Mailbox::HasArrived(const KeyId& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(key);
  return found != slots_.end() && !found->second.arrivals.empty();
}

std::shared_ptr<Mailbox> MailboxTable::Attach(int64_t step_id) {
  std::vector<std::shared_ptr<Mailbox>> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  SweepLocked(&dropped);
  // A step that is used again after its clean-up counts as new.
  removed_.Remove(step_id);
  std::shared_ptr<Mailbox>& mailbox = mailboxes_[step_id];
  if (mailbox == nullptr) mailbox = std::make_shared<Mailbox>(step_id);
  ++mailbox->attached;
  return mailbox;
}

void MailboxTable::Detach(const std::shared_ptr<Mailbox>& mailbox) {
  std::lock_guard<std::mutex> lock(mutex_);
  // A mailbox with something in it stays: another part of the same step may still start here.
  if (--mailbox->attached > 0) return;
  auto found = mailboxes_.find(mailbox->step_id());
  if (found == mailboxes_.end() || found->second != mailbox) return;
  if (mailbox->RetireIfEmpty()) mailboxes_.erase(found);
}

std::shared_ptr<Mailbox> MailboxTable::ForMessage(int64_t step_id) {
  std::vector<std::shared_ptr<Mailbox>> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  SweepLocked(&dropped);
  auto found = mailboxes_.find(step_id);
  if (found != mailboxes_.end()) return found->second;
  if (removed_.Contains(step_id)) return nullptr;
  return mailboxes_[step_id] = std::make_shared<Mailbox>(step_id);
}

std::shared_ptr<Mailbox> MailboxTable::Find(int64_t step_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = mailboxes_.find(step_id);
  return found == mailboxes_.end() ? nullptr : found->second;
}

void MailboxTable::Remove(int64_t step_id, const absl::Status& status) {
  std::shared_ptr<Mailbox> mailbox;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    removed_.Add(step_id);
    auto found = mailboxes_.find(step_id);
    if (found == mailboxes_.end()) return;
    mailbox = std::move(found->second);
    mailboxes_.erase(found);
    mailbox->Retire();
  }
  mailbox->Abort(status);
}

bool MailboxTable::WasRemoved(int64_t step_id) {
  std::lock_guard<std::mutex> lock(mutex_);
  return removed_.Contains(step_id);
}

std::vector<std::shared_ptr<Mailbox>> MailboxTable::All() {
  std::vector<std::shared_ptr<Mailbox>> all;
  std::lock_guard<std::mutex> lock(mutex_);
  all.reserve(mailboxes_.size());
  for (auto& entry : mailboxes_) all.push_back(entry.second);
  return all;
}

void MailboxTable::SweepLocked(std::vector<std::shared_ptr<Mailbox>>* dropped) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sweep_ < kSweepPeriod) return;
  last_sweep_ = now;
  for (auto entry = mailboxes_.begin(); entry != mailboxes_.end();) {
    const auto current = entry++;
    if (current->second->attached == 0 && now - current->second->created() > ttl_) {
      current->second->Retire();
      dropped->push_back(std::move(current->second));  // its tensors go after the lock
      mailboxes_.erase(current);
    }
  }
}

}  // namespace rdmatensor
