// SPDX-License-Identifier: Apache-2.0
#include "receive/reception.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "channel/copied_message.h"
#include "memory/arena.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

// Checks what the sender claims against what TensorFlow can take, so that nothing below asserts.
bool DescribesTensor(const TensorMessage& message, tensorflow::DataType* dtype,
                     tensorflow::TensorShape* shape) {
  if (!tensorflow::DataType_IsValid(message.dtype)) return false;
  *dtype = static_cast<tensorflow::DataType>(message.dtype);
  if (tensorflow::IsRefType(*dtype) || !tensorflow::DataTypeCanUseMemcpy(*dtype)) return false;
  uint64_t bytes = 0;
  return MakeShape(message.dims, *dtype, shape, &bytes) && bytes == message.bytes;
}

Checksum ChecksumOf(const TensorMessage& message) {
  if (message.flags & TensorMessage::kChecked) return message.checksum;
  return std::nullopt;
}

Path PathOf(const TensorMessage& message) {
  if (message.flags & TensorMessage::kInline) return Path::kInline;
  return message.flags & TensorMessage::kBounced ? Path::kBounce : Path::kDynamic;
}

// A tensor that owns a copy of `data`; not initialized if there is no memory.
Tensor CopyOf(const char* data, uint64_t bytes, tensorflow::DataType dtype,
              const tensorflow::TensorShape& shape) {
  Tensor tensor(dtype, shape);
  if (tensor.IsInitialized() && bytes != 0) std::memcpy(tensor.data(), data, bytes);
  return tensor;
}

}  // namespace

bool MakeShape(absl::Span<const int64_t> dims, tensorflow::DataType dtype,
               tensorflow::TensorShape* shape, uint64_t* bytes) {
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; }) ||
      !tensorflow::TensorShape::BuildTensorShape(dims, shape).ok()) {
    return false;
  }
  const uint64_t elements = static_cast<uint64_t>(shape->num_elements());
  const uint64_t size = static_cast<uint64_t>(tensorflow::DataTypeSize(dtype));
  *bytes = elements * size;
  return size != 0 && elements <= UINT64_MAX / size;
}

Reception::Reception(const ServerContext* server, MailboxTable* mailboxes, Channel* channel,
                     OfferedPlaces* places, DynamicObserver* observer, ReceiveEvents* events)
    : server_(server),
      channel_(channel),
      places_(places),
      observer_(observer),
      events_(events),
      delivery_(mailboxes, server->settings.checksum, channel),
      fetcher_(&server->settings, channel, &delivery_, events,
               [this](int64_t step_id, const std::string& key) { Continue(step_id, key); }) {}

bool Reception::HandleTensor(const char* data, size_t size) {
  TensorMessage message;
  std::string key;
  if (!ParseCopied(data, size, &key, &message)) return false;
  const auto turn = order_.Keep(message.step_id, message.key, MessageKind::kTensor, data, size);
  if (turn != KeyOrder::Turn::kNow) return turn == KeyOrder::Turn::kLater;
  return Take(message, false) != Taken::kMalformed;
}

bool Reception::HandleUseRpc(const char* data, size_t size) {
  StepMessage message;
  std::string key;
  if (!ParseCopied(data, size, &key, &message)) return false;
  const auto turn = order_.Keep(message.step_id, message.text, MessageKind::kUseRpc, data, size);
  if (turn != KeyOrder::Turn::kNow) return turn == KeyOrder::Turn::kLater;
  TakeReferral(message);
  return true;
}

Taken Reception::TakeKept(const KeyOrder::Kept& kept) {
  if (kept.kind == MessageKind::kUseRpc) {
    StepMessage message;
    if (!Parse(kept.data.data(), kept.data.size(), &message)) return Taken::kMalformed;
    TakeReferral(message);
    return Taken::kDone;
  }
  TensorMessage message;
  if (!Parse(kept.data.data(), kept.data.size(), &message)) return Taken::kMalformed;
  return Take(message, true);
}

Taken Reception::Take(const TensorMessage& message, bool follows) {
  if (message.flags & TensorMessage::kDead) {
    Arrival arrival;
    arrival.is_dead = true;
    arrival.path = PathOf(message);
    delivery_.Deliver(message.step_id, KeyId::Of(message.key), std::move(arrival));
    return Taken::kDone;
  }
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  if (!DescribesTensor(message, &dtype, &shape)) return Taken::kMalformed;
  observer_->Observe(*server_, message.key, shape, {channel_->shared_from_this(), places_});
  if (message.flags & TensorMessage::kInline) {
    Tensor copy = CopyOf(message.payload, message.bytes, dtype, shape);
    if (copy.IsInitialized()) {
      delivery_.DeliverTensor(message.step_id, KeyId::Of(message.key), Path::kInline, Via::kMessage,
                              ChecksumOf(message), std::move(copy));
    } else {
      events_->OnStepFailed(message.step_id, NoMemoryFor(message.bytes));
    }
    return Taken::kDone;
  }
  const RemoteBytes from{message.region_key, message.offset, message.bytes, message.lend_id};
  if (tensorflow::TensorBuffer* borrowed = fetcher_.Borrow(from)) {
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(borrowed);
    CountFetch(Via::kInPlace, message.bytes);
    delivery_.DeliverTensor(message.step_id, KeyId::Of(message.key), PathOf(message), Via::kInPlace,
                            ChecksumOf(message), Tensor(dtype, shape, std::move(buffer)));
    return Taken::kDone;
  }
  auto fetch = std::make_unique<Fetch>();
  fetch->channel = channel_->shared_from_this();
  fetch->step_id = message.step_id;
  fetch->key = std::string(message.key);
  fetch->dtype = dtype;
  fetch->shape = std::move(shape);
  fetch->from = from;
  fetch->path = PathOf(message);
  fetch->checksum = ChecksumOf(message);
  return follows ? fetcher_.Start(std::move(fetch)) : Start(std::move(fetch));
}

absl::Status Reception::Get(const TensorMessage& message, bool may_borrow, Tensor* tensor) {
  tensorflow::DataType dtype;
  tensorflow::TensorShape shape;
  if ((message.flags & TensorMessage::kDead) || !DescribesTensor(message, &dtype, &shape)) {
    channel_->RefuseMalformed();
    return absl::UnavailableError("rdmatensor: the peer described a tensor that cannot be");
  }
  Via via = Via::kMessage;
  if (message.flags & TensorMessage::kInline) {
    *tensor = CopyOf(message.payload, message.bytes, dtype, shape);
    if (!tensor->IsInitialized()) return NoMemoryFor(message.bytes);
  } else {
    const RemoteBytes from{message.region_key, message.offset, message.bytes, message.lend_id};
    tensorflow::TensorBuffer* const borrowed = may_borrow ? fetcher_.Borrow(from) : nullptr;
    if (borrowed != nullptr) {
      tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(borrowed);
      *tensor = Tensor(dtype, shape, std::move(buffer));
      via = Via::kInPlace;
    } else {
      *tensor = Tensor(Arena::Get()->allocator(), dtype, shape);
      if (!tensor->IsInitialized()) *tensor = Tensor(dtype, shape);
      if (!tensor->IsInitialized()) {
        (void)channel_->Notify(PackImmediate(MessageKind::kRelease, message.lend_id));
        return NoMemoryFor(message.bytes);
      }
      if (absl::Status read = fetcher_.ReadNow(from, tensor); !read.ok()) return read;
      via = Via::kRead;
    }
  }
  if (!server_->settings.checksum || !(message.flags & TensorMessage::kChecked))
    return absl::OkStatus();
  const ExpectedChecksum expected{message.checksum, PathOf(message), via, channel_->transport()};
  return Verify(expected, *tensor, message.step_id, [&] { return std::string(message.key); });
}

void Reception::TakeReferral(const StepMessage& message) {
  Arrival arrival;
  arrival.use_rpc = true;
  delivery_.Deliver(message.step_id, KeyId::Of(message.text), std::move(arrival));
}

Taken Reception::Start(std::unique_ptr<Fetch> fetch) {
  const int64_t step_id = fetch->step_id;
  const std::string key = fetch->key;
  if (!order_.Begin(step_id, key)) return Taken::kMalformed;
  const Taken taken = fetcher_.Start(std::move(fetch));
  if (taken == Taken::kDone) Continue(step_id, key);
  return taken;
}

void Reception::Continue(int64_t step_id, const std::string& key) {
  KeyOrder::Kept kept;
  while (order_.Next(step_id, key, &kept)) {
    const Taken taken = TakeKept(kept);
    if (taken == Taken::kUnderWay) return;
    if (taken == Taken::kMalformed) {
      channel_->RefuseMalformed();
      return;
    }
  }
  events_->OnFetched();
}

}  // namespace rdmatensor
