// SPDX-License-Identifier: Apache-2.0
#include "channel/message.h"

#include "base/byte_stream.h"

namespace rdmatensor {
namespace {

constexpr uint32_t kMaxListed = 4096;  // incarnations, regions

constexpr size_t kTensorFixedSize =
    sizeof(int64_t) + sizeof(int32_t) + 2 * sizeof(uint8_t) + sizeof(uint32_t) + sizeof(uint64_t);

}  // namespace

size_t EncodedSize(const TensorMessage& message) {
  const bool in_line = message.flags & TensorMessage::kInline;
  const bool checked = message.flags & TensorMessage::kChecked;
  return kTensorFixedSize + message.dims.size() * sizeof(int64_t) + message.key.size() +
         (checked ? sizeof message.checksum : 0) + (in_line ? message.bytes : 3 * sizeof(uint64_t));
}

void Encode(const TensorMessage& message, char* out) {
  Writer writer(out);
  writer.Put(message.step_id);
  writer.Put(message.dtype);
  writer.Put(message.flags);
  writer.Put(static_cast<uint8_t>(message.dims.size()));
  writer.Put(static_cast<uint32_t>(message.key.size()));
  writer.Put(message.bytes);
  for (int64_t dim : message.dims) writer.Put(dim);
  writer.PutBytes(message.key.data(), message.key.size());
  if (message.flags & TensorMessage::kChecked) writer.Put(message.checksum);
  if (message.flags & TensorMessage::kInline) {
    writer.PutBytes(message.payload, message.bytes);
  } else {
    writer.Put(message.region_key);
    writer.Put(message.offset);
    writer.Put(message.lend_id);
  }
}

bool Parse(const char* data, size_t size, TensorMessage* out) {
  Reader reader(data, size);
  uint8_t dims = 0;
  uint32_t key_size = 0;
  if (!reader.Get(&out->step_id) || !reader.Get(&out->dtype) || !reader.Get(&out->flags) ||
      !reader.Get(&dims) || !reader.Get(&key_size) || !reader.Get(&out->bytes)) {
    return false;
  }
  if ((out->flags & ~TensorMessage::kAllFlags) != 0 || dims > kMaxDims) return false;
  out->dims.resize(dims);
  for (int64_t& dim : out->dims) {
    if (!reader.Get(&dim)) return false;
  }
  if (!reader.GetText(key_size, &out->key)) return false;
  if ((out->flags & TensorMessage::kChecked) && !reader.Get(&out->checksum)) return false;
  if (out->flags & TensorMessage::kInline) {
    out->payload = reader.position();
    return reader.left() == out->bytes;
  }
  return reader.Get(&out->region_key) && reader.Get(&out->offset) && reader.Get(&out->lend_id) &&
         reader.left() == 0;
}

size_t EncodedSize(const StepMessage& message) {
  return sizeof message.step_id + sizeof message.code + sizeof message.derived +
         message.text.size();
}

void Encode(const StepMessage& message, char* out) {
  Writer writer(out);
  writer.Put(message.step_id);
  writer.Put(message.code);
  writer.Put(message.derived);
  writer.PutBytes(message.text.data(), message.text.size());
}

bool Parse(const char* data, size_t size, StepMessage* out) {
  Reader reader(data, size);
  return reader.Get(&out->step_id) && reader.Get(&out->code) && reader.Get(&out->derived) &&
         reader.GetText(reader.left(), &out->text);
}

size_t EncodedSize(const ReadyMessage& message) {
  return sizeof message.version + sizeof(uint32_t) + message.session.size() + message.task.size();
}

void Encode(const ReadyMessage& message, char* out) {
  Writer writer(out);
  writer.Put(message.version);
  writer.Put(static_cast<uint32_t>(message.session.size()));
  writer.PutBytes(message.session.data(), message.session.size());
  writer.PutBytes(message.task.data(), message.task.size());
}

bool Parse(const char* data, size_t size, ReadyMessage* out) {
  Reader reader(data, size);
  uint32_t session_size = 0;
  absl::string_view session, task;
  if (!reader.Get(&out->version) || !reader.Get(&session_size) ||
      !reader.GetText(session_size, &session) || !reader.GetText(reader.left(), &task)) {
    return false;
  }
  out->session = std::string(session);
  out->task = std::string(task);
  return true;
}

std::string Encode(const AddressAnswer& answer) {
  std::string out(5 * sizeof(uint32_t) + answer.address.size() + answer.device_name.size() +
                      (answer.incarnations.size() + answer.region_keys.size()) * sizeof(uint64_t),
                  '\0');
  Writer writer(&out[0]);
  writer.Put(answer.version);
  writer.Put(static_cast<uint32_t>(answer.address.size()));
  writer.Put(static_cast<uint32_t>(answer.device_name.size()));
  writer.Put(static_cast<uint32_t>(answer.incarnations.size()));
  writer.Put(static_cast<uint32_t>(answer.region_keys.size()));
  writer.PutBytes(answer.address.data(), answer.address.size());
  writer.PutBytes(answer.device_name.data(), answer.device_name.size());
  for (uint64_t incarnation : answer.incarnations) writer.Put(incarnation);
  for (uint64_t region_key : answer.region_keys) writer.Put(region_key);
  return out;
}

bool Parse(absl::string_view data, AddressAnswer* out) {
  Reader reader(data.data(), data.size());
  uint32_t address_size = 0, name_size = 0, incarnations = 0, regions = 0;
  absl::string_view address, name;
  // A later version may append fields: the version is all that is read of it.
  if (!reader.Get(&out->version)) return false;
  if (out->version != kProtocolVersion) return true;
  if (!reader.Get(&address_size) || !reader.Get(&name_size) || !reader.Get(&incarnations) ||
      !reader.Get(&regions) || incarnations > kMaxListed || regions > kMaxListed ||
      !reader.GetText(address_size, &address) || !reader.GetText(name_size, &name)) {
    return false;
  }
  out->address = std::string(address);
  out->device_name = std::string(name);
  out->incarnations.resize(incarnations);
  out->region_keys.resize(regions);
  for (std::vector<uint64_t>* list : {&out->incarnations, &out->region_keys}) {
    for (uint64_t& each : *list) {
      if (!reader.Get(&each)) return false;
    }
  }
  return reader.left() == 0;
}

size_t EncodedSize(const SourceMessage& message) {
  return 3 * sizeof(uint32_t) + message.session.size() + message.receiver.size() +
         message.sender.size() + Encode(message.self).size();
}

void Encode(const SourceMessage& message, char* out) {
  Writer writer(out);
  for (const std::string* name : {&message.session, &message.receiver, &message.sender}) {
    writer.Put(static_cast<uint32_t>(name->size()));
    writer.PutBytes(name->data(), name->size());
  }
  const std::string self = Encode(message.self);
  writer.PutBytes(self.data(), self.size());
}

bool Parse(const char* data, size_t size, SourceMessage* out) {
  Reader reader(data, size);
  for (std::string* name : {&out->session, &out->receiver, &out->sender}) {
    uint32_t length = 0;
    absl::string_view text;
    if (!reader.Get(&length) || !reader.GetText(length, &text)) return false;
    *name = std::string(text);
  }
  absl::string_view self;
  return reader.GetText(reader.left(), &self) && Parse(std::string(self), &out->self);
}

}  // namespace rdmatensor
