// SPDX-License-Identifier: Apache-2.0
//
// The last part of a received tensor's path: the tensor is counted and put into the mailbox of its step. When
// its receive is there too, it is compared with its checksum and given to TensorFlow.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_DELIVERY_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_DELIVERY_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "channel/channel.h"
#include "graph/planned_edge.h"
#include "receive/mailbox.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"

namespace rdmatensor {

// Thread-safe. One for each channel.
class Delivery {
 public:
  // `verifies`: tensors are compared with their checksums.
  Delivery(MailboxTable* mailboxes, bool verifies, Channel* channel)
      : mailboxes_(mailboxes), verifies_(verifies), channel_(channel) {}

  // Delivers what arrived under `key`.
  void Deliver(int64_t step_id, const KeyId& key, Arrival arrival);
  // Delivers what arrived at once, none of it long or to be fetched by RPC.
  void DeliverAll(int64_t step_id, std::vector<std::pair<KeyId, Arrival>> arrivals);
  // What DeliverTensor delivers.
  Arrival ArrivalOf(Path path, Via via, const Checksum& checksum, tensorflow::Tensor tensor) const;
  // Delivers a tensor with bytes, which came with `checksum`.
  void DeliverTensor(int64_t step_id, const KeyId& key, Path path, Via via,
                     const Checksum& checksum, tensorflow::Tensor tensor);

  // Gives `waiter` its tensor, in the memory where it wants it, or fetches it by RPC if the sender said so. Fails the
  // receive if the tensor is not what was sent.
  static void Complete(Waiter* waiter, const Arrival& arrival, int64_t step_id);

 private:
  // The peer sent what nobody wants, and too much of it.
  void RefuseUnclaimed();
  // Makes what the tensor is to be compared with; nullptr if it is not compared.
  std::unique_ptr<const ExpectedChecksum> Expect(const Checksum& checksum, Path path, Via via,
                                                 uint64_t bytes) const;
  // Finds the step's mailbox, which is not `gone`.
  std::shared_ptr<Mailbox> MailboxFor(int64_t step_id, const Mailbox* gone);

  MailboxTable* const mailboxes_;
  const bool verifies_;
  Channel* const channel_;
  const std::shared_ptr<UnclaimedBudget> unclaimed_ = std::make_shared<UnclaimedBudget>();
  // The mailbox of the step that arrived last.
  std::mutex mutex_;
  int64_t last_step_ = -1;
  std::weak_ptr<Mailbox> last_mailbox_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_DELIVERY_H_
