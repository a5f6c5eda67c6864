// SPDX-License-Identifier: Apache-2.0
//
// What plugins say about planned tensors: what is written is read, and of what a peer makes up only that
// is taken which can be used unchecked. See test_message.cc for the exact buffers.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "channel/plan_message.h"
#include "messages.h"

namespace {

using rdmatensor::AcceptMessage;
using rdmatensor::Encode;
using rdmatensor::EncodedSize;
using rdmatensor::Offer;
using rdmatensor::OfferPiece;
using rdmatensor::Parse;
using rdmatensor::PlannedMessage;

constexpr int kMutations = 200000;

// What those who use an offer take for granted.
void ExpectSound(const Offer &offer) {
  for (const Offer::Ring &ring : offer.rings) {
    EXPECT(ring.slots >= 1 && ring.slots <= 256 && ring.offset <= offer.region_size);
    EXPECT(ring.stride <= UINT64_MAX / ring.slots);
    EXPECT(ring.stride * ring.slots <= offer.region_size - ring.offset);
  }
  for (const Offer::Edge &edge : offer.edges) {
    EXPECT(edge.ring >= -1 && edge.group >= -1);
    EXPECT(edge.group < 0 || static_cast<size_t>(edge.group) < offer.edges.size());
    EXPECT(edge.ring >= 0 || (edge.group < 0 && edge.bytes == 0));
    if (edge.ring < 0) continue;
    EXPECT(static_cast<size_t>(edge.ring) < offer.rings.size());
    const uint64_t stride = offer.rings[static_cast<size_t>(edge.ring)].stride;
    EXPECT(edge.offset <= stride && edge.bytes <= stride - edge.offset);
  }
}

bool ParsesOffer(const std::string &text, Offer *offer) {
  const Exact buffer(text.data(), text.size());
  if (!Parse(absl::string_view(buffer.data(), buffer.size()), offer)) return false;
  ExpectSound(*offer);
  EXPECT(Encode(*offer) == text);
  return true;
}

bool ParsesPlanned(const std::string &text, PlannedMessage *message) {
  const Exact buffer(text.data(), text.size());
  if (!Parse(buffer.data(), buffer.size(), message)) return false;
  EXPECT((message->flags & ~PlannedMessage::kAllFlags) == 0 && message->dims.size() <= 254);
  EXPECT(Encoded(*message) == text);
  return true;
}

bool ParsesPiece(const std::string &text) {
  const Exact buffer(text.data(), text.size());
  OfferPiece piece;
  if (!Parse(buffer.data(), buffer.size(), &piece)) return false;
  EXPECT(piece.total <= rdmatensor::kMaxOfferBytes);
  EXPECT(piece.bytes.data() + piece.bytes.size() == buffer.data() + buffer.size());
  return true;
}

bool ParsesAccept(const std::string &text) {
  const Exact buffer(text.data(), text.size());
  AcceptMessage message;
  return Parse(buffer.data(), buffer.size(), &message);
}

// Two rings; edges alone, with shapes, in a group, and without memory.
Offer SoundOffer() {
  Offer offer;
  offer.graph = INT64_MIN + 5;
  offer.region_key = UINT64_MAX;
  offer.region_size = 8192;
  offer.rings = {{0, 1024, 4}, {4096, 2048, 2}};
  offer.edges.resize(5);
  const char *names[] = {"dense/kernel/Read:0", "x:0", "", "a:1@CPU:1", "empty:0"};
  for (size_t i = 0; i < offer.edges.size(); ++i) {
    offer.edges[i].name = names[i];
    offer.edges[i].hash = ~i;
  }
  offer.edges[0].ring = 0, offer.edges[0].bytes = 1024;
  offer.edges[1].ring = 1, offer.edges[1].bytes = 100, offer.edges[1].has_shape = 1;
  offer.edges[2].ring = 1, offer.edges[2].group = 0, offer.edges[2].bytes = 4;
  offer.edges[3].ring = 1, offer.edges[3].group = 0, offer.edges[3].offset = 64;
  offer.edges[3].bytes = 2048 - 64;
  return offer;
}

void TestOffers() {
  for (const Offer &offer : {Offer(), SoundOffer()}) {
    const std::string text = Encode(offer);
    Offer read;
    EXPECT(ParsesOffer(text, &read));
    EXPECT(read.graph == offer.graph && read.region_key == offer.region_key);
    EXPECT(read.rings.size() == offer.rings.size() && read.edges.size() == offer.edges.size());
    for (size_t i = 0; i < offer.edges.size(); ++i) {
      EXPECT(read.edges[i].name == offer.edges[i].name);
      EXPECT(read.edges[i].hash == offer.edges[i].hash);
    }
    for (size_t size = 0; size < text.size(); ++size) {
      EXPECT(!ParsesOffer(text.substr(0, size), &read));
    }
    EXPECT(!ParsesOffer(text + "x", &read));
  }
}

// Well-formed, and false.
void TestContradictions() {
  using Change = void (*)(Offer *);
  const Change changes[] = {
      [](Offer *o) { o->region_size = 8191; },
      [](Offer *o) { o->rings[0].slots = 0; },
      [](Offer *o) { o->rings[0].slots = 257, o->rings[0].stride = 0; },
      [](Offer *o) { o->rings[1].offset = 8193; },
      [](Offer *o) { o->rings[1].offset = UINT64_MAX; },
      [](Offer *o) { o->rings[1].stride = 2049; },
      [](Offer *o) { o->rings[1].stride = UINT64_MAX / 2 + 1; },  // times 2 is 0
      [](Offer *o) { o->edges[0].ring = 2; },
      [](Offer *o) { o->edges[0].ring = -2; },
      [](Offer *o) { o->edges[0].ring = INT32_MAX; },
      [](Offer *o) { o->edges[0].bytes = 1025; },
      [](Offer *o) { o->edges[0].offset = 1; },
      [](Offer *o) { o->edges[0].offset = UINT64_MAX; },  // plus 1024 is small
      [](Offer *o) { o->edges[1].has_shape = 2; },
      [](Offer *o) { o->edges[2].group = 5; },
      [](Offer *o) { o->edges[2].group = -2; },
      [](Offer *o) { o->edges[2].group = INT32_MAX; },
      [](Offer *o) { o->edges[3].bytes = UINT64_MAX; },
      [](Offer *o) { o->edges[4].bytes = 1; },
      [](Offer *o) { o->edges[4].group = 0; },
      [](Offer *o) { o->rings.clear(); },
  };
  for (const Change change : changes) {
    Offer offer = SoundOffer(), read;
    change(&offer);
    EXPECT(!ParsesOffer(Encode(offer), &read));
  }
}

// Numbers that would make a reader allocate.
void TestCounts() {
  const std::string text = Encode(Offer());
  for (const size_t at : {text.size() - 8, text.size() - 4}) {  // of rings, of edges
    for (const uint32_t count : {1u, 1u << 24, UINT32_MAX}) {
      std::string changed = text;
      std::memcpy(&changed[at], &count, sizeof count);
      Offer read;
      EXPECT(!ParsesOffer(changed, &read));
    }
  }
}

// Slots cost whoever takes the offer memory, and nothing to whoever makes it.
void TestSlots() {
  Offer offer, read;
  Offer::Ring ring;
  ring.slots = 256;
  offer.rings.assign((1u << 21) / ring.slots, ring);
  EXPECT(ParsesOffer(Encode(offer), &read));
  offer.rings.push_back(ring);
  EXPECT(!ParsesOffer(Encode(offer), &read));
}

void TestPiecesAndAccepts() {
  OfferPiece piece;
  piece.total = rdmatensor::kMaxOfferBytes;
  piece.bytes = "part";
  const std::string text = Encoded(piece);
  for (size_t size = 0; size <= text.size(); ++size) {
    EXPECT(ParsesPiece(text.substr(0, size)) == (size >= sizeof piece.total));
  }
  ++piece.total;
  EXPECT(!ParsesPiece(Encoded(piece)));

  AcceptMessage accept;
  accept.credits_key = UINT64_MAX - 1;
  const std::string accepted = Encoded(accept) + "x";
  for (size_t size = 0; size <= accepted.size(); ++size) {
    EXPECT(ParsesAccept(accepted.substr(0, size)) == (size + 1 == accepted.size()));
  }
}

// Every combination of flags, with different ranks.
std::vector<PlannedMessage> PlannedSamples() {
  std::vector<PlannedMessage> samples;
  for (uint8_t flags = 0; flags <= PlannedMessage::kAllFlags; ++flags) {
    for (const size_t rank : {0, 3, 254}) {
      PlannedMessage message;
      message.step_id = INT64_MIN + flags;
      message.index = UINT32_MAX - flags;
      message.flags = flags;
      message.slot = 255;
      if (flags & PlannedMessage::kInLoop) message.frame_id = UINT64_MAX, message.iter_id = -7;
      if (flags & PlannedMessage::kShaped) message.dims.assign(rank, int64_t{1} << 40);
      if (flags & PlannedMessage::kGroup) message.dead = uint64_t{1} << 63, message.absent = 5;
      if (flags & PlannedMessage::kLent) {
        message.region_key = 1, message.offset = 2, message.lend_id = 3, message.bytes = 4;
      }
      if (flags & PlannedMessage::kChecked) {
        message.checksums.assign(flags & PlannedMessage::kGroup ? 1 + rank % 64 : 1, 0xfedcba98u);
      }
      samples.push_back(message);
    }
  }
  return samples;
}

void TestPlanned() {
  for (const PlannedMessage &sample : PlannedSamples()) {
    const std::string text = Encoded(sample);
    PlannedMessage read;
    EXPECT(ParsesPlanned(text, &read));
    EXPECT(read.step_id == sample.step_id && read.index == sample.index);
    EXPECT(read.flags == sample.flags && read.slot == sample.slot && read.dims == sample.dims);
    EXPECT(read.frame_id == sample.frame_id && read.iter_id == sample.iter_id);
    EXPECT(read.dead == sample.dead && read.region_key == sample.region_key);
    EXPECT(read.offset == sample.offset && read.lend_id == sample.lend_id);
    EXPECT(read.bytes == sample.bytes && read.absent == sample.absent);
    EXPECT(read.checksums == sample.checksums);
    for (size_t size = 0; size < text.size(); ++size) {
      EXPECT(!ParsesPlanned(text.substr(0, size), &read));
    }
    EXPECT(!ParsesPlanned(text + "x", &read));
  }
  PlannedMessage unknown;
  unknown.flags = PlannedMessage::kAllFlags + 1;
  EXPECT(!ParsesPlanned(Encoded(unknown), &unknown));
  // None, two of a single tensor, more than any group has.
  for (const size_t checksums : {0, 2, 65}) {
    PlannedMessage checked;
    checked.flags = PlannedMessage::kChecked;
    if (checksums != 2) checked.flags |= PlannedMessage::kGroup;
    checked.checksums.assign(checksums, 7);
    EXPECT(!ParsesPlanned(Encoded(checked), &checked));
  }
  PlannedMessage deep;
  deep.flags = PlannedMessage::kShaped;
  deep.dims.assign(255, 1);
  EXPECT(!ParsesPlanned(Encoded(deep), &deep));
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
  uint64_t state_ = 11;
};

// Changes bytes, overwrites numbers with extreme ones, cuts and lengthens.
void Mutate(Random *random, std::string *message) {
  static const uint64_t extremes[] = {
      0, 1, 0x7f, 0xff, 256, 0x7fffffff, 0x80000000u, 0xffffffff, uint64_t{1} << 63, UINT64_MAX};
  for (size_t count = 1 + random->Below(3); count > 0; --count) {
    const size_t at = random->Below(message->size());
    const size_t left = message->size() - at;
    switch (random->Below(4)) {
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
        if (random->Below(4) == 0) message->resize(at);
        break;
      default:
        if (random->Below(4) == 0) message->append(random->Below(40), '\x01');
    }
  }
}

void TestMutations() {
  std::vector<std::string> planned;
  for (const PlannedMessage &sample : PlannedSamples()) planned.push_back(Encoded(sample));
  const std::string offered = Encode(SoundOffer());
  Random random;
  int offers = 0, messages = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::string offer = offered, message = planned[random.Below(planned.size())];
    Mutate(&random, &offer);
    Mutate(&random, &message);
    Offer read;
    PlannedMessage tensor;
    offers += ParsesOffer(offer, &read);
    messages += ParsesPlanned(message, &tensor);
    (void)ParsesPiece(offer);
    (void)ParsesAccept(message);
  }
  // Some changes are harmless and some are not, or nothing was tested.
  EXPECT(offers > kMutations / 100 && offers < kMutations);
  EXPECT(messages > kMutations / 100 && messages < kMutations);
}

}  // namespace

int main() {
  TestOffers();
  TestContradictions();
  TestCounts();
  TestSlots();
  TestPiecesAndAccepts();
  TestPlanned();
  TestMutations();
  return 0;
}
