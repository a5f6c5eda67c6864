// SPDX-License-Identifier: Apache-2.0
#include "receive/delivery.h"

#include <string>
#include <utility>

#include "channel/rpc_fallback.h"
#include "receive/device_copy.h"
#include "stats/transfer_log.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// Longer ones are not for the progress thread. About what starting another thread costs.
constexpr uint64_t kLongChecksum = 256 * 1024;

}  // namespace

std::shared_ptr<Mailbox> Delivery::MailboxFor(int64_t step_id, const Mailbox* gone) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (last_step_ == step_id) {
    std::shared_ptr<Mailbox> mailbox = last_mailbox_.lock();
    if (mailbox != nullptr && mailbox.get() != gone) return mailbox;
  }
  std::shared_ptr<Mailbox> mailbox = mailboxes_->ForMessage(step_id);
  last_step_ = step_id;
  last_mailbox_ = mailbox;
  return mailbox;
}

std::unique_ptr<const ExpectedChecksum> Delivery::Expect(const Checksum& checksum, Path path,
                                                         Via via, uint64_t bytes) const {
  if (!verifies_ || bytes == 0) return nullptr;
  if (!checksum.has_value()) {
    CountUnchecked(channel_->FirstName());
    return nullptr;
  }
  return std::make_unique<const ExpectedChecksum>(
      ExpectedChecksum{*checksum, path, via, channel_->transport()});
}

Arrival Delivery::ArrivalOf(Path path, Via via, const Checksum& checksum,
                            tensorflow::Tensor tensor) const {
  Arrival arrival;
  arrival.path = path;
  arrival.expected = Expect(checksum, path, via, tensor.TotalBytes());
  arrival.tensor = std::move(tensor);
  return arrival;
}

void Delivery::DeliverTensor(int64_t step_id, const KeyId& key, Path path, Via via,
                             const Checksum& checksum, tensorflow::Tensor tensor) {
  Deliver(step_id, key, ArrivalOf(path, via, checksum, std::move(tensor)));
}

void Delivery::DeliverAll(int64_t step_id, std::vector<std::pair<KeyId, Arrival>> arrivals) {
  for (const auto& [key, arrival] : arrivals) {
    CountReceived(arrival.path, arrival.tensor.TotalBytes(), channel_->traffic());
  }
  std::shared_ptr<Mailbox> mailbox;
  std::vector<Mailbox::Met> met;
  Mailbox::Delivered delivered;
  do {  // as in Deliver
    mailbox = MailboxFor(step_id, mailbox.get());
    if (mailbox == nullptr) return;
    delivered = mailbox->DeliverAll(unclaimed_, &arrivals, &met);
  } while (delivered == Mailbox::Delivered::kGone);
  if (delivered == Mailbox::Delivered::kTooMuch) RefuseUnclaimed();
  for (Mailbox::Met& each : met) {
    each.waiter.EndWait(each.arrival.tensor.TotalBytes(), each.arrival.path);
    Complete(&each.waiter, each.arrival, step_id);
  }
}

void Delivery::RefuseUnclaimed() {
  channel_->RefuseBroken("sent more tensors that nothing here has asked for than a server keeps (" +
                         std::to_string(UnclaimedBudget::kMaxBytes >> 20) + " MB)");
  for (const std::shared_ptr<Mailbox>& mailbox : mailboxes_->All()) mailbox->Drop(unclaimed_.get());
}

void Delivery::Deliver(int64_t step_id, const KeyId& key, Arrival arrival) {
  if (!arrival.use_rpc) {
    CountReceived(arrival.path, arrival.tensor.TotalBytes(), channel_->traffic());
  }
  // A step's number is used again when an eager context is closed and created anew. What remembered the
  // first mailbox of that number has to learn of the second.
  std::shared_ptr<Mailbox> mailbox;
  Waiter waiter;
  Mailbox::Delivered delivered;
  do {
    mailbox = MailboxFor(step_id, mailbox.get());
    if (mailbox == nullptr) return;
    delivered = mailbox->Deliver(key, unclaimed_, &arrival, &waiter);
  } while (delivered == Mailbox::Delivered::kGone);
  if (delivered == Mailbox::Delivered::kTooMuch) RefuseUnclaimed();
  if (delivered != Mailbox::Delivered::kTaken) return;
  if (!arrival.use_rpc) waiter.EndWait(arrival.tensor.TotalBytes(), arrival.path);
  if (arrival.expected == nullptr || arrival.tensor.TotalBytes() <= kLongChecksum) {
    Complete(&waiter, arrival, step_id);
    return;
  }
  tsl::Env::Default()->SchedClosure([waiter = std::move(waiter), arrival = std::move(arrival),
                                     step_id]() mutable { Complete(&waiter, arrival, step_id); });
}

void Delivery::Complete(Waiter* waiter, const Arrival& arrival, int64_t step_id) {
  if (arrival.use_rpc) {
    RpcFallback* const rpc = waiter->rpc;
    rpc->ReceiveByRpc(std::move(*waiter));
    return;
  }
  if (arrival.expected != nullptr) {
    const absl::Status status =
        Verify(*arrival.expected, arrival.tensor, step_id, [waiter] { return waiter->FullKey(); });
    if (!status.ok()) {
      waiter->Fail(status);
      return;
    }
  }
  if (TransferLog::Get()->active()) {
    TransferLog::Get()->Add(step_id, waiter->FullKey(), waiter->since, arrival.tensor.TotalBytes());
  }
  if (waiter->device != nullptr && !arrival.is_dead) {
    CompleteOnDevice(std::move(*waiter), arrival.tensor);
    return;
  }
  waiter->done(absl::OkStatus(), tensorflow::Rendezvous::Args(), waiter->args, arrival.tensor,
               arrival.is_dead);
}

}  // namespace rdmatensor
