// SPDX-License-Identifier: Apache-2.0
//
// The receiver's half of tensors outside the plan: from the message to the delivery, in the order of their
// keys. The planner's tensors join where their bytes must be fetched.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_RECEPTION_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_RECEPTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "channel/channel.h"
#include "channel/message.h"
#include "channel/server_context.h"
#include "receive/delivery.h"
#include "receive/fetcher.h"
#include "receive/key_order.h"
#include "receive/receive_events.h"

namespace rdmatensor {

// Makes the shape with the dimensions that a peer names, and the size of such a tensor. False if there can be none.
bool MakeShape(absl::Span<const int64_t> dims, tensorflow::DataType dtype,
               tensorflow::TensorShape* shape, uint64_t* bytes);

// Thread-safe. One for each channel, which outlives it.
class Reception {
 public:
  // `places` and `events` belong to the channel, too.
  Reception(const ServerContext* server, MailboxTable* mailboxes, Channel* channel,
            OfferedPlaces* places, DynamicObserver* observer, ReceiveEvents* events);

  // A message from the peer. False: it broke the protocol. Progress thread.
  bool HandleTensor(const char* data, size_t size);
  bool HandleUseRpc(const char* data, size_t size);

  // No tensor is being fetched.
  bool IsIdle() const { return order_.IsEmpty(); }

  // For planned tensors.
  Delivery& delivery() { return delivery_; }
  tensorflow::TensorBuffer* Borrow(const RemoteBytes& from) { return fetcher_.Borrow(from); }
  // Delivers the tensor once its bytes are here, and then what waited for it under its key.
  Taken Start(std::unique_ptr<Fetch> fetch);

  // Makes the tensor of a message that belongs to a call and not to a step. `may_borrow`: it may lie in the sender's
  // memory, which is read-only here. Blocks unless the bytes are inline. Afterwards nothing is lent any more, except
  // what the tensor borrows.
  absl::Status Get(const TensorMessage& message, bool may_borrow, tensorflow::Tensor* tensor);

  // Opens one of the sender's regions before messages name it. Blocks.
  absl::Status OpenAhead(uint64_t region_key) { return fetcher_.OpenAhead(region_key); }

 private:
  // `follows`: it waited for another one of its key, which has come.
  Taken Take(const TensorMessage& message, bool follows);
  void TakeReferral(const StepMessage& message);
  Taken TakeKept(const KeyOrder::Kept& kept);
  // The tensor under way was delivered: goes on with what waited for it.
  void Continue(int64_t step_id, const std::string& key);

  const ServerContext* const server_;
  Channel* const channel_;
  OfferedPlaces* const places_;
  DynamicObserver* const observer_;
  ReceiveEvents* const events_;
  KeyOrder order_;
  Delivery delivery_;
  Fetcher fetcher_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_RECEPTION_H_
