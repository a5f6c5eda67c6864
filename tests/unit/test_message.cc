// SPDX-License-Identifier: Apache-2.0
//
// Messages between plugins: what is written is read, and whatever a peer sends is refused or yields
// views inside of what was sent. Every buffer that is parsed has exactly the size that is claimed, so
// that AddressSanitizer sees the first byte that is read beyond it.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "channel/copied_message.h"
#include "messages.h"

namespace {

using rdmatensor::AddressAnswer;
using rdmatensor::Encode;
using rdmatensor::EncodedSize;
using rdmatensor::MessageKind;
using rdmatensor::Parse;
using rdmatensor::ReadyMessage;
using rdmatensor::SourceMessage;
using rdmatensor::StepMessage;
using rdmatensor::TensorMessage;

constexpr size_t kTensorFixedSize = 26, kStepFixedSize = 13, kReadyFixedSize = 8;
constexpr int kMutations = 250000;

void ExpectInside(const Exact &buffer, const char *data, size_t size) {
  if (size == 0) return;
  EXPECT(data >= buffer.data() && data <= buffer.data() + buffer.size());
  EXPECT(size <= static_cast<size_t>(buffer.data() + buffer.size() - data));
  // What is called inside must also be readable.
  static volatile char last;
  for (size_t i = 0; i < size; ++i) last = data[i];
  (void)last;
}

// True if it was taken; then it makes sense for a buffer of this size.
bool ParsesTensor(const Exact &buffer, TensorMessage *message) {
  if (!Parse(buffer.data(), buffer.size(), message)) return false;
  ExpectInside(buffer, message->key.data(), message->key.size());
  if (message->flags & TensorMessage::kInline) {
    ExpectInside(buffer, message->payload, message->bytes);
  }
  EXPECT((message->flags & ~TensorMessage::kAllFlags) == 0);
  EXPECT(EncodedSize(*message) == buffer.size());
  return true;
}

bool ParsesStep(const Exact &buffer, StepMessage *message) {
  if (!Parse(buffer.data(), buffer.size(), message)) return false;
  ExpectInside(buffer, message->text.data(), message->text.size());
  EXPECT(EncodedSize(*message) == buffer.size());
  return true;
}

bool ParsesReady(const Exact &buffer, ReadyMessage *message) {
  if (!Parse(buffer.data(), buffer.size(), message)) return false;
  EXPECT(EncodedSize(*message) == buffer.size());
  return true;
}

bool ParsesAnswer(const Exact &buffer, AddressAnswer *answer) {
  if (!Parse(absl::string_view(buffer.data(), buffer.size()), answer)) return false;
  if (answer->version == rdmatensor::kProtocolVersion) {
    EXPECT(Encode(*answer).size() == buffer.size());
  }
  return true;
}

// Every combination of rank, flags, key and payload.
std::vector<TensorMessage> TensorSamples() {
  static const std::string key(90, 'k'), payload(300, 'p');
  std::vector<TensorMessage> samples;
  for (int rank = 0; rank <= 8; ++rank) {
    for (uint8_t flags = 0; flags <= TensorMessage::kAllFlags; ++flags) {
      for (size_t key_size : {size_t{0}, size_t{1}, key.size()}) {
        for (size_t bytes : {size_t{0}, size_t{1}, payload.size()}) {
          TensorMessage message;
          message.step_id = -5 - rank;
          message.dtype = rank + 1;
          message.flags = flags;
          for (int i = 0; i < rank; ++i) message.dims.push_back(int64_t{1} << (7 * i));
          message.key = absl::string_view(key.data(), key_size);
          message.bytes = bytes;
          if (flags & TensorMessage::kChecked) message.checksum = 0xfedcba98u + flags;
          if (flags & TensorMessage::kInline) {
            message.payload = payload.data();
          } else {
            message.region_key = UINT64_MAX - bytes;
            message.offset = uint64_t{1} << 63;
            message.lend_id = rdmatensor::kMaxImmediateValue - bytes;
          }
          samples.push_back(message);
        }
      }
    }
  }
  return samples;
}

std::vector<StepMessage> StepSamples() {
  StepMessage empty, full;
  full.step_id = INT64_MIN;
  full.code = 14;
  full.derived = 1;
  full.text = "the channel was lost";
  return {empty, full};
}

std::vector<ReadyMessage> ReadySamples() {
  ReadyMessage empty, full;
  full.session = "eager_7708868933994445821";
  full.task = "/job:worker/replica:0/task:1";
  return {empty, full};
}

std::vector<AddressAnswer> AnswerSamples() {
  AddressAnswer empty, full;
  full.address = "127.0.0.1:12345";
  full.device_name = "/job:worker/replica:0/task:1#0011223344556677";
  full.incarnations = {0, 1, UINT64_MAX};
  full.region_keys = {7, UINT64_MAX - 1};
  return {empty, full};
}

std::vector<SourceMessage> SourceSamples() {
  SourceMessage empty, full;
  full.session = "eager_7708868933994445821";
  full.receiver = "/job:worker/replica:0/task:1";
  full.sender = "/job:client/replica:0/task:0";
  full.self = AnswerSamples().back();
  return {empty, full};
}

void TestImmediates() {
  for (uint64_t value : {uint64_t{0}, uint64_t{1}, rdmatensor::kMaxImmediateValue}) {
    const uint64_t immediate = rdmatensor::PackImmediate(MessageKind::kRelease, value);
    EXPECT(rdmatensor::ImmediateKind(immediate) == MessageKind::kRelease);
    EXPECT(rdmatensor::ImmediateValue(immediate) == value);
  }
}

// A tensor message has one length only: every shorter one is refused, and a longer one as well.
void TestTensors() {
  for (const TensorMessage &sample : TensorSamples()) {
    const std::string encoded = Encoded(sample);
    TensorMessage read;
    const Exact whole(encoded.data(), encoded.size());
    EXPECT(ParsesTensor(whole, &read));
    EXPECT(read.step_id == sample.step_id && read.dtype == sample.dtype);
    EXPECT(read.flags == sample.flags && read.dims == sample.dims && read.key == sample.key);
    EXPECT(read.bytes == sample.bytes);
    if (sample.flags & TensorMessage::kInline) {
      EXPECT(std::string(read.payload, read.bytes) == std::string(sample.payload, sample.bytes));
    } else {
      EXPECT(read.region_key == sample.region_key && read.offset == sample.offset);
      EXPECT(read.lend_id == sample.lend_id);
    }
    for (size_t size = 0; size < encoded.size(); ++size) {
      EXPECT(!ParsesTensor(Exact(encoded.data(), size), &read));
    }
    EXPECT(!ParsesTensor(Exact((encoded + "x").data(), encoded.size() + 1), &read));
  }
}

// Their text is all that follows the fixed part.
void TestSteps() {
  for (const StepMessage &sample : StepSamples()) {
    const std::string encoded = Encoded(sample);
    for (size_t size = 0; size <= encoded.size(); ++size) {
      StepMessage read;
      const Exact part(encoded.data(), size);
      EXPECT(ParsesStep(part, &read) == (size >= kStepFixedSize));
      if (size < kStepFixedSize) continue;
      EXPECT(read.step_id == sample.step_id && read.code == sample.code);
      EXPECT(read.derived == sample.derived);
      EXPECT(read.text == sample.text.substr(0, size - kStepFixedSize));
    }
  }
}

void TestReady() {
  for (const ReadyMessage &sample : ReadySamples()) {
    const std::string encoded = Encoded(sample);
    for (size_t size = 0; size <= encoded.size(); ++size) {
      ReadyMessage read;
      const Exact part(encoded.data(), size);
      const size_t fixed = kReadyFixedSize + sample.session.size();
      EXPECT(ParsesReady(part, &read) == (size >= fixed));
      if (size < fixed) continue;
      EXPECT(read.version == sample.version && read.session == sample.session);
      EXPECT(read.task == sample.task.substr(0, size - fixed));
    }
  }
}

void TestSources() {
  for (const SourceMessage &sample : SourceSamples()) {
    const std::string encoded = Encoded(sample);
    for (size_t size = 0; size <= encoded.size(); ++size) {
      SourceMessage read;
      const Exact part(encoded.data(), size);
      EXPECT(Parse(part.data(), part.size(), &read) == (size == encoded.size()));
      if (size < encoded.size()) continue;
      EXPECT(read.session == sample.session && read.receiver == sample.receiver);
      EXPECT(read.sender == sample.sender && read.self.address == sample.self.address);
      EXPECT(read.self.incarnations == sample.self.incarnations);
    }
  }
}

// What was read stays as it was read, whatever the sender writes into its memory afterwards.
template <typename Message>
void ExpectKept(const Message &sample) {
  std::string encoded = Encoded(sample), text;
  Message read, sent = sample;
  EXPECT(rdmatensor::ParseCopied(encoded.data(), encoded.size(), &text, &read));
  std::memset(&encoded[0], 0xee, encoded.size());
  EXPECT(*rdmatensor::TextOf(&read) == *rdmatensor::TextOf(&sent));
}

void TestOverwritten() {
  for (const TensorMessage &sample : TensorSamples()) ExpectKept(sample);
  for (const StepMessage &sample : StepSamples()) ExpectKept(sample);
}

void TestAnswers() {
  for (const AddressAnswer &sample : AnswerSamples()) {
    const std::string encoded = Encode(sample);
    AddressAnswer read;
    EXPECT(ParsesAnswer(Exact(encoded.data(), encoded.size()), &read));
    EXPECT(read.version == sample.version && read.address == sample.address);
    EXPECT(read.device_name == sample.device_name && read.incarnations == sample.incarnations);
    EXPECT(read.region_keys == sample.region_keys);
    for (size_t size = 0; size < encoded.size(); ++size) {
      EXPECT(!ParsesAnswer(Exact(encoded.data(), size), &read));
    }
    EXPECT(!ParsesAnswer(Exact((encoded + "x").data(), encoded.size() + 1), &read));
  }
  // Of another version only the number is read.
  const uint32_t later[] = {rdmatensor::kProtocolVersion + 1, UINT32_MAX};
  AddressAnswer read;
  EXPECT(ParsesAnswer(Exact(reinterpret_cast<const char *>(later), sizeof later), &read));
  EXPECT(read.version == rdmatensor::kProtocolVersion + 1 && read.address.empty());
}

// The same numbers in every run.
class Random {
 public:
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t Below(size_t limit) { return limit == 0 ? 0 : Next() % limit; }

 private:
  uint64_t state_ = 7;
};

// Changes bytes, overwrites numbers with extreme ones, cuts and lengthens.
void Mutate(Random *random, std::string *message) {
  static const uint64_t extremes[] = {0,
                                      1,
                                      0x7f,
                                      0xff,
                                      0x7fffffff,
                                      0x80000000u,
                                      0xffffffff,
                                      uint64_t{1} << 63,
                                      UINT64_MAX,
                                      INT64_MAX,
                                      UINT64_MAX - kTensorFixedSize};
  for (size_t count = 1 + random->Below(4); count > 0; --count) {
    const size_t at = random->Below(message->size());
    const size_t left = message->size() - at;
    switch (random->Below(5)) {
      case 0:
        if (left > 0) (*message)[at] = static_cast<char>(random->Next());
        break;
      case 1: {
        const uint64_t value = extremes[random->Below(sizeof extremes / sizeof *extremes)];
        const size_t width = size_t{1} << random->Below(4);
        if (width <= left) std::memcpy(&(*message)[at], &value, width);
        break;
      }
      case 2:
        message->resize(at);
        break;
      case 3:
        message->append(random->Below(40), static_cast<char>(random->Next()));
        break;
      default:  // the fixed part decides most
        if (left > 0)
          (*message)[random->Below(left < kTensorFixedSize ? left : kTensorFixedSize)] ^=
              1 << random->Below(8);
    }
  }
}

void TestMutations() {
  std::vector<std::string> seeds;
  for (const TensorMessage &sample : TensorSamples()) seeds.push_back(Encoded(sample));
  for (int i = 0; i < 40; ++i) {  // or tensors would be all there is
    for (const StepMessage &sample : StepSamples()) seeds.push_back(Encoded(sample));
    for (const ReadyMessage &sample : ReadySamples()) seeds.push_back(Encoded(sample));
    for (const AddressAnswer &sample : AnswerSamples()) seeds.push_back(Encode(sample));
    for (const SourceMessage &sample : SourceSamples()) seeds.push_back(Encoded(sample));
    seeds.emplace_back();
  }
  Random random;
  int taken = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::string message = seeds[random.Below(seeds.size())];
    if (i % 8 == 0) {
      message.resize(random.Below(120));
      for (char &c : message) c = static_cast<char>(random.Next());
    } else {
      Mutate(&random, &message);
    }
    const Exact buffer(message.data(), message.size());
    TensorMessage tensor;
    StepMessage step;
    ReadyMessage ready;
    SourceMessage source;
    if (Parse(buffer.data(), buffer.size(), &source)) ++taken;
    AddressAnswer answer;
    taken += ParsesTensor(buffer, &tensor);
    (void)ParsesStep(buffer, &step);
    (void)ParsesReady(buffer, &ready);
    (void)ParsesAnswer(buffer, &answer);
  }
  // Some changes are harmless and some are not, or nothing was tested.
  EXPECT(taken > kMutations / 100 && taken < kMutations);
}

}  // namespace

int main() {
  EXPECT(EncodedSize(TensorMessage()) == kTensorFixedSize + 24);
  TestImmediates();
  TestTensors();
  TestSteps();
  TestReady();
  TestSources();
  TestOverwritten();
  TestAnswers();
  TestMutations();
  return 0;
}
