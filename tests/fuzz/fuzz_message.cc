// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of tensors, and the other messages between plugins, from memory that the sender still writes
// to: they are refused, or say the same when written again, and what was read stays as it was read.
#include <string>

#include "channel/call_message.h"
#include "channel/copied_message.h"
#include "fuzz.h"

namespace {

using rdmatensor::AddressAnswer;
using rdmatensor::AnswerMessage;
using rdmatensor::CallMessage;
using rdmatensor::Encode;
using rdmatensor::EncodedSize;
using rdmatensor::Parse;
using rdmatensor::ReadyMessage;
using rdmatensor::SourceMessage;
using rdmatensor::StepMessage;
using rdmatensor::TensorMessage;

// What the peer's memory says, with nothing around it.
struct Shared {
  Shared(const uint8_t *bytes, size_t count)
      : data(static_cast<char *>(fuzz_copy(bytes, count))), size(count) {}
  ~Shared() { std::free(data); }
  void Overwrite() { std::memset(data, 0xee, size); }
  char *const data;
  const size_t size;
};

template <typename Message>
std::string Encoded(const Message &message) {
  std::string out(EncodedSize(message), '\0');
  Encode(message, &out[0]);
  return out;
}

// A payload is copied once, by its user.
void TakePayload(const TensorMessage &message, Shared *shared, std::string *payload) {
  if ((message.flags & TensorMessage::kInline) == 0) return;
  FUZZ_EXPECT(message.payload >= shared->data &&
              message.bytes <= static_cast<size_t>(shared->data + shared->size - message.payload));
  payload->assign(message.payload, message.bytes);
}
template <typename Message>
void TakePayload(const Message &, Shared *, std::string *) {}

void PointTo(TensorMessage *message, const std::string &payload) {
  message->payload = payload.data();
}
template <typename Message>
void PointTo(Message *, const std::string &) {}

uint32_t VersionOf(const ReadyMessage &) { return rdmatensor::kProtocolVersion; }
uint32_t VersionOf(const SourceMessage &message) { return message.self.version; }

template <typename Message>
void Check(const uint8_t *data, size_t size) {
  Shared shared(data, size);
  Message message;
  std::string text, payload;
  if (!rdmatensor::ParseCopied(shared.data, shared.size, &text, &message)) return;
  TakePayload(message, &shared, &payload);
  shared.Overwrite();
  PointTo(&message, payload);
  FUZZ_EXPECT(Encoded(message) == std::string(reinterpret_cast<const char *>(data), size));
}

// Of messages that copy their texts when they are parsed.
template <typename Message>
void CheckOwning(const uint8_t *data, size_t size) {
  Shared shared(data, size);
  Message message;
  if (!Parse(shared.data, shared.size, &message)) return;
  shared.Overwrite();
  if (VersionOf(message) != rdmatensor::kProtocolVersion) return;
  FUZZ_EXPECT(Encoded(message) == std::string(reinterpret_cast<const char *>(data), size));
}

void CheckAnswer(const uint8_t *data, size_t size) {
  Shared shared(data, size);
  AddressAnswer answer;
  if (!Parse(absl::string_view(shared.data, shared.size), &answer)) return;
  shared.Overwrite();
  if (answer.version != rdmatensor::kProtocolVersion) return;
  FUZZ_EXPECT(Encode(answer) == std::string(reinterpret_cast<const char *>(data), size));
}

// Calls are copied before they are parsed. Some inputs are taken in two pieces.
template <typename Message>
void CheckCall(const uint8_t *data, size_t size) {
  Shared whole(data, size);
  Message message;
  if (Parse(whole.data, whole.size, &message)) {
    FUZZ_EXPECT(Encoded(message) == std::string(whole.data, whole.size));
  }
  std::string sent(rdmatensor::kPieceHeaderSize, '\0');
  sent.append(whole.data, whole.size);
  rdmatensor::EncodeHeader(&sent[0], whole.size);
  // No piece is empty.
  const size_t first = rdmatensor::kPieceHeaderSize + (whole.size + 1) / 2;
  rdmatensor::Assembly assembly;
  FUZZ_EXPECT(assembly.Begin(1, sent.data(), first));
  FUZZ_EXPECT(assembly.IsWhole() || assembly.Add(1, &sent[first], sent.size() - first));
  FUZZ_EXPECT(assembly.IsWhole() && assembly.Take() == std::string(whole.data, whole.size));
  (void)assembly.Begin(2, whole.data, whole.size);
}

size_t Put(uint8_t kind, const std::string &message, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  fuzz_put_number(&out, kind, 1);
  fuzz_put(&out, message.data(), message.size());
  return out.size;
}

TensorMessage SomeTensor(bool in_line, uint8_t flags = 0) {
  static const char kPayload[24] = "bytes";
  TensorMessage message;
  message.step_id = 77;
  message.dtype = 1;
  message.dims = {2, 3};
  message.key = "/job:a/replica:0/task:0/device:CPU:0;1;/job:b;edge;0:0";
  message.bytes = sizeof kPayload;
  message.flags = flags | (in_line ? TensorMessage::kInline : TensorMessage::kBounced);
  message.payload = kPayload;
  message.region_key = 0x1122334455667788u;
  message.offset = 4096;
  message.lend_id = 5;
  message.checksum = 0x8a9136aau;
  return message;
}

}  // namespace

// The first byte says which message it is to be.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  switch (data[0] % 7) {
    case 0:
      Check<TensorMessage>(data + 1, size - 1);
      break;
    case 1:
      Check<StepMessage>(data + 1, size - 1);
      break;
    case 2:
      CheckOwning<ReadyMessage>(data + 1, size - 1);
      break;
    case 4:
      CheckOwning<SourceMessage>(data + 1, size - 1);
      break;
    case 5:
      CheckCall<CallMessage>(data + 1, size - 1);
      break;
    case 6:
      CheckCall<AnswerMessage>(data + 1, size - 1);
      break;
    default:
      CheckAnswer(data + 1, size - 1);
  }
  return 0;
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  StepMessage step;
  ReadyMessage ready;
  AddressAnswer answer;
  CallMessage call;
  AnswerMessage answered;
  switch (number) {
    case 7:
      call.method = 1;
      call.tensors = {SomeTensor(true), SomeTensor(false)};
      call.bytes = "a request";
      return Put(5, Encoded(call), seed, capacity);
    case 8:
      answered.code = 14;
      answered.text = "gone";
      answered.payloads = {{"name", "value"}};
      answered.tensors = {SomeTensor(true)};
      answered.bytes = "an answer";
      return Put(6, Encoded(answered), seed, capacity);
    case 0:
    case 1:
      return Put(0, Encoded(SomeTensor(number == 0)), seed, capacity);
    case 2:
      step.code = 14;
      step.text = "the channel was lost";
      return Put(1, Encoded(step), seed, capacity);
    case 3:
      ready.task = "/job:worker/replica:0/task:1";
      return Put(2, Encoded(ready), seed, capacity);
    case 5:
    case 6:
      return Put(0, Encoded(SomeTensor(number == 5, TensorMessage::kChecked)), seed, capacity);
    case 4:
      answer.address = "127.0.0.1:4000";
      answer.device_name = "/job:a#1";
      answer.incarnations = {1, 2};
      answer.region_keys = {3};
      return Put(3, Encode(answer), seed, capacity);
    default:
      return 0;
  }
}
