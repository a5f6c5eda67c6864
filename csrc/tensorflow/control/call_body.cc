// SPDX-License-Identifier: Apache-2.0
#include "control/call_body.h"

#include <algorithm>
#include <utility>

#include "stats/checksum.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

bool IsLent(const TensorMessage& message) { return (message.flags & TensorMessage::kInline) == 0; }

// Where nothing can be lent, the bytes go inside whatever their size.
void PutInside(const Host& host, const CallTensor& tensor, Described* described) {
  TensorMessage& message = described->message;
  described->source = tensor.tensor;
  message.flags = TensorMessage::kInline;
  message.payload = static_cast<const char*>(described->source.data());
  if (host.settings.checksum && message.bytes != 0) {
    message.flags |= TensorMessage::kChecked;
    message.checksum = ChecksumToSend(message.payload, message.bytes);
  }
}

}  // namespace

bool MayGoBeside(const Tensor& tensor) {
  return tensor.IsInitialized() && tensorflow::DataTypeCanUseMemcpy(tensor.dtype());
}

absl::Status Unpack(const CallBody& body, tensorflow::protobuf::MessageLite* message) {
  if (message->ParseFromString(body.bytes)) return absl::OkStatus();
  // What gRPC's client says.
  return absl::InternalError("could not parse rpc response");
}

DescribedTensors::DescribedTensors(const Host& host, PeerChannel* channel,
                                   const std::vector<CallTensor>& tensors)
    : channel_(channel) {
  messages.reserve(tensors.size());
  sources_.reserve(tensors.size());
  for (const CallTensor& each : tensors) {
    Described described;
    if (DescribeTensor(host, channel, 0, each.key, each.tensor, kMaxCallBytes, each.use,
                       &described) != nullptr) {
      PutInside(host, each, &described);
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
    status = channel->reception().Get(message, may_borrow, &taken.tensor);
    if (status.ok()) tensors->push_back(std::move(taken));
  }
  return status;
}

}  // namespace rdmatensor
