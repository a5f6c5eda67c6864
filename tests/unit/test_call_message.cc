// SPDX-License-Identifier: Apache-2.0
//
// Calls between plugins: what is written is read, whatever a peer sends is refused or yields views inside of what
// was sent, and pieces make the whole that was cut, or are refused.
#include <cstring>
#include <string>
#include <vector>

#include "channel/call_message.h"
#include "messages.h"

namespace {

using rdmatensor::AnswerMessage;
using rdmatensor::Assembly;
using rdmatensor::CallMessage;
using rdmatensor::EncodedSize;
using rdmatensor::Parse;
using rdmatensor::TensorMessage;

TensorMessage Tensor(bool in_line) {
  static const char kPayload[8] = "seven b";
  TensorMessage message;
  message.dtype = 1;
  message.key = "fed";
  message.dims = {2};
  message.bytes = sizeof kPayload;
  message.flags = in_line ? TensorMessage::kInline : 0;
  message.payload = kPayload;
  message.region_key = 7;
  message.lend_id = 9;
  return message;
}

std::vector<CallMessage> CallSamples() {
  CallMessage empty, full;
  full.method = 2;
  full.tensors = {Tensor(true), Tensor(false)};
  full.bytes = "a message of TensorFlow";
  return {empty, full};
}

std::vector<AnswerMessage> AnswerSamples() {
  AnswerMessage empty, full;
  full.code = 14;
  full.text = "the task is gone";
  full.payloads = {{"type.googleapis.com/a", ""}, {"b", "value"}};
  full.tensors = {Tensor(false)};
  full.bytes = "an answer";
  return {empty, full};
}

// Every length is tried. What follows the fixed part is the message's own bytes, so only the beginning can be too
// short.
template <typename Message>
void TestLengths(const Message &sample) {
  const std::string encoded = Encoded(sample);
  const size_t fixed = encoded.size() - sample.bytes.size();
  for (size_t size = 0; size <= encoded.size(); ++size) {
    const Exact part(encoded.data(), size);
    Message read;
    EXPECT(Parse(part.data(), part.size(), &read) == (size >= fixed));
    if (size < fixed) continue;
    EXPECT(read.bytes == sample.bytes.substr(0, size - fixed));
    EXPECT(read.tensors.size() == sample.tensors.size());
    EXPECT(Encoded(read) == encoded.substr(0, size));
  }
}

template <typename Message>
void TestDamage(const Message &sample) {
  const std::string encoded = Encoded(sample);
  for (size_t at = 0; at < encoded.size(); ++at) {
    for (const char value : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string damaged = encoded;
      damaged[at] = value;
      const Exact whole(damaged.data(), damaged.size());
      Message read;
      if (Parse(whole.data(), whole.size(), &read)) EXPECT(Encoded(read) == damaged);
    }
  }
}

bool Begin(Assembly *assembly, uint64_t number, const std::string &whole, size_t piece) {
  std::string first(rdmatensor::kPieceHeaderSize, '\0');
  first += whole;
  rdmatensor::EncodeHeader(&first[0], whole.size());
  const Exact exact(first.data(), rdmatensor::kPieceHeaderSize + piece);
  return assembly->Begin(number, exact.data(), exact.size());
}

bool BeginHuge(uint64_t total) {
  std::string first(rdmatensor::kPieceHeaderSize + 1, 'x');
  std::memcpy(&first[0], &total, sizeof total);
  Assembly assembly;
  return assembly.Begin(1, first.data(), first.size());
}

void TestAssembly() {
  Assembly assembly;
  EXPECT(!assembly.IsWhole());
  EXPECT(!assembly.Add(1, "x", 1));
  EXPECT(!assembly.Begin(1, "short", 5));
  EXPECT(Begin(&assembly, 1, "abcdef", 3) && !assembly.IsWhole());
  EXPECT(!Begin(&assembly, 2, "a", 1));  // one is not complete yet
  EXPECT(!assembly.Add(2, "d", 1));      // of another message
  EXPECT(!assembly.Add(1, "", 0));       // brings nothing
  EXPECT(!assembly.Add(1, "defg", 4));   // too much
  EXPECT(assembly.Add(1, "de", 2) && !assembly.IsWhole());
  EXPECT(assembly.Add(1, "f", 1) && assembly.IsWhole());
  EXPECT(assembly.Take() == "abcdef" && !assembly.IsWhole());
  EXPECT(Begin(&assembly, 2, "", 0) && assembly.IsWhole() && assembly.Take().empty());
  EXPECT(Begin(&assembly, 3, "abc", 2));
  EXPECT(!assembly.Add(3, "d", 1));  // another byte than the checksum's
  EXPECT(!BeginHuge(rdmatensor::kMaxCallBytes + 1) && !BeginHuge(UINT64_MAX));
  EXPECT(BeginHuge(rdmatensor::kMaxCallBytes));
}

}  // namespace

int main() {
  for (const CallMessage &sample : CallSamples()) {
    TestLengths(sample);
    TestDamage(sample);
  }
  for (const AnswerMessage &sample : AnswerSamples()) {
    TestLengths(sample);
    TestDamage(sample);
  }
  TestAssembly();
  return 0;
}
