// SPDX-License-Identifier: Apache-2.0
#include "channel/call_message.h"

#include "base/byte_stream.h"
#include "rdmatensor.h"

namespace rdmatensor {
namespace {

// A text with its length before it.
size_t SizeOf(absl::string_view text) { return sizeof(uint32_t) + text.size(); }

void Put(absl::string_view text, Writer* writer) {
  writer->Put(static_cast<uint32_t>(text.size()));
  writer->PutBytes(text.data(), text.size());
}

bool Get(Reader* reader, absl::string_view* text) {
  uint32_t size = 0;
  return reader->Get(&size) && reader->GetText(size, text);
}

size_t SizeOf(const std::vector<TensorMessage>& tensors) {
  size_t size = sizeof(uint32_t);
  for (const TensorMessage& tensor : tensors) size += sizeof(uint64_t) + EncodedSize(tensor);
  return size;
}

// Returns where writing goes on.
char* Put(const std::vector<TensorMessage>& tensors, char* out) {
  const uint32_t count = static_cast<uint32_t>(tensors.size());
  Writer(out).Put(count);
  out += sizeof count;
  for (const TensorMessage& tensor : tensors) {
    const uint64_t size = EncodedSize(tensor);
    Writer(out).Put(size);
    Encode(tensor, out + sizeof size);
    out += sizeof size + size;
  }
  return out;
}

bool Get(Reader* reader, std::vector<TensorMessage>* tensors) {
  uint32_t count = 0;
  tensors->clear();
  if (!reader->Get(&count)) return false;
  for (; count > 0; --count) {
    uint64_t size = 0;
    absl::string_view encoded;
    TensorMessage tensor;
    if (!reader->Get(&size) || !reader->GetText(size, &encoded) ||
        !Parse(encoded.data(), encoded.size(), &tensor)) {
      return false;
    }
    tensors->push_back(std::move(tensor));
  }
  return true;
}

}  // namespace

size_t EncodedSize(const CallMessage& message) {
  return sizeof message.method + SizeOf(message.tensors) + message.bytes.size();
}

void Encode(const CallMessage& message, char* out) {
  Writer(out).Put(message.method);
  out = Put(message.tensors, out + sizeof message.method);
  Writer(out).PutBytes(message.bytes.data(), message.bytes.size());
}

bool Parse(const char* data, size_t size, CallMessage* out) {
  Reader reader(data, size);
  return reader.Get(&out->method) && Get(&reader, &out->tensors) &&
         reader.GetText(reader.left(), &out->bytes);
}

size_t EncodedSize(const AnswerMessage& message) {
  size_t size = sizeof message.code + SizeOf(message.text) + sizeof(uint32_t);
  for (const auto& [name, value] : message.payloads) size += SizeOf(name) + SizeOf(value);
  return size + SizeOf(message.tensors) + message.bytes.size();
}

void Encode(const AnswerMessage& message, char* out) {
  const size_t rest = SizeOf(message.tensors) + message.bytes.size();
  char* const tensors = out + EncodedSize(message) - rest;
  Writer writer(out);
  writer.Put(message.code);
  Put(message.text, &writer);
  writer.Put(static_cast<uint32_t>(message.payloads.size()));
  for (const auto& [name, value] : message.payloads) {
    Put(name, &writer);
    Put(value, &writer);
  }
  Writer(Put(message.tensors, tensors)).PutBytes(message.bytes.data(), message.bytes.size());
}

bool Parse(const char* data, size_t size, AnswerMessage* out) {
  Reader reader(data, size);
  uint32_t payloads = 0;
  out->payloads.clear();
  if (!reader.Get(&out->code) || !Get(&reader, &out->text) || !reader.Get(&payloads)) return false;
  for (; payloads > 0; --payloads) {
    absl::string_view name, value;
    if (!Get(&reader, &name) || !Get(&reader, &value)) return false;
    out->payloads.emplace_back(name, value);
  }
  return Get(&reader, &out->tensors) && reader.GetText(reader.left(), &out->bytes);
}

void EncodeHeader(char* out, size_t size) {
  Writer writer(out);
  writer.Put(static_cast<uint64_t>(size));
  writer.Put(rdt_crc32c(0, out + kPieceHeaderSize, size));
}

bool Assembly::Begin(uint64_t number, const char* data, size_t size) {
  PieceHeader header;
  Reader reader(data, size);
  if (begun_ || !reader.Get(&header.total) || !reader.Get(&header.checksum) ||
      header.total > kMaxCallBytes) {
    return false;
  }
  begun_ = true;
  number_ = number;
  header_ = header;
  return Add(number, reader.position(), reader.left());
}

bool Assembly::Add(uint64_t number, const char* data, size_t size) {
  if (!begun_ || number != number_ || size > header_.total - content_.size()) return false;
  // An empty piece would bring nothing nearer.
  if (size == 0 && !IsWhole()) return false;
  content_.append(data, size);
  return !IsWhole() || rdt_crc32c(0, content_.data(), content_.size()) == header_.checksum;
}

}  // namespace rdmatensor
