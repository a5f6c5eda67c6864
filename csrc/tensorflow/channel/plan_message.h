// SPDX-License-Identifier: Apache-2.0
//
// What two plugins say to each other about planned tensors. The receiver offers places; the sender
// accepts, and from then on a tensor is announced by the number of its edge instead of its key.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_PLAN_MESSAGE_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_PLAN_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace rdmatensor {

// The sender keeps a bit for each member of a group.
inline constexpr uint32_t kMaxGroupMembers = 64;

// Places in one region of the receiver for edges of one graph.
struct Offer {
  struct Ring {
    uint64_t offset = 0, stride = 0;  // of the first slot, and from slot to slot
    uint32_t slots = 0;
  };
  struct Edge {
    std::string name;
    uint64_t hash = 0;      // rdt_plan_edge_hash: the sender's must be equal
    uint8_t has_shape = 0;  // its tensors come with their shapes
    int32_t ring = -1, group = -1;
    uint64_t offset = 0;  // in the slot
    uint64_t bytes = 0;   // largest tensor
  };
  int64_t graph = 0;
  uint64_t region_key = 0, region_size = 0;
  std::vector<Ring> rings;
  std::vector<Edge> edges;
};
std::string Encode(const Offer& offer);
// False if it is malformed or contradicts itself: a ring outside the region, a member outside its slot,
// an index out of range. Offsets of `out` can be used unchecked.
bool Parse(absl::string_view data, Offer* out);

// An offer may be longer than a notification: it comes in pieces, in order.
struct OfferPiece {
  uint64_t total = 0;  // bytes of the whole offer
  absl::string_view bytes;
};
inline constexpr uint64_t kMaxOfferBytes = 256u << 20;
// Limits the slots of all rings of an offer, and of all offers of a peer. A slot costs the sender 16 bytes,
// but the receiver that offers it almost nothing.
inline constexpr uint64_t kMaxAllSlots = 1u << 21;
size_t EncodedSize(const OfferPiece& piece);
void Encode(const OfferPiece& piece, char* out);
bool Parse(const char* data, size_t size, OfferPiece* out);

// Names the sender's region of credits. For each slot of all rings, in order, the receiver counts there in 64
// bits how often the slot was given back.
struct AcceptMessage {
  uint64_t credits_key = 0;
};
size_t EncodedSize(const AcceptMessage& message);
void Encode(const AcceptMessage& message, char* out);
bool Parse(const char* data, size_t size, AcceptMessage* out);

struct PlannedMessage {
  enum Flags : uint8_t {
    kDead = 1,     // a single tensor is dead: no bytes
    kInLoop = 2,   // frame and iteration follow
    kShaped = 4,   // dimensions follow
    kLent = 8,     // the bytes lie in the sender's arena
    kInSlot = 16,  // they lie in slot `slot`; neither: there are none
    kGroup =
        32,  // `index` is a group's, `dead` its dead members, `absent` those that go another way
    kChecked = 64,  // checksums follow
    kAllFlags = 127
  };
  int64_t step_id = 0;
  uint32_t index = 0;  // of the edge or group in the offer
  uint8_t flags = 0;
  uint8_t slot = 0;
  // TensorFlow's FrameAndIter, whose header needs TensorFlow's library.
  uint64_t frame_id = 0;
  int64_t iter_id = 0;
  absl::InlinedVector<int64_t, 8> dims;
  uint64_t dead = 0, absent = 0;
  uint64_t region_key = 0, offset = 0, lend_id = 0, bytes = 0;  // kLent
  // kChecked: CRC32C of the bytes; of a group one for each member, also for those without bytes.
  absl::InlinedVector<uint32_t, 1> checksums;
};
size_t EncodedSize(const PlannedMessage& message);
void Encode(const PlannedMessage& message, char* out);
bool Parse(const char* data, size_t size, PlannedMessage* out);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_PLAN_MESSAGE_H_
