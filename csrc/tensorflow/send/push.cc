// SPDX-License-Identifier: Apache-2.0
#include "send/push.h"

#include "base/spans.h"
#include "channel/message.h"
#include "graph/ref_variables.h"
#include "memory/arena.h"
#include "stats/checksum.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

using tensorflow::Tensor;

constexpr char kReasonArenaFull[] = "arena full";
// The core refused to register the part of the arena that had room.
constexpr char kReasonUnregistered[] = "memory not registered";
constexpr char kReasonNoMemory[] = "no memory";
constexpr char kReasonTooLong[] = "description too long";

TensorMessage Describe(int64_t step_id, absl::string_view key, const Tensor& tensor) {
  TensorMessage message;
  message.step_id = step_id;
  message.key = key;
  message.dtype = tensor.dtype();
  for (int i = 0; i < tensor.dims(); ++i) message.dims.push_back(tensor.dim_size(i));
  message.bytes = tensor.TotalBytes();
  return message;
}

}  // namespace

const char* WhyNotPushable(const tensorflow::Rendezvous::ParsedKey& key,
                           const tensorflow::AllocatorAttributes& attributes,
                           const Tensor& tensor) {
  switch (tensor.dtype()) {
    case tensorflow::DT_STRING:
      return "string";
    case tensorflow::DT_VARIANT:
      return "variant";
    case tensorflow::DT_RESOURCE:
      return "resource";
    default:
      if (!tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) return "type";
      // The kernels of devices send copies that lie in the host's memory.
      return key.src.type != "CPU" && !attributes.on_host() ? "device memory" : nullptr;
  }
}

void PushDead(Channel* channel, int64_t step_id, absl::string_view key) {
  TensorMessage message;
  message.step_id = step_id;
  message.key = key;
  message.dtype = tensorflow::DT_FLOAT;
  message.flags = TensorMessage::kDead | TensorMessage::kInline;
  CountSent(Path::kInline, 0, channel->traffic());
  (void)channel->NotifyMessage(PackImmediate(MessageKind::kTensor), message);
}

const char* DescribeTensor(const ServerContext& server, Channel* channel, int64_t step_id,
                           absl::string_view key, const Tensor& tensor, uint64_t room, Use use,
                           Described* described) {
  TensorMessage& message = described->message;
  Tensor& source = described->source;
  message = Describe(step_id, key, tensor);
  source = tensor;
  const bool checked = server.settings.checksum && message.bytes != 0;
  const uint8_t check = checked ? TensorMessage::kChecked : 0;
  if (message.bytes <= server.settings.inline_bytes) {
    message.flags = TensorMessage::kInline | check;
    if (EncodedSize(message) <= room) {
      if (checked && MayChangeInPlace(key)) source = FrozenCopy(tensor);
      if (!source.IsInitialized()) return kReasonNoMemory;
      message.payload = static_cast<const char*>(source.data());
      if (checked) message.checksum = ChecksumToSend(source.data(), message.bytes);
      described->path = Path::kInline;
      return nullptr;
    }
  }
  message.flags = check;
  if (EncodedSize(message) > room) return kReasonTooLong;
  const ArenaExports& exports = *server.exports;
  const bool may_change = MayChangeInPlace(key);
  const bool in_place =
      use == Use::kWhereItLies &&
      reinterpret_cast<uintptr_t>(tensor.data()) % EIGEN_MAX_ALIGN_BYTES == 0 &&
      exports.Locate(channel->handle(), tensor.data(), &message.region_key, &message.offset) &&
      !may_change && !server.settings.copy_sent;
  if (!in_place) {
    source = Tensor(Arena::Get()->allocator(), tensor.dtype(), tensor.shape());
    if (!source.IsInitialized()) return kReasonArenaFull;
    if (!exports.Locate(channel->handle(), source.data(), &message.region_key, &message.offset)) {
      return kReasonUnregistered;
    }
    CopyTraced(source.data(), tensor.data(), message.bytes, "bounce");
    message.flags |= TensorMessage::kBounced;
  }
  // The checksum is of the original, so that the copy is verified too, unless the original may have changed.
  if (checked) {
    message.checksum = ChecksumToSend((may_change ? source : tensor).data(), message.bytes);
  }
  if (!channel->lender().Lend(source, &message.lend_id)) return kReasonArenaFull;
  described->path = in_place ? Path::kDynamic : Path::kBounce;
  return nullptr;
}

const char* PushTensor(const ServerContext& server, Channel* channel, int64_t step_id,
                       absl::string_view key, const Tensor& tensor, Path* path) {
  Described described;
  const char* const reason = DescribeTensor(server, channel, step_id, key, tensor,
                                            channel->max_notify(), Use::kWhereItLies, &described);
  if (reason != nullptr) return reason;
  const TensorMessage& message = described.message;
  *path = described.path;
  CountSent(*path, message.bytes, channel->traffic());
  const absl::Status sent = channel->NotifyMessage(PackImmediate(MessageKind::kTensor), message);
  if (!sent.ok() && *path != Path::kInline) channel->lender().Release(message.lend_id);
  return nullptr;
}

}  // namespace rdmatensor
