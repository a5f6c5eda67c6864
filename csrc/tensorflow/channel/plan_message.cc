// SPDX-License-Identifier: Apache-2.0
#include "channel/plan_message.h"

#include "base/byte_stream.h"
#include "channel/message.h"

namespace rdmatensor {
namespace {

constexpr uint32_t kMaxSlots = 256;  // the slot's number is a byte
constexpr uint32_t kMaxEntries = 1u << 24;

constexpr size_t kOfferFixed = 3 * sizeof(uint64_t) + 2 * sizeof(uint32_t);
constexpr size_t kRingSize = 2 * sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kEdgeFixed =
    sizeof(uint32_t) + 3 * sizeof(uint64_t) + sizeof(uint8_t) + 2 * sizeof(int32_t);

bool IsSound(const Offer::Ring& ring, uint64_t region_size) {
  if (ring.slots == 0 || ring.slots > kMaxSlots || ring.offset > region_size) return false;
  return ring.stride <= (region_size - ring.offset) / ring.slots;
}

bool IsSound(const Offer::Edge& edge, const Offer& offer) {
  if (edge.ring < -1 || edge.group < -1 || edge.has_shape > 1) return false;
  if (edge.group >= 0 && static_cast<size_t>(edge.group) >= offer.edges.size()) return false;
  if (edge.ring < 0) return edge.group < 0 && edge.bytes == 0;
  if (static_cast<size_t>(edge.ring) >= offer.rings.size()) return false;
  const uint64_t stride = offer.rings[static_cast<size_t>(edge.ring)].stride;
  return edge.offset <= stride && edge.bytes <= stride - edge.offset;
}

}  // namespace

std::string Encode(const Offer& offer) {
  size_t size = kOfferFixed + offer.rings.size() * kRingSize;
  for (const Offer::Edge& edge : offer.edges) size += kEdgeFixed + edge.name.size();
  std::string out(size, '\0');
  Writer writer(&out[0]);
  writer.Put(offer.graph);
  writer.Put(offer.region_key);
  writer.Put(offer.region_size);
  writer.Put(static_cast<uint32_t>(offer.rings.size()));
  writer.Put(static_cast<uint32_t>(offer.edges.size()));
  for (const Offer::Ring& ring : offer.rings) {
    writer.Put(ring.offset);
    writer.Put(ring.stride);
    writer.Put(ring.slots);
  }
  for (const Offer::Edge& edge : offer.edges) {
    writer.Put(static_cast<uint32_t>(edge.name.size()));
    writer.PutBytes(edge.name.data(), edge.name.size());
    writer.Put(edge.hash);
    writer.Put(edge.has_shape);
    writer.Put(edge.ring);
    writer.Put(edge.group);
    writer.Put(edge.offset);
    writer.Put(edge.bytes);
  }
  return out;
}

bool Parse(absl::string_view data, Offer* out) {
  Reader reader(data.data(), data.size());
  uint32_t rings = 0, edges = 0;
  if (!reader.Get(&out->graph) || !reader.Get(&out->region_key) || !reader.Get(&out->region_size) ||
      !reader.Get(&rings) || !reader.Get(&edges) || rings > kMaxEntries || edges > kMaxEntries ||
      rings > data.size() / kRingSize || edges > data.size() / kEdgeFixed) {
    return false;
  }
  out->rings.resize(rings);
  uint64_t slots = 0;
  for (Offer::Ring& ring : out->rings) {
    if (!reader.Get(&ring.offset) || !reader.Get(&ring.stride) || !reader.Get(&ring.slots) ||
        !IsSound(ring, out->region_size) || (slots += ring.slots) > kMaxAllSlots) {
      return false;
    }
  }
  out->edges.resize(edges);
  for (Offer::Edge& edge : out->edges) {
    uint32_t name_size = 0;
    absl::string_view name;
    if (!reader.Get(&name_size) || !reader.GetText(name_size, &name) || !reader.Get(&edge.hash) ||
        !reader.Get(&edge.has_shape) || !reader.Get(&edge.ring) || !reader.Get(&edge.group) ||
        !reader.Get(&edge.offset) || !reader.Get(&edge.bytes) || !IsSound(edge, *out)) {
      return false;
    }
    edge.name = std::string(name);
  }
  return reader.left() == 0;
}

size_t EncodedSize(const OfferPiece& piece) { return sizeof piece.total + piece.bytes.size(); }

void Encode(const OfferPiece& piece, char* out) {
  Writer writer(out);
  writer.Put(piece.total);
  writer.PutBytes(piece.bytes.data(), piece.bytes.size());
}

bool Parse(const char* data, size_t size, OfferPiece* out) {
  Reader reader(data, size);
  return reader.Get(&out->total) && out->total <= kMaxOfferBytes &&
         reader.GetText(reader.left(), &out->bytes);
}

size_t EncodedSize(const AcceptMessage& message) { return sizeof message.credits_key; }

void Encode(const AcceptMessage& message, char* out) { Writer(out).Put(message.credits_key); }

bool Parse(const char* data, size_t size, AcceptMessage* out) {
  Reader reader(data, size);
  return reader.Get(&out->credits_key) && reader.left() == 0;
}

size_t EncodedSize(const PlannedMessage& message) {
  size_t size = sizeof message.step_id + sizeof message.index + 2;
  if (message.flags & PlannedMessage::kInLoop) size += 2 * sizeof(uint64_t);
  if (message.flags & PlannedMessage::kShaped) size += 1 + message.dims.size() * sizeof(int64_t);
  if (message.flags & PlannedMessage::kGroup) size += sizeof message.dead + sizeof message.absent;
  if (message.flags & PlannedMessage::kLent) size += 4 * sizeof(uint64_t);
  if (message.flags & PlannedMessage::kChecked) {
    size += 1 + message.checksums.size() * sizeof(uint32_t);
  }
  return size;
}

void Encode(const PlannedMessage& message, char* out) {
  Writer writer(out);
  writer.Put(message.step_id);
  writer.Put(message.index);
  writer.Put(message.flags);
  writer.Put(message.slot);
  if (message.flags & PlannedMessage::kInLoop) {
    writer.Put(message.frame_id);
    writer.Put(message.iter_id);
  }
  if (message.flags & PlannedMessage::kShaped) {
    writer.Put(static_cast<uint8_t>(message.dims.size()));
    for (int64_t dim : message.dims) writer.Put(dim);
  }
  if (message.flags & PlannedMessage::kGroup) {
    writer.Put(message.dead);
    writer.Put(message.absent);
  }
  if (message.flags & PlannedMessage::kLent) {
    writer.Put(message.region_key);
    writer.Put(message.offset);
    writer.Put(message.lend_id);
    writer.Put(message.bytes);
  }
  if (message.flags & PlannedMessage::kChecked) {
    writer.Put(static_cast<uint8_t>(message.checksums.size()));
    for (uint32_t checksum : message.checksums) writer.Put(checksum);
  }
}

bool Parse(const char* data, size_t size, PlannedMessage* out) {
  Reader reader(data, size);
  if (!reader.Get(&out->step_id) || !reader.Get(&out->index) || !reader.Get(&out->flags) ||
      !reader.Get(&out->slot) || (out->flags & ~PlannedMessage::kAllFlags) != 0) {
    return false;
  }
  const uint8_t flags = out->flags;
  if ((flags & PlannedMessage::kInLoop) &&
      (!reader.Get(&out->frame_id) || !reader.Get(&out->iter_id))) {
    return false;
  }
  if (flags & PlannedMessage::kShaped) {
    uint8_t dims = 0;
    if (!reader.Get(&dims) || dims > kMaxDims) return false;
    out->dims.resize(dims);
    for (int64_t& dim : out->dims) {
      if (!reader.Get(&dim)) return false;
    }
  }
  if ((flags & PlannedMessage::kGroup) && (!reader.Get(&out->dead) || !reader.Get(&out->absent))) {
    return false;
  }
  if ((flags & PlannedMessage::kLent) &&
      (!reader.Get(&out->region_key) || !reader.Get(&out->offset) || !reader.Get(&out->lend_id) ||
       !reader.Get(&out->bytes))) {
    return false;
  }
  if (flags & PlannedMessage::kChecked) {
    uint8_t count = 0;
    if (!reader.Get(&count) || count == 0 || count > kMaxGroupMembers ||
        (count != 1 && !(flags & PlannedMessage::kGroup))) {
      return false;
    }
    out->checksums.resize(count);
    for (uint32_t& checksum : out->checksums) {
      if (!reader.Get(&checksum)) return false;
    }
  }
  return reader.left() == 0;
}

}  // namespace rdmatensor
