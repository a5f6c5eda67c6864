// SPDX-License-Identifier: Apache-2.0
//
// The groups of an accepted offer: tensors that are copied into one slot, and announced together.
#include <string>
#include <utility>

#include "base/spans.h"
#include "send/accepted_offer.h"
#include "stats/checksum.h"
#include "stats/path_stats.h"

namespace rdmatensor {

uint64_t AcceptedOffer::AllOf(const Group& group) {
  return ~uint64_t{0} >> (64 - group.members.size());
}

uint32_t AcceptedOffer::CopyIntoGroup(const Sent& sent, int slot) {
  const Offer::Edge& offered = offer_.edges[sent.index];
  const EdgeDefinition& definition = *sent.edge->definition;
  SendSpan span(definition.name, definition.destination, offered.bytes);
  char* const target = (mapped_places_ != nullptr ? mapped_places_ : staging_base_) +
                       SlotOffset(offered.ring, slot) + offered.offset;
  CopyTraced(target, sent.tensor->data(), offered.bytes, "group");
  span.End(PathName(Path::kStatic));
  if (!server_->settings.checksum) return 0;
  // The checksum is of the original, as in PushTensor.
  return ChecksumToSend(definition.may_change ? target : sent.tensor->data(), offered.bytes);
}

void AcceptedOffer::SendGrouped(const Step& sent_in, absl::Span<Sent> members) {
  const Offer::Edge& offered = offer_.edges[members.front().index];
  Group& group = groups_[static_cast<size_t>(offered.group)];
  const uint64_t all = AllOf(group);
  uint64_t arrived = 0, written = 0;
  for (const Sent& sent : members) arrived |= bits_[sent.index];
  const auto none_went = [&members] {
    for (Sent& sent : members) sent.went = false;
  };
  std::unique_lock<std::mutex> lock(group.mutex);
  // In a step that began earlier some members may have gone another way already.
  if (group.bound != all || sent_in.began <= group.bound_at || sent_in.at.frame_id != 0 ||
      sent_in.at.iter_id != 0) {
    return none_went();
  }
  auto step = group.steps.begin();
  while (step != group.steps.end() && (step->step_id != sent_in.id || step->arrived & arrived)) {
    ++step;
  }
  if (step == group.steps.end()) {
    step = group.steps.emplace(group.steps.end());
    step->step_id = sent_in.id;
    step->slot = Acquire(offered.ring);
    if (server_->settings.checksum) step->checksums.resize(group.members.size());
    open_steps_.fetch_add(1);
  }
  step->arrived |= arrived;
  if (step->slot < 0) {
    CountPlan(PlanEvent::kBusy, members.size());
    if (step->arrived == all) {
      group.steps.erase(step);
      open_steps_.fetch_sub(1);
    }
    return none_went();
  }
  for (Sent& sent : members) {
    const uint64_t bit = bits_[sent.index];
    sent.went =
        sent.went && (sent.is_dead || sent.tensor->TotalBytes() == offer_.edges[sent.index].bytes);
    if (!sent.went) step->absent |= bit;
    if (sent.went && sent.is_dead) step->dead |= bit;
    if (sent.went && !sent.is_dead) written |= bit;
  }
  if (written != 0) {
    ++step->writing;
    const int slot = step->slot;
    absl::InlinedVector<std::pair<int, uint32_t>, 1> checksums;  // by number of the member
    lock.unlock();
    for (const Sent& sent : members) {
      if ((written & bits_[sent.index]) == 0) continue;
      const uint32_t checksum = CopyIntoGroup(sent, slot);
      if (server_->settings.checksum) {
        checksums.emplace_back(__builtin_ctzll(bits_[sent.index]), checksum);
      }
    }
    lock.lock();
    --step->writing;
    for (const auto& [number, checksum] : checksums) {
      step->checksums[static_cast<size_t>(number)] = checksum;
    }
  }
  for (const Sent& sent : members) {
    if (!sent.went) continue;
    CountSent(Path::kStatic, sent.is_dead ? 0 : offer_.edges[sent.index].bytes,
              channel_->traffic());
  }
  if (step->writing == 0 && (step->dropped || step->arrived == all)) {
    FinishGroup(&group, step, offered);
  }
}

// The caller holds the group's lock, so that the steps of one key are announced in order.
void AcceptedOffer::FinishGroup(Group* group, std::list<GroupStep>::iterator step,
                                const Offer::Edge& offered) {
  const uint64_t offset = SlotOffset(offered.ring, step->slot);
  PlannedMessage message;
  message.step_id = step->step_id;
  message.index = static_cast<uint32_t>(offered.group);
  message.flags = PlannedMessage::kGroup | PlannedMessage::kInSlot;
  message.slot = static_cast<uint8_t>(step->slot);
  message.dead = step->dead;
  message.absent = step->absent;
  message.checksums = step->checksums;
  if (!message.checksums.empty()) message.flags |= PlannedMessage::kChecked;
  if (step->dropped) {
    Release(offered.ring, step->slot);
  } else if (staging_base_ != nullptr) {
    std::unique_ptr<Posted> posted;
    WriteAndNotify({}, staging_base_ + offset, group->bytes, offset, message, &posted);
    Post(std::move(posted));
  } else {
    (void)Announce(message);
  }
  if (!step->dropped) {
    CountPlan(PlanEvent::kGroup);
    CountPlan(PlanEvent::kFused, group->members.size());
  }
  group->steps.erase(step);
  open_steps_.fetch_sub(1);
}

void AcceptedOffer::FinishGroups() {
  if (open_steps_.load() == 0) return;
  for (Group& group : groups_) {
    std::lock_guard<std::mutex> lock(group.mutex);
    for (auto each = group.steps.begin(); each != group.steps.end();) {
      const auto step = each++;
      step->absent |= AllOf(group) & ~step->arrived;
      if (step->slot >= 0) {
        FinishGroup(&group, step, offer_.edges[group.members.front()]);
      } else {
        group.steps.erase(step);
        open_steps_.fetch_sub(1);
      }
    }
  }
}

void AcceptedOffer::DropStep(int64_t step_id) {
  if (open_steps_.load() == 0) return;
  for (Group& group : groups_) {
    std::lock_guard<std::mutex> lock(group.mutex);
    for (auto each = group.steps.begin(); each != group.steps.end();) {
      const auto step = each++;
      if (step->step_id != step_id) continue;
      if (step->slot >= 0 && step->writing > 0) {
        step->dropped = true;
        continue;
      }
      if (step->slot >= 0) Release(offer_.edges[group.members.front()].ring, step->slot);
      group.steps.erase(step);
      open_steps_.fetch_sub(1);
    }
  }
}

}  // namespace rdmatensor
