// SPDX-License-Identifier: Apache-2.0
#include "send/accepted_offers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/seldom.h"
#include "channel/plan_message.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

// Limits the offers of a peer. No real receiver has as many graphs.
constexpr size_t kMaxOffers = 1u << 16;

}  // namespace

bool AcceptedOffers::TakePiece(uint64_t number, const char* data, size_t size) {
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
    incoming.reservation = account_->Reserve({whole.size(), 0, 0}, {kMaxOfferBytes, 0, 0});
    if (incoming.reservation != nullptr) incoming.encoded = std::move(whole);
    pieces_.erase(number);
    opening_[number] = false;
    offered_ = std::max(offered_, number + 1);
    to_open_.push_back(std::move(incoming));
    if (std::exchange(opener_runs_, true)) return true;
  }
  tsl::Env::Default()->SchedClosure([this, keep = channel_->shared_from_this()] { OpenAll(); });
  return true;
}

bool AcceptedOffers::Withdraw(uint64_t number) {
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

void AcceptedOffers::OpenAll() {
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

void AcceptedOffers::Open(Incoming incoming) {
  const uint32_t number = incoming.number;
  Offer offer;
  // It is parsed here, because a long offer would delay the progress thread.
  if (incoming.reservation != nullptr && !Parse(incoming.encoded, &offer)) {
    channel_->RefuseMalformed();
    return;
  }
  std::string().swap(incoming.encoded);
  uint64_t slots = 0;
  for (const Offer::Ring& ring : offer.rings) slots += ring.slots;
  std::shared_ptr<const void> places = account_->Reserve({0, slots, 0}, {0, kMaxAllSlots, 0});
  const bool admitted = incoming.reservation != nullptr && places != nullptr;
  if (!admitted) offer = Offer();
  using Reservations = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  auto accepted = std::make_shared<AcceptedOffer>(
      server_, channel_->shared_from_this(), number, std::move(offer),
      std::make_shared<Reservations>(std::move(incoming.reservation), std::move(places)));
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

std::vector<std::shared_ptr<AcceptedOffer>> AcceptedOffers::All() {
  std::vector<std::shared_ptr<AcceptedOffer>> all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : accepted_) all.push_back(entry.second);
  return all;
}

void AcceptedOffers::BindAll() {
  for (const std::shared_ptr<AcceptedOffer>& accepted : All()) bind_(accepted);
}

void AcceptedOffers::DropStep(int64_t step_id) {
  if (!any_accepted_.load(std::memory_order_acquire)) return;
  for (const std::shared_ptr<AcceptedOffer>& accepted : All()) accepted->DropStep(step_id);
}

void AcceptedOffers::Retire() {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_ = true;
}

void AcceptedOffers::Resume() {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_ = false;
}

void AcceptedOffers::OnDown() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<AcceptedOffer>> accepted;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    down_ = true;
    accepted.swap(accepted_);
  }
  for (const auto& entry : accepted) entry.second->Close();
}

}  // namespace rdmatensor
