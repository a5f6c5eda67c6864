// SPDX-License-Identifier: Apache-2.0
#include "receive/offered_places.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/budget.h"

namespace rdmatensor {

absl::StatusOr<std::shared_ptr<Slots>> OfferedPlaces::MakeOffer(
    std::shared_ptr<const PlacedLink> link) {
  uint32_t number = 0;
  const uint64_t budget = BudgetOf(*server_);
  if (link->bytes > budget) {
    return absl::ResourceExhaustedError(
        absl::StrCat(budget, " are left of RDMATENSOR_PLAN_LIMIT (0: RDMATENSOR_ARENA_LIMIT)"));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (down_) return absl::UnavailableError("the channel is down");
    if (retired_) return absl::UnavailableError("another channel replaces this one");
    number = next_number_++;
  }
  absl::StatusOr<std::shared_ptr<Slots>> slots =
      Slots::Create(server_, channel_->shared_from_this(), reception_, std::move(link), number);
  if (!slots.ok()) return slots;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (down_) return absl::UnavailableError("the channel is down");
    slots_[number] = *slots;
    unsent_.insert(number);
  }
  (*slots)->SendOffer(channel_);
  bool retired = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    unsent_.erase(number);
    retired = retired_;
  }
  if (retired) (*slots)->Withdraw();
  return slots;
}

std::shared_ptr<Slots> OfferedPlaces::FindSlots(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(number);
  return found == slots_.end() ? nullptr : found->second;
}

bool OfferedPlaces::Handle(MessageKind kind, uint64_t number, const char* data, size_t size) {
  switch (kind) {
    case MessageKind::kPlanned: {
      PlannedMessage message;
      const std::shared_ptr<Slots> slots = FindSlots(number);
      return slots != nullptr && Parse(data, size, &message) && slots->Take(message);
    }
    case MessageKind::kAccept: {
      AcceptMessage message;
      const std::shared_ptr<Slots> slots = FindSlots(number);
      if (slots == nullptr || slots->accepted() || !Parse(data, size, &message)) return false;
      slots->OnAccept(message.credits_key);
      return true;
    }
    case MessageKind::kWithdrawn: {
      std::shared_ptr<Slots> dropped;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = slots_.find(number);
        if (found == slots_.end()) return false;
        dropped = std::move(found->second);
        slots_.erase(found);
      }
      dropped->End();
      return true;
    }
    default:
      return false;
  }
}

void OfferedPlaces::Retire() {
  std::vector<std::shared_ptr<Slots>> offered;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    retired_ = true;
    for (const auto& [number, slots] : slots_) {
      if (!unsent_.contains(number)) offered.push_back(slots);
    }
  }
  for (const std::shared_ptr<Slots>& slots : offered) slots->Withdraw();
}

void OfferedPlaces::Resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_ = false;
}

bool OfferedPlaces::IsQuiet() {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_.empty();
}

void OfferedPlaces::OnDown() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slots>> slots;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down_ = true;
    slots.swap(slots_);
  }
  for (const auto& entry : slots) entry.second->End();
}

}  // namespace rdmatensor
