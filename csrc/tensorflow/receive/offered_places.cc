// SPDX-License-Identifier: Apache-2.0
#include "receive/offered_places.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/seldom.h"
#include "receive/budget.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// Limits the offers of a peer. No real receiver has as many graphs.
constexpr size_t kMaxOffers = 1u << 16;

}  // namespace

absl::StatusOr<std::shared_ptr<Slots>> PlannedTensors::MakeOffer(
    std::shared_ptr<const PlacedLink> link) {
  uint32_t number = 0;
  const uint64_t budget = BudgetOf(*host_);
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
      Slots::Create(host_, channel_->shared_from_this(), reception_, std::move(link), number);
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

std::shared_ptr<Slots> PlannedTensors::FindSlots(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = slots_.find(number);
  return found == slots_.end() ? nullptr : found->second;
}

bool PlannedTensors::Handle(MessageKind kind, uint64_t number, const char* data, size_t size) {
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
    case MessageKind::kOffer:
      return TakePiece(number, data, size);
    case MessageKind::kWithdraw: {
      std::shared_ptr<AcceptedOffer> accepted;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = accepted_.find(number);
        if (found == accepted_.end()) {
          auto opening = opening_.find(number);
          // If it is in neither map, it could not be opened, and the peer is about to learn that.
          if (opening == opening_.end()) return number < offered_;
          opening->second = true;
          return true;
        }
        accepted = std::move(found->second);
        accepted_.erase(found);
      }
      accepted->Close();
      return true;
    }
    default:
      return false;
  }
}

bool PlannedTensors::TakePiece(uint64_t number, const char* data, size_t size) {
  OfferPiece piece;
  if (number > UINT32_MAX || !Parse(data, size, &piece)) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string& whole = pieces_[number];
    whole.append(piece.bytes.data(), piece.bytes.size());
    piece_bytes_ += piece.bytes.size();
    if (whole.size() > piece.total || piece_bytes_ > kMaxOfferBytes ||
        pieces_.size() + opening_.size() + accepted_.size() > kMaxOffers ||
        accepted_.contains(number) || opening_.contains(number)) {
      return false;
    }
    if (whole.size() < piece.total) return true;
    piece_bytes_ -= whole.size();
    Incoming incoming{static_cast<uint32_t>(number), {}, nullptr};
    incoming.claim = account_->Claim({whole.size(), 0, 0}, {kMaxOfferBytes, 0, 0});
    if (incoming.claim != nullptr) incoming.encoded = std::move(whole);
    pieces_.erase(number);
    opening_[number] = false;
    offered_ = std::max(offered_, number + 1);
    to_open_.push_back(std::move(incoming));
    if (std::exchange(opener_runs_, true)) return true;
  }
  tsl::Env::Default()->SchedClosure([this, keep = channel_->shared_from_this()] { OpenAll(); });
  return true;
}

void PlannedTensors::OpenAll() {
  for (;;) {
    Incoming next;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (down_ || channel_->refused) to_open_.clear();
      opener_runs_ = !to_open_.empty();
      if (!opener_runs_) return;
      next = std::move(to_open_.front());
      to_open_.pop_front();
    }
    Open(std::move(next));
  }
}

void PlannedTensors::Open(Incoming incoming) {
  const uint32_t number = incoming.number;
  Offer offer;
  // It is parsed here, because a long offer would delay the progress thread.
  if (incoming.claim != nullptr && !Parse(incoming.encoded, &offer)) {
    channel_->RefuseMalformed();
    return;
  }
  std::string().swap(incoming.encoded);
  uint64_t slots = 0;
  for (const Offer::Ring& ring : offer.rings) slots += ring.slots;
  std::shared_ptr<const void> places = account_->Claim({0, slots, 0}, {0, kMaxAllSlots, 0});
  const bool admitted = incoming.claim != nullptr && places != nullptr;
  if (!admitted) offer = Offer();
  using Claims = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  auto accepted = std::make_shared<AcceptedOffer>(
      host_, channel_->shared_from_this(), number, std::move(offer),
      std::make_shared<Claims>(std::move(incoming.claim), std::move(places)));
  const absl::Status opened = admitted
                                  ? accepted->Open(account_.get())
                                  : absl::ResourceExhaustedError(absl::StrCat(
                                        "its offers are together longer than ", kMaxOfferBytes,
                                        " bytes, or have more than ", kMaxAllSlots, " places"));
  if (!opened.ok()) {
    static Seldom seldom;
    seldom.Warn(absl::StrCat(
        "tensorflow: the places that ", channel_->peer_name(),
        " offers cannot be used, its tensors take the dynamic path: ", opened.message()));
  }
  bool withdrawn = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    withdrawn = opening_[number] || down_ || retired_ || !opened.ok();
    opening_.erase(number);
    if (!withdrawn) accepted_[number] = accepted;
    any_accepted_.store(!accepted_.empty(), std::memory_order_release);
  }
  if (withdrawn) {
    accepted->Close();
  } else {
    bind_(accepted);
  }
}

std::vector<std::shared_ptr<AcceptedOffer>> PlannedTensors::AllAccepted() {
  std::vector<std::shared_ptr<AcceptedOffer>> all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : accepted_) all.push_back(entry.second);
  return all;
}

void PlannedTensors::BindAll() {
  for (const std::shared_ptr<AcceptedOffer>& accepted : AllAccepted()) bind_(accepted);
}

void PlannedTensors::DropStep(int64_t step_id) {
  if (!any_accepted_.load(std::memory_order_acquire)) return;
  for (const std::shared_ptr<AcceptedOffer>& accepted : AllAccepted()) accepted->DropStep(step_id);
}

void PlannedTensors::Retire() {
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

void PlannedTensors::Resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_ = false;
}

bool PlannedTensors::IsQuiet() {
  std::lock_guard<std::mutex> lock(mutex_);
  return slots_.empty();
}

void PlannedTensors::OnDown() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slots>> slots;
  absl::flat_hash_map<uint64_t, std::shared_ptr<AcceptedOffer>> accepted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down_ = true;
    slots.swap(slots_);
    accepted.swap(accepted_);
  }
  for (const auto& entry : accepted) entry.second->Close();
  for (const auto& entry : slots) entry.second->End();
}

}  // namespace rdmatensor
