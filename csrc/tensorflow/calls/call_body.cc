// SPDX-License-Identifier: Apache-2.0
#include "calls/call_body.h"

#include <algorithm>
#include <utility>

#include "memory/arena.h"
#include "receive/receiver_end.h"
#include "stats/checksum.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

// From this length on a message goes beside the call.
constexpr size_t kLong = 64 << 10;
// Its key, which no rendezvous has.
constexpr char kMessageKey[] = "message";

bool IsLent(const TensorMessage& message) { return (message.flags & TensorMessage::kInline) == 0; }

// Where nothing can be lent, the bytes go inside whatever their size.
void PutInside(const ServerContext& server, const CallTensor& tensor, Described* described) {
  TensorMessage& message = described->message;
  described->source = tensor.tensor;
  message.flags = TensorMessage::kInline;
  message.payload = static_cast<const char*>(described->source.data());
  if (server.settings.checksum && message.bytes != 0) {
    message.flags |= TensorMessage::kChecked;
    message.checksum = ChecksumToSend(message.payload, message.bytes);
  }
}

}  // namespace

bool MayGoBeside(const Tensor& tensor) {
  return tensor.IsInitialized() && tensorflow::DataTypeCanUseMemcpy(tensor.dtype());
}

bool Pack(const tensorflow::protobuf::MessageLite& message, CallBody* body) {
  const size_t size = message.ByteSizeLong();
  if (size < kLong || size > kMaxCallBytes) return message.AppendToString(&body->bytes);
  Tensor whole(Arena::Get()->allocator(), tensorflow::DT_UINT8, {static_cast<int64_t>(size)});
  if (!whole.IsInitialized()) return message.AppendToString(&body->bytes);
  body->tensors.push_back({whole, kMessageKey});
  return message.SerializeToArray(whole.data(), static_cast<int>(size));
}

absl::Status Unpack(const CallBody& body, tensorflow::protobuf::MessageLite* message,
                    size_t before) {
  absl::string_view bytes = body.bytes;
  bytes.remove_prefix(std::min(before, bytes.size()));
  if (!body.tensors.empty() && body.tensors.back().key == kMessageKey) {
    bytes = body.tensors.back().tensor.tensor_data();
  }
  if (bytes.size() <= kMaxCallBytes &&
      message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  // What gRPC's client says.
  return absl::InternalError("could not parse rpc response");
}

DescribedTensors::DescribedTensors(const ServerContext& server, PeerChannel* channel,
                                   const std::vector<CallTensor>& tensors)
    : channel_(channel) {
  messages.reserve(tensors.size());
  sources_.reserve(tensors.size());
  for (const CallTensor& each : tensors) {
    Described described;
    if (DescribeTensor(server, channel, 0, each.key, each.tensor, kMaxCallBytes, each.use,
                       &described) != nullptr) {
      PutInside(server, each, &described);
    }
    sources_.push_back(std::move(described.source));
    messages.push_back(std::move(described.message));
  }
}

void DescribedTensors::TakeBack() {
  for (const TensorMessage& message : messages) {
    if (IsLent(message)) channel_->lender().Release(message.lend_id);
  }
}

bool AllInline(const std::vector<TensorMessage>& messages) {
  return std::none_of(messages.begin(), messages.end(), IsLent);
}

void DropTensors(PeerChannel* channel, const std::vector<TensorMessage>& messages) {
  for (const TensorMessage& message : messages) {
    if (!IsLent(message) || message.lend_id > kMaxImmediateValue) continue;
    (void)channel->Notify(PackImmediate(MessageKind::kRelease, message.lend_id));
  }
}

absl::Status TakeTensors(PeerChannel* channel, const std::vector<TensorMessage>& messages,
                         bool may_borrow, std::vector<CallTensor>* tensors) {
  absl::Status status;
  for (const TensorMessage& message : messages) {
    if (!status.ok()) {
      DropTensors(channel, {message});
      continue;
    }
    CallTensor taken;
    taken.key = std::string(message.key);
    status = ReceiverEnd::Of(*channel)->reception().Get(
        message, may_borrow && taken.key != kMessageKey, &taken.tensor);
    if (status.ok()) tensors->push_back(std::move(taken));
  }
  return status;
}

}  // namespace rdmatensor
