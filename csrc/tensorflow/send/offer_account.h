// SPDX-License-Identifier: Apache-2.0
//
// Accounts for the resources that all offers of one peer together make this task hold, and limits them.
#ifndef RDMATENSOR_TENSORFLOW_SEND_OFFER_ACCOUNT_H_
#define RDMATENSOR_TENSORFLOW_SEND_OFFER_ACCOUNT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace rdmatensor {

struct OfferCosts {
  uint64_t described = 0;  // bytes of the offers themselves
  uint64_t slots = 0;      // each with a credit
  uint64_t staged = 0;     // bytes of memory to write from
};

// Thread-safe. Made by make_shared; reservations keep it.
class OfferAccount : public std::enable_shared_from_this<OfferAccount> {
 public:
  // Adds `costs` until the last copy of the result is destroyed. nullptr if a sum would exceed its limit.
  std::shared_ptr<const void> Reserve(const OfferCosts& costs, const OfferCosts& limits) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!Fits(held_.described, costs.described, limits.described) ||
        !Fits(held_.slots, costs.slots, limits.slots) ||
        !Fits(held_.staged, costs.staged, limits.staged)) {
      return nullptr;
    }
    auto reservation = std::make_shared<Reservation>(shared_from_this(), costs);
    held_.described += costs.described;
    held_.slots += costs.slots;
    held_.staged += costs.staged;
    return reservation;
  }

 private:
  struct Reservation {
    Reservation(std::shared_ptr<OfferAccount> account, const OfferCosts& costs)
        : account(std::move(account)), costs(costs) {}
    ~Reservation() {
      std::lock_guard<std::mutex> lock(account->mutex_);
      account->held_.described -= costs.described;
      account->held_.slots -= costs.slots;
      account->held_.staged -= costs.staged;
    }
    const std::shared_ptr<OfferAccount> account;
    const OfferCosts costs;
  };

  static bool Fits(uint64_t held, uint64_t more, uint64_t limit) {
    return more == 0 || (held <= limit && more <= limit - held);
  }

  std::mutex mutex_;
  OfferCosts held_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_OFFER_ACCOUNT_H_
