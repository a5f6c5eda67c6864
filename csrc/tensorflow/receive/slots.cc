// SPDX-License-Identifier: Apache-2.0
#include "receive/slots.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/seldom.h"
#include "channel/message.h"
#include "stats/path_stats.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// The sender's credits are asked for at most so many times, for DEADLINE_MS each.
constexpr int kMostTries = 20;

using tensorflow::Tensor;
using tensorflow::TensorShape;

// Takes the shape that the sender announces, and checks it. False if it contradicts the edge.
bool TakeShape(const PlacedEdge& edge, const PlannedMessage& message, TensorShape* shape,
               uint64_t* bytes) {
  if (edge.has_static_shape) {
    *shape = edge.shape;
    *bytes = edge.place.bytes;
    return (message.flags & PlannedMessage::kShaped) == 0;
  }
  if ((message.flags & PlannedMessage::kShaped) == 0) return false;
  return MakeShape(message.dims, edge.definition->dtype, shape, bytes) &&
         edge.definition->shape.IsCompatibleWith(*shape);
}

// Returns the checksum of a tensor that is not in a group.
Checksum ChecksumOf(const PlannedMessage& message) {
  if (message.flags & PlannedMessage::kChecked) return message.checksums.front();
  return std::nullopt;
}

Path PathOf(const PlacedEdge& edge) {
  return edge.has_static_shape ? Path::kStatic : Path::kBounded;
}

}  // namespace

// Holds one filled slot.
class Slots::Hold {
 public:
  Hold(std::shared_ptr<Slots> slots, size_t slot, char* address)
      : slots_(std::move(slots)), slot_(slot), address_(address) {}
  ~Hold() { slots_->Return(slot_); }
  char* address() const { return address_; }

 private:
  const std::shared_ptr<Slots> slots_;
  const size_t slot_;
  char* const address_;
};

// A tensor's bytes in a slot. The memory is this process's own, so operations may work in place.
class Slots::Buffer : public tensorflow::TensorBuffer {
 public:
  Buffer(std::shared_ptr<Hold> hold, uint64_t offset, uint64_t bytes)
      : tensorflow::TensorBuffer(hold->address() + offset), hold_(std::move(hold)), bytes_(bytes) {}
  size_t size() const override { return bytes_; }
  tensorflow::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("rdmatensor_slots");
  }

 private:
  const std::shared_ptr<Hold> hold_;
  const uint64_t bytes_;
};

Slots::Slots(const ServerContext* server, std::shared_ptr<Channel> channel, Reception* reception,
             std::shared_ptr<const PlacedLink> link, uint32_t number)
    : server_(server),
      channel_(std::move(channel)),
      reception_(reception),
      link_(std::move(link)),
      number_(number) {
  size_t count = 0;
  for (const Offer::Ring& ring : link_->rings) {
    first_slot_.push_back(count);
    count += ring.slots;
  }
  occupied_.resize(count, false);
  returned_.resize(count, 0);
}

Slots::~Slots() {
  rdt_remote_region_unref(credits_);
  rdt_region_close(region_);
}

absl::StatusOr<std::shared_ptr<Slots>> Slots::Create(const ServerContext* server,
                                                     std::shared_ptr<Channel> channel,
                                                     Reception* reception,
                                                     std::shared_ptr<const PlacedLink> link,
                                                     uint32_t number) {
  std::shared_ptr<Slots> slots(
      new Slots(server, std::move(channel), reception, std::move(link), number));
  rdt_region_info info{};
  if (rdt_region_alloc_for(slots->channel_->handle(), slots->link_->bytes, RDT_ACCESS_WRITE,
                           &slots->region_) != RDT_OK ||
      rdt_region_get_info(slots->region_, &info) != RDT_OK) {
    return absl::ResourceExhaustedError(rdt_last_error());
  }
  slots->base_ = static_cast<char*>(info.address);
  slots->region_key_ = info.key;
  slots->reservation_.Hold(slots->link_->bytes);
  return slots;
}

void Slots::SendOffer(Channel* channel) {
  Offer offer;
  offer.graph = link_->graph;
  offer.region_key = region_key_;
  offer.region_size = link_->bytes;
  offer.rings = link_->rings;
  offer.edges.reserve(link_->edges.size());
  for (const PlacedEdge& placed : link_->edges) {
    Offer::Edge edge;
    edge.name = placed.definition->name;
    edge.hash = placed.hash;
    edge.has_shape = !placed.has_static_shape;
    edge.ring = placed.place.ring;
    edge.group = placed.place.group;
    edge.offset = placed.place.offset;
    edge.bytes = placed.place.ring < 0 ? 0 : placed.place.bytes;
    offer.edges.push_back(std::move(edge));
  }
  const std::string bytes = Encode(offer);
  OfferPiece piece;
  piece.total = bytes.size();
  const size_t room = channel->max_notify() - EncodedSize(OfferPiece());
  for (size_t at = 0; at < bytes.size(); at += piece.bytes.size()) {
    piece.bytes = absl::string_view(bytes).substr(at, room);
    // A lost channel takes the offer with it.
    (void)channel->NotifyMessage(PackImmediate(MessageKind::kOffer, number_), piece);
  }
}

void Slots::OnAccept(uint64_t credits_key) {
  accepted_.store(true, std::memory_order_release);
  tsl::Env::Default()->SchedClosure([self = shared_from_this(), channel = channel_, credits_key] {
    self->OpenCredits(channel, credits_key);
  });
}

void Slots::OpenCredits(const std::shared_ptr<Channel>& channel, uint64_t key) {
  rdt_remote_region* credits = nullptr;
  rdt_region_info info{};
  void* mapped = nullptr;
  const uint64_t size = returned_.size() * sizeof(uint64_t);
  // A peer that stands still for a while answers later. If it is lost, the channel ends.
  rdt_status opened = RDT_ERR_DEADLINE;
  for (int tries = 0; tries < kMostTries && opened == RDT_ERR_DEADLINE && channel->IsUp();
       ++tries) {
    if (IsWithdrawn()) break;
    opened = rdt_remote_region_open(channel->handle(), key, server_->settings.connect_timeout_ms,
                                    &credits);
  }
  const bool usable =
      opened == RDT_OK && rdt_remote_region_get_info(credits, &info) == RDT_OK &&
      info.size >= size && (info.access & RDT_ACCESS_WRITE) != 0 &&
      (!channel->can_map() || rdt_remote_region_map(credits, 0, size, &mapped) == RDT_OK);
  if (!usable) {
    rdt_remote_region_unref(credits);
    // The graph may be gone already, so that the sender has freed its credits.
    const bool expected = !channel->IsUp() || IsWithdrawn();
    // Without credits each place could be used only once.
    if (!expected) {
      static Seldom seldom;
      seldom.Warn(
          absl::StrCat("tensorflow: places for tensors from ", link_->source,
                       " cannot be given back, they take the dynamic path: ", rdt_last_error()));
    }
    Withdraw();
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (withdrawn_) {
    lock.unlock();
    rdt_remote_region_unref(credits);
    return;
  }
  credits_ = credits;
  mapped_credits_ = static_cast<std::atomic<uint64_t>*>(mapped);
  for (size_t slot = 0; slot < returned_.size(); ++slot) {
    if (returned_[slot] != 0) NoteCreditLocked(slot);
  }
  lock.unlock();
  WriteCredits();
}

bool Slots::IsWithdrawn() {
  std::lock_guard<std::mutex> lock(mutex_);
  return withdrawn_;
}

void Slots::Return(size_t slot) {
  if (fork_guard_.InChild()) return;  // in the parent the tensor may still be there
  {
    std::lock_guard<std::mutex> lock(mutex_);
    occupied_[slot] = false;
    ++returned_[slot];
    NoteCreditLocked(slot);
  }
  WriteCredits();
}

void Slots::NoteCreditLocked(size_t slot) {
  // The sender may have freed the memory of its credits.
  if (withdrawn_ || credits_ == nullptr) return;
  if (mapped_credits_ != nullptr) {
    mapped_credits_[slot].store(returned_[slot], std::memory_order_release);
    return;
  }
  unwritten_begin_ = std::min(unwritten_begin_, slot);
  unwritten_end_ = std::max(unwritten_end_, slot + 1);
}

bool Slots::TakeUnwrittenLocked(rdt_op* op) {
  if (writing_ || withdrawn_ || unwritten_end_ == 0) return false;
  // The counts are read when they are sent, and later counts are as good.
  op->kind = RDT_OP_WRITE;
  op->local = &returned_[unwritten_begin_];
  op->size = (unwritten_end_ - unwritten_begin_) * sizeof(uint64_t);
  op->remote = credits_;
  op->remote_offset = unwritten_begin_ * sizeof(uint64_t);
  rdt_remote_region_ref(op->remote);
  unwritten_begin_ = SIZE_MAX;
  unwritten_end_ = 0;
  writing_ = true;
  return true;
}

void Slots::WriteCredits() {
  rdt_status status = RDT_OK;
  while (status == RDT_OK) {
    rdt_op op{};
    std::shared_ptr<Channel> channel;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!TakeUnwrittenLocked(&op)) return;
      channel = channel_;
    }
    auto keep = std::make_unique<std::shared_ptr<Slots>>(shared_from_this());
    status = rdt_channel_post(channel->handle(), &op, 1, OnCreditsWritten, keep.get());
    rdt_remote_region_unref(op.remote);
    if (status == RDT_IN_PROGRESS) {
      (void)keep.release();
      return;
    }
    EndWrite();
  }
}

void Slots::OnCreditsWritten(void* context, rdt_status status) {
  const std::unique_ptr<std::shared_ptr<Slots>> kept(static_cast<std::shared_ptr<Slots>*>(context));
  Slots& slots = **kept;
  slots.EndWrite();
  if (status == RDT_OK) slots.WriteCredits();
}

void Slots::EndWrite() {
  std::shared_ptr<Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (std::exchange(withdraw_due_, false)) channel = channel_;
  }
  if (channel != nullptr) (void)channel->Notify(PackImmediate(MessageKind::kWithdraw, number_));
}

std::shared_ptr<Slots::Hold> Slots::Occupy(int32_t ring, uint32_t slot) {
  const Offer::Ring& where = link_->rings[static_cast<size_t>(ring)];
  if (slot >= where.slots) return nullptr;
  const size_t number = first_slot_[static_cast<size_t>(ring)] + slot;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (occupied_[number]) return nullptr;
    occupied_[number] = true;
  }
  return std::make_shared<Hold>(shared_from_this(), number,
                                base_ + where.offset + slot * where.stride);
}

bool Slots::Take(const PlannedMessage& message) {
  return message.flags & PlannedMessage::kGroup ? TakeGroup(message) : TakeSingle(message);
}

bool Slots::TakeGroup(const PlannedMessage& message) {
  if (message.index >= link_->groups.size()) return false;
  const std::vector<uint32_t>& members = link_->groups[message.index];
  const bool checked = message.flags & PlannedMessage::kChecked;
  if (checked && message.checksums.size() != members.size()) return false;
  const int32_t ring = link_->edges[members.front()].place.ring;
  const std::shared_ptr<Hold> hold = Occupy(ring, message.slot);
  if (hold == nullptr) return false;
  std::vector<std::pair<KeyId, Arrival>> arrivals;
  arrivals.reserve(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const PlacedEdge& edge = link_->edges[members[i]];
    if (message.absent >> i & 1) continue;
    Arrival arrival;
    arrival.path = PathOf(edge);
    arrival.is_dead = message.dead >> i & 1;
    if (!arrival.is_dead) {
      tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(
          new Buffer(hold, edge.place.offset, edge.place.bytes));
      arrival = reception_->delivery().ArrivalOf(
          PathOf(edge), Via::kGroupSlot, checked ? Checksum(message.checksums[i]) : std::nullopt,
          Tensor(edge.definition->dtype, edge.shape, std::move(buffer)));
    }
    arrivals.emplace_back(edge.definition->key, std::move(arrival));
  }
  reception_->delivery().DeliverAll(message.step_id, std::move(arrivals));
  return true;
}

bool Slots::TakeSingle(const PlannedMessage& message) {
  if (message.index >= link_->edges.size()) return false;
  const PlacedEdge& edge = link_->edges[message.index];
  if (message.flags & PlannedMessage::kDead) {
    DeliverDead(edge, message);
    return true;
  }
  TensorShape shape;
  uint64_t bytes = 0;
  if (!TakeShape(edge, message, &shape, &bytes)) return false;
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer;
  if (message.flags & PlannedMessage::kLent) {
    if (message.bytes != bytes) return false;
    buffer.reset(
        reception_->Borrow({message.region_key, message.offset, message.bytes, message.lend_id}));
    if (buffer == nullptr) return TakeUnmapped(edge, message, shape);
    CountFetch(Via::kInPlace, bytes);
  } else if (message.flags & PlannedMessage::kInSlot) {
    if (edge.place.ring < 0 || bytes > edge.place.bytes) return false;
    std::shared_ptr<Hold> hold = Occupy(edge.place.ring, message.slot);
    if (hold == nullptr) return false;
    buffer.reset(new Buffer(std::move(hold), edge.place.offset, bytes));
  } else if (bytes != 0) {
    return false;
  } else {
    Arrival arrival;
    arrival.tensor = Tensor(edge.definition->dtype, shape);
    DeliverArrival(edge, message, std::move(arrival));
    return true;
  }
  const Via via = message.flags & PlannedMessage::kLent ? Via::kInPlace : Via::kSlot;
  DeliverBytes(edge, message, via, ChecksumOf(message),
               Tensor(edge.definition->dtype, shape, std::move(buffer)));
  return true;
}

bool Slots::TakeUnmapped(const PlacedEdge& edge, const PlannedMessage& message,
                         const TensorShape& shape) {
  auto fetch = std::make_unique<Fetch>();
  fetch->channel = channel_;
  fetch->step_id = message.step_id;
  fetch->key = SpellKey(edge.definition->key_prefix, {message.frame_id, message.iter_id});
  fetch->dtype = edge.definition->dtype;
  fetch->shape = shape;
  fetch->from = {message.region_key, message.offset, message.bytes, message.lend_id};
  fetch->path = PathOf(edge);
  fetch->checksum = ChecksumOf(message);
  return reception_->Start(std::move(fetch)) != Taken::kMalformed;
}

void Slots::DeliverDead(const PlacedEdge& edge, const PlannedMessage& message) {
  Arrival arrival;
  arrival.is_dead = true;
  DeliverArrival(edge, message, std::move(arrival));
}

void Slots::DeliverArrival(const PlacedEdge& edge, const PlannedMessage& message, Arrival arrival) {
  arrival.path = PathOf(edge);
  reception_->delivery().Deliver(message.step_id,
                                 edge.definition->key.At({message.frame_id, message.iter_id}),
                                 std::move(arrival));
}

void Slots::DeliverBytes(const PlacedEdge& edge, const PlannedMessage& message, Via via,
                         const Checksum& checksum, Tensor tensor) {
  reception_->delivery().DeliverTensor(message.step_id,
                                       edge.definition->key.At({message.frame_id, message.iter_id}),
                                       PathOf(edge), via, checksum, std::move(tensor));
}

void Slots::Withdraw() {
  std::shared_ptr<Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(withdrawn_, true)) return;
    // The sender frees the memory of its credits when it is told. A thread may be about to post this write.
    withdraw_due_ = writing_;
    if (writing_) return;
    channel = channel_;
  }
  (void)channel->Notify(PackImmediate(MessageKind::kWithdraw, number_));
}

void Slots::End() {
  std::shared_ptr<Channel> channel;
  rdt_remote_region* credits = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    withdrawn_ = true;
    channel = std::move(channel_);
    credits = std::exchange(credits_, nullptr);
    mapped_credits_ = nullptr;
  }
  rdt_remote_region_unref(credits);
}

}  // namespace rdmatensor
