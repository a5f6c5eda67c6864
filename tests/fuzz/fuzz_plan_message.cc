// SPDX-License-Identifier: Apache-2.0
//
// Messages about planned tensors. An offer that is taken has every ring inside of its region and every tensor
// inside of its slot, because what writes there looks no more.
#include <string>

#include "channel/plan_message.h"
#include "fuzz.h"

namespace {

using rdmatensor::AcceptMessage;
using rdmatensor::Encode;
using rdmatensor::EncodedSize;
using rdmatensor::Offer;
using rdmatensor::OfferPiece;
using rdmatensor::Parse;
using rdmatensor::PlannedMessage;

template <typename Message>
std::string Encoded(const Message &message) {
  std::string out(EncodedSize(message), '\0');
  Encode(message, &out[0]);
  return out;
}

template <typename Message>
void Check(const char *data, size_t size) {
  char *copy = static_cast<char *>(fuzz_copy(data, size));
  Message message;
  if (Parse(copy, size, &message)) FUZZ_EXPECT(Encoded(message) == std::string(data, size));
  std::free(copy);
}

void CheckRing(const Offer::Ring &ring, uint64_t region_size) {
  uint64_t bytes = 0, end = 0;
  FUZZ_EXPECT(ring.slots > 0 && ring.slots <= 256);
  FUZZ_EXPECT(!__builtin_mul_overflow(ring.stride, uint64_t{ring.slots}, &bytes));
  FUZZ_EXPECT(!__builtin_add_overflow(ring.offset, bytes, &end) && end <= region_size);
}

void CheckEdge(const Offer::Edge &edge, const Offer &offer) {
  FUZZ_EXPECT(edge.group >= -1 && edge.group < static_cast<int64_t>(offer.edges.size()));
  if (edge.ring < 0) {
    FUZZ_EXPECT(edge.group == -1 && edge.bytes == 0);
    return;
  }
  FUZZ_EXPECT(static_cast<size_t>(edge.ring) < offer.rings.size());
  const uint64_t stride = offer.rings[static_cast<size_t>(edge.ring)].stride;
  FUZZ_EXPECT(edge.offset <= stride && edge.bytes <= stride - edge.offset);
}

void CheckOffer(const char *data, size_t size) {
  char *copy = static_cast<char *>(fuzz_copy(data, size));
  Offer offer;
  const bool good = Parse(absl::string_view(copy, size), &offer);
  std::free(copy);
  if (!good) return;
  for (const Offer::Ring &ring : offer.rings) CheckRing(ring, offer.region_size);
  for (const Offer::Edge &edge : offer.edges) CheckEdge(edge, offer);
  FUZZ_EXPECT(Encode(offer) == std::string(data, size));
}

Offer SomeOffer() {
  Offer offer;
  offer.graph = 9;
  offer.region_key = 1;
  offer.region_size = 8192;
  offer.rings = {{0, 256, 2}, {512, 1024, 4}};
  for (int i = 0; i < 3; ++i) {
    Offer::Edge edge;
    edge.name = std::string("edge_") + static_cast<char>('0' + i);
    edge.hash = 0x1234u + static_cast<unsigned>(i);
    edge.ring = i < 2 ? 0 : 1;
    edge.group = i < 2 ? 0 : -1;
    edge.offset = i == 1 ? 128 : 0;
    edge.bytes = 100;
    edge.has_shape = i == 2;
    offer.edges.push_back(edge);
  }
  return offer;
}

PlannedMessage SomePlanned(uint8_t flags) {
  PlannedMessage message;
  message.step_id = 3;
  message.index = 1;
  message.flags = flags;
  message.slot = 1;
  message.frame_id = 5;
  message.iter_id = 6;
  message.dims = {4, 5};
  message.bytes = 80;
  message.checksums.assign(flags & PlannedMessage::kGroup ? 3 : 1, 0x8a9136aau);
  return message;
}

size_t Put(uint8_t kind, const std::string &message, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  fuzz_put_number(&out, kind, 1);
  fuzz_put(&out, message.data(), message.size());
  return out.size;
}

}  // namespace

// The first byte says which message it is to be.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  const char *const bytes = reinterpret_cast<const char *>(data + 1);
  switch (data[0] % 4) {
    case 0:
      CheckOffer(bytes, size - 1);
      break;
    case 1:
      Check<PlannedMessage>(bytes, size - 1);
      break;
    case 2:
      Check<OfferPiece>(bytes, size - 1);
      break;
    default:
      Check<AcceptMessage>(bytes, size - 1);
  }
  return 0;
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  static const uint8_t kFlags[] = {PlannedMessage::kInSlot,
                                   PlannedMessage::kDead | PlannedMessage::kInLoop,
                                   PlannedMessage::kShaped | PlannedMessage::kLent,
                                   PlannedMessage::kGroup | PlannedMessage::kInSlot,
                                   PlannedMessage::kChecked | PlannedMessage::kInSlot,
                                   PlannedMessage::kChecked | PlannedMessage::kLent,
                                   PlannedMessage::kChecked | PlannedMessage::kGroup};
  OfferPiece piece;
  AcceptMessage accept;
  if (number == 0) return Put(0, Encode(SomeOffer()), seed, capacity);
  if (number <= sizeof kFlags)
    return Put(1, Encoded(SomePlanned(kFlags[number - 1])), seed, capacity);
  piece.total = 10;
  piece.bytes = "0123456789";
  accept.credits_key = 8;
  if (number == sizeof kFlags + 1) return Put(2, Encoded(piece), seed, capacity);
  return number == sizeof kFlags + 2 ? Put(3, Encoded(accept), seed, capacity) : 0;
}
