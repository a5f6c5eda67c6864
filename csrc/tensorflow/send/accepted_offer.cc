// SPDX-License-Identifier: Apache-2.0
#include "send/accepted_offer.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/spans.h"
#include "channel/budget.h"
#include "channel/message.h"
#include "memory/arena.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"

namespace rdmatensor {
namespace {

// The core copies less than this by itself; more it would have to register for one operation.
constexpr uint64_t kCopiedByCore = 16 * 1024;
// A receiver may be slow to answer. Places that are not open after these attempts are never used.
constexpr int kOpenTries = 5;

Path PathOf(const Offer::Edge& edge) { return edge.has_shape ? Path::kBounded : Path::kStatic; }

}  // namespace

AcceptedOffer::AcceptedOffer(const ServerContext* server, std::shared_ptr<Channel> channel,
                             uint32_t number, Offer offer, std::shared_ptr<const void> reservation)
    : server_(server),
      channel_(std::move(channel)),
      number_(number),
      offer_(std::move(offer)),
      reservation_(std::move(reservation)),
      rings_(offer_.rings.size()),
      bound_(offer_.edges.size()) {
  size_t slots = 0;
  for (size_t i = 0; i < rings_.size(); ++i) {
    rings_[i].first = slots;
    slots += offer_.rings[i].slots;
  }
  used_.resize(slots, 0);
  int32_t groups = 0;
  for (const Offer::Edge& edge : offer_.edges) groups = std::max(groups, edge.group + 1);
  groups_ = std::vector<Group>(static_cast<size_t>(groups));
  bits_.resize(offer_.edges.size(), 0);
  for (uint32_t i = 0; i < offer_.edges.size(); ++i) {
    const Offer::Edge& edge = offer_.edges[i];
    index_of_.emplace(edge.name, i);
    if (edge.group < 0) continue;
    Group& group = groups_[static_cast<size_t>(edge.group)];
    // Open refuses groups with more members than bits.
    bits_[i] = uint64_t{1} << group.members.size() % kMaxGroupMembers;
    group.members.push_back(i);
    group.bytes = std::max(group.bytes, edge.offset + edge.bytes);
  }
}

AcceptedOffer::~AcceptedOffer() {
  rdt_remote_region_unref(places_);
  rdt_region_close(credits_);
  rdt_region_close(staging_);
}

absl::Status AcceptedOffer::Open(OfferAccount* account) {
  rdt_region_info places{}, credits{}, staging{};
  uint64_t staged = 0;
  for (const Group& group : groups_) {
    if (group.members.empty() || group.members.size() > kMaxGroupMembers) {
      return absl::InvalidArgumentError("the offer has an impossible group");
    }
    const int32_t number = offer_.edges[group.members.front()].ring;
    for (uint32_t member : group.members) {
      if (offer_.edges[member].ring != number) {
        return absl::InvalidArgumentError("the offer has a group in several rings");
      }
    }
    const Offer::Ring& ring = offer_.rings[static_cast<size_t>(number)];
    staged = std::max(staged, ring.offset + ring.stride * ring.slots);
  }
  if (channel_->can_map()) staged = 0;
  rdt_status opened = RDT_ERR_DEADLINE;
  for (int i = 0; i < kOpenTries && opened == RDT_ERR_DEADLINE && channel_->IsUp(); ++i) {
    opened = rdt_remote_region_open(channel_->handle(), offer_.region_key,
                                    server_->settings.connect_timeout_ms, &places_);
  }
  if (opened != RDT_OK || rdt_remote_region_get_info(places_, &places) != RDT_OK) {
    return absl::UnavailableError(rdt_last_error());
  }
  // This is checked before memory is allocated for the offer.
  if (places.size < offer_.region_size || (places.access & RDT_ACCESS_WRITE) == 0) {
    return absl::InvalidArgumentError("the offered region is not what the offer says");
  }
  if (staged != 0) {
    // This limit equals what the task would hold for its own places.
    const uint64_t budget = BudgetOf(*server_);
    staging_reservation_ = account->Reserve({0, 0, staged}, {0, 0, budget});
    if (staging_reservation_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("its offers together need more memory to write from than ", budget,
                       " bytes, RDMATENSOR_PLAN_LIMIT (0: RDMATENSOR_ARENA_LIMIT)"));
    }
  }
  if (rdt_region_alloc_for(channel_->handle(), std::max<size_t>(1, used_.size()) * sizeof(uint64_t),
                           RDT_ACCESS_WRITE, &credits_) != RDT_OK ||
      rdt_region_get_info(credits_, &credits) != RDT_OK ||
      (staged != 0 &&
       (rdt_region_alloc_for(channel_->handle(), staged, RDT_ACCESS_WRITE, &staging_) != RDT_OK ||
        rdt_region_get_info(staging_, &staging) != RDT_OK))) {
    return absl::UnavailableError(rdt_last_error());
  }
  void* mapped = nullptr;
  if (channel_->can_map() &&
      rdt_remote_region_map(places_, 0, offer_.region_size, &mapped) != RDT_OK) {
    return absl::UnavailableError(rdt_last_error());
  }
  mapped_places_ = static_cast<char*>(mapped);
  returned_ = static_cast<std::atomic<uint64_t>*>(credits.address);
  staging_base_ = static_cast<char*>(staging.address);
  AcceptMessage message;
  message.credits_key = credits.key;
  return channel_->NotifyMessage(PackImmediate(MessageKind::kAccept, number_), message);
}

void AcceptedOffer::Bind(const std::shared_ptr<OutEdge>& edge,
                         const std::shared_ptr<PushGate>& gate) {
  auto found = index_of_.find(edge->definition->name);
  if (found == index_of_.end()) return;
  const uint32_t index = found->second;
  if (offer_.edges[index].hash != edge->hash) {
    WarnMismatch(edge->definition->name);
    return;
  }
  std::shared_ptr<AcceptedOffer> replaced;  // freed after the locks
  std::lock_guard<std::mutex> lock(bound_mutex_);
  if (use_gate_.is_closed() || bound_[index].lock() == edge) return;
  bound_[index] = edge;
  {
    std::lock_guard<std::mutex> edge_lock(edge->mutex);
    replaced = std::exchange(edge->accepted, shared_from_this());
    edge->gate = gate;
    edge->index = index;
  }
  const int32_t number = offer_.edges[index].group;
  if (number < 0) return;
  // Only from now on does the edge come this way in every step that begins.
  Group& group = groups_[static_cast<size_t>(number)];
  std::lock_guard<std::mutex> group_lock(group.mutex);
  group.bound |= bits_[index];
  group.bound_at = Moment();
}

void AcceptedOffer::WarnMismatch(const std::string& edge) {
  CountPlan(PlanEvent::kMismatch);
  if (warned_.exchange(true)) return;
  rdt_log_line(RDT_LOG_WARN,
               absl::StrCat("tensorflow: ", channel_->peer_name(), " expects tensor ", edge,
                            " with another type or shape than it has here; such tensors take the "
                            "dynamic path (do both tasks run the same version of the program?)")
                   .c_str());
}

void AcceptedOffer::Close() {
  std::vector<std::weak_ptr<OutEdge>> bound;
  {
    std::lock_guard<std::mutex> lock(bound_mutex_);
    use_gate_.Close();
    bound.swap(bound_);
  }
  for (const std::weak_ptr<OutEdge>& each : bound) {
    const std::shared_ptr<OutEdge> edge = each.lock();
    if (edge == nullptr) continue;
    std::shared_ptr<AcceptedOffer> dropped;
    std::lock_guard<std::mutex> lock(edge->mutex);
    if (edge->accepted.get() == this) dropped = std::move(edge->accepted);
  }
  if (use_gate_.is_over()) Finish();
}

bool AcceptedOffer::Enter() {
  if (fork_guard_.InChild()) return false;  // the places are the parent's
  if (use_gate_.Enter()) return true;
  Leave();
  return false;
}

void AcceptedOffer::Leave() {
  if (use_gate_.Leave()) Finish();
}

void AcceptedOffer::Finish() {
  if (finished_.exchange(true)) return;
  FinishGroups();
  (void)channel_->Notify(PackImmediate(MessageKind::kWithdrawn, number_));
}

int AcceptedOffer::Acquire(int32_t number) {
  Ring& ring = rings_[static_cast<size_t>(number)];
  const uint32_t slots = offer_.rings[static_cast<size_t>(number)].slots;
  std::lock_guard<std::mutex> lock(ring.mutex);
  for (uint32_t tried = 0; tried < slots; ++tried) {
    const uint32_t slot = ring.next;
    ring.next = slot + 1 == slots ? 0 : slot + 1;
    // The receiver's last touch of the slot happened before it counted it as returned.
    if (returned_[ring.first + slot].load(std::memory_order_acquire) != used_[ring.first + slot]) {
      continue;
    }
    ++used_[ring.first + slot];
    return static_cast<int>(slot);
  }
  return -1;
}

void AcceptedOffer::Release(int32_t number, int slot) {
  Ring& ring = rings_[static_cast<size_t>(number)];
  std::lock_guard<std::mutex> lock(ring.mutex);
  --used_[ring.first + static_cast<size_t>(slot)];
}

uint64_t AcceptedOffer::SlotOffset(int32_t number, int slot) const {
  const Offer::Ring& ring = offer_.rings[static_cast<size_t>(number)];
  return ring.offset + static_cast<uint64_t>(slot) * ring.stride;
}

void AcceptedOffer::Send(const Step& step, absl::Span<Sent> all) {
  for (Sent& sent : all) {
    sent.went = step.may_push;
    // A client may feed another shape than the graph promises.
    if (sent.went && !sent.is_dead &&
        !sent.edge->definition->shape.IsCompatibleWith(sent.tensor->shape())) {
      CountPlan(PlanEvent::kUnfit);
      sent.went = false;
    }
  }
  const bool entered = Enter();
  std::unique_ptr<Posted> posted;
  for (size_t at = 0; at < all.size();) {
    const int32_t group = offer_.edges[all[at].index].group;
    size_t end = at + 1;
    while (group >= 0 && end < all.size() && offer_.edges[all[end].index].group == group) ++end;
    const absl::Span<Sent> members = all.subspan(at, end - at);
    at = end;
    if (!entered) {
      for (Sent& sent : members) sent.went = false;
    } else if (group >= 0) {
      SendGrouped(step, members);
    } else if (members.front().went) {
      Sent& sent = members.front();
      SendSpan span(sent.edge->definition->name, sent.edge->definition->destination,
                    sent.is_dead ? 0 : sent.tensor->TotalBytes());
      sent.went = SendSingle(step, sent, &posted);
      span.End(sent.went ? PathName(PathOf(offer_.edges[sent.index])) : "none");
    }
  }
  if (posted != nullptr) Post(std::move(posted));
  if (entered) Leave();
}

bool AcceptedOffer::Lend(const OutEdge& edge, const tensorflow::Tensor& tensor,
                         PlannedMessage* message) {
  if (!channel_->can_map() || tensor.TotalBytes() <= server_->settings.plan_copy_bytes ||
      edge.definition->may_change || server_->settings.copy_sent) {
    return false;
  }
  const bool in_arena = reinterpret_cast<uintptr_t>(tensor.data()) % EIGEN_MAX_ALIGN_BYTES == 0 &&
                        server_->exports->Locate(channel_->handle(), tensor.data(),
                                                 &message->region_key, &message->offset);
  if (!in_arena || !channel_->lender().Lend(tensor, &message->lend_id)) return false;
  message->flags |= PlannedMessage::kLent;
  message->bytes = tensor.TotalBytes();
  return true;
}

bool AcceptedOffer::SendSingle(const Step& step, const Sent& sent,
                               std::unique_ptr<Posted>* posted) {
  const OutEdge& edge = *sent.edge;
  const Offer::Edge& offered = offer_.edges[sent.index];
  const Path path = PathOf(offered);
  PlannedMessage message;
  message.step_id = step.id;
  message.index = sent.index;
  message.frame_id = step.at.frame_id;
  message.iter_id = step.at.iter_id;
  if (step.at.frame_id != 0 || step.at.iter_id != 0) message.flags |= PlannedMessage::kInLoop;
  const tensorflow::Tensor& tensor = *sent.tensor;
  const uint64_t bytes = sent.is_dead ? 0 : tensor.TotalBytes();
  if (sent.is_dead) {
    message.flags |= PlannedMessage::kDead;
  } else if (offered.has_shape) {
    message.flags |= PlannedMessage::kShaped;
    for (int i = 0; i < tensor.dims(); ++i) message.dims.push_back(tensor.dim_size(i));
  }
  if (bytes == 0) {
    CountSent(path, 0, channel_->traffic());
    (void)Announce(message);
    return true;
  }
  if (Lend(edge, tensor, &message)) {
    AddChecksum(tensor.data(), bytes, &message);
    CountSent(path, bytes, channel_->traffic());
    if (!Announce(message)) channel_->lender().Release(message.lend_id);
    return true;
  }
  if (bytes > offered.bytes) {
    CountPlan(PlanEvent::kUnfit);
    return false;
  }
  const int slot = Acquire(offered.ring);
  if (slot < 0) {
    CountPlan(PlanEvent::kBusy);
    return false;
  }
  tensorflow::Tensor source = tensor;
  if (!MakeSendable(edge.definition->may_change, &source)) {
    Release(offered.ring, slot);
    return false;
  }
  message.flags |= PlannedMessage::kInSlot;
  message.slot = static_cast<uint8_t>(slot);
  CountSent(path, bytes, channel_->traffic());
  const void* data = source.data();
  AddChecksum(data, bytes, &message);
  WriteAndNotify(std::move(source), data, bytes, SlotOffset(offered.ring, slot) + offered.offset,
                 message, posted);
  return true;
}

void AcceptedOffer::AddChecksum(const void* data, uint64_t bytes, PlannedMessage* message) const {
  if (!server_->settings.checksum) return;
  message->flags |= PlannedMessage::kChecked;
  message->checksums.push_back(ChecksumToSend(data, bytes));
}

bool AcceptedOffer::MakeSendable(bool may_change, tensorflow::Tensor* source) const {
  uint64_t region_key = 0, offset = 0;
  const uint64_t bytes = source->TotalBytes();
  // A tensor that is copied at once may change afterwards, but not between checksum and copy.
  if (channel_->can_map() && !(may_change && server_->settings.checksum)) return true;
  if (!channel_->can_map() && bytes <= kCopiedByCore && !may_change) return true;
  const ArenaExports& exports = *server_->exports;
  const bool in_arena = exports.Locate(channel_->handle(), source->data(), &region_key, &offset);
  if (in_arena && !may_change && !server_->settings.copy_sent) return true;
  tensorflow::Tensor copy(Arena::Get()->allocator(), source->dtype(), source->shape());
  if (!copy.IsInitialized() ||
      !exports.Locate(channel_->handle(), copy.data(), &region_key, &offset)) {
    return false;
  }
  CopyTraced(copy.data(), source->data(), bytes, "bounce");
  CountPlan(PlanEvent::kCopied);
  *source = std::move(copy);
  return true;
}

void AcceptedOffer::WriteAndNotify(tensorflow::Tensor source, const void* data, uint64_t bytes,
                                   uint64_t offset, const PlannedMessage& message,
                                   std::unique_ptr<Posted>* posted) {
  if (mapped_places_ != nullptr) {
    CopyTraced(mapped_places_ + offset, data, bytes, "place");
    (void)Announce(message);
    return;
  }
  if (*posted == nullptr) *posted = std::make_unique<Posted>();
  std::string& encoded = (*posted)->messages.emplace_back(EncodedSize(message), '\0');
  Encode(message, &encoded[0]);
  rdt_op write{}, notify{};
  write.kind = RDT_OP_WRITE;
  write.local = const_cast<void*>(data);
  write.size = bytes;
  write.remote = places_;
  write.remote_offset = offset;
  notify.kind = RDT_OP_NOTIFY;
  notify.local = &encoded[0];
  notify.size = encoded.size();
  notify.immediate = PackImmediate(MessageKind::kPlanned, number_);
  (*posted)->ops.push_back(write);
  (*posted)->ops.push_back(notify);
  (*posted)->sources.push_back(std::move(source));
}

void AcceptedOffer::Post(std::unique_ptr<Posted> posted) {
  posted->accepted = shared_from_this();
  use_gate_.EnterAgain();
  const auto done = [](void* context, rdt_status ended) {
    const std::unique_ptr<Posted> kept(static_cast<Posted*>(context));
    if (ended < RDT_OK) kept->accepted->channel_->Close();  // see Announce
    kept->accepted->Leave();
  };
  // All may be done, and what was posted be gone, before the call returns.
  const std::vector<rdt_op> ops = std::move(posted->ops);
  Posted* const raw = posted.release();
  const rdt_status status = rdt_channel_post(channel_->handle(), ops.data(), ops.size(), done, raw);
  if (status != RDT_IN_PROGRESS) done(raw, status);
}

// Sending never fails, as in stock TensorFlow. If a tensor cannot be announced, the channel ends, which fails
// the receiver's step.
bool AcceptedOffer::Announce(const PlannedMessage& message) {
  const uint64_t immediate = PackImmediate(MessageKind::kPlanned, number_);
  if (channel_->NotifyMessage(immediate, message).ok()) return true;
  channel_->Close();
  return false;
}

}  // namespace rdmatensor
