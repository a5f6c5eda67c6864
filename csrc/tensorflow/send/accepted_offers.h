// SPDX-License-Identifier: Apache-2.0
//
// The offers of places that came over one channel: those that are being opened, and those in use.
#ifndef RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFERS_H_
#define RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/channel.h"
#include "channel/server_context.h"
#include "send/accepted_offer.h"
#include "send/offer_account.h"

namespace rdmatensor {

// Thread-safe. Belongs to a channel.
class AcceptedOffers {
 public:
  // `bind` is given each offer of the peer once it is open.
  using Bind = std::function<void(const std::shared_ptr<AcceptedOffer>&)>;
  AcceptedOffers(const ServerContext* server, Channel* channel, Bind bind)
      : server_(server), channel_(channel), bind_(std::move(bind)) {}

  // A piece of offer `number`. False: the peer broke the protocol. Progress thread.
  bool TakePiece(uint64_t number, const char* data, size_t size);
  // The peer withdraws offer `number`. False: it broke the protocol. Progress thread.
  bool Withdraw(uint64_t number);

  // Binds all offers again, because the channel serves another name.
  void BindAll();
  // Drops what a step that is over still holds.
  void DropStep(int64_t step_id);
  // Another channel is about to replace this one: accepts none of the offers that are on their way.
  void Retire();
  // The channel stays.
  void Resume();
  // Ends the use of all offers, because the channel is down.
  void OnDown();

 private:
  struct Incoming {
    uint32_t number;
    std::string encoded;  // empty without a reservation
    std::shared_ptr<const void>
        reservation;  // to its length; nullptr: the peer has offered too much
  };
  // Opens what waits in `to_open_`, on a thread that may block.
  void OpenAll();
  void Open(Incoming incoming);
  std::vector<std::shared_ptr<AcceptedOffer>> All();

  const ServerContext* const server_;
  Channel* const channel_;
  const Bind bind_;
  const std::shared_ptr<OfferAccount> account_ = std::make_shared<OfferAccount>();
  std::mutex mutex_;
  bool down_ = false, retired_ = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<AcceptedOffer>> accepted_;
  absl::flat_hash_map<uint64_t, std::string> pieces_;  // of offers that are not whole
  uint64_t piece_bytes_ = 0;
  absl::flat_hash_map<uint64_t, bool> opening_;  // true: withdrawn meanwhile
  std::deque<Incoming> to_open_;
  bool opener_runs_ = false;
  uint64_t offered_ = 0;  // above the number of every offer
  std::atomic<bool> any_accepted_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_ACCEPTED_OFFERS_H_
