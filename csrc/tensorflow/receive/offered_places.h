// SPDX-License-Identifier: Apache-2.0
//
// The planned tensors of one channel: the offers made over it, and what became of them.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "channel/message.h"
#include "channel/plan_message.h"
#include "receive/slots.h"
#include "send/accepted_offer.h"
#include "send/offer_account.h"

namespace rdmatensor {

// Thread-safe. Belongs to a channel.
class PlannedTensors {
 public:
  // `bind` is given each offer of the peer once it is open.
  using Bind = std::function<void(const std::shared_ptr<AcceptedOffer>&)>;
  PlannedTensors(const Host* host, Channel* channel, Reception* reception, Bind bind)
      : host_(host), channel_(channel), reception_(reception), bind_(std::move(bind)) {}

  // Receiver: gives the link's edges places and offers them. Blocks while memory is registered.
  absl::StatusOr<std::shared_ptr<Slots>> MakeOffer(std::shared_ptr<const PlacedLink> link);

  // A message from the peer about offer `number`. False: it broke the protocol. Progress thread.
  bool Handle(MessageKind kind, uint64_t number, const char* data, size_t size);

  // Sender: binds all offers again, because the channel serves another name.
  void BindAll();
  // Sender: drops what a step that is over still holds.
  void DropStep(int64_t step_id);
  // Another channel is about to replace this one. Receiver: withdraws all offers, and makes no more. Sender: accepts
  // none that are on their way.
  void Retire();
  // The channel stays.
  void Resume();
  // Receiver: no offer is in force.
  bool IsQuiet();
  // Ends everything, on both sides, because the channel is down.
  void OnDown();

 private:
  std::shared_ptr<Slots> FindSlots(uint64_t number);
  bool TakePiece(uint64_t number, const char* data, size_t size);
  // Opens what waits in `to_open_`, on a thread that may block.
  void OpenAll();
  struct Incoming {
    uint32_t number;
    std::string encoded;                // empty without a claim
    std::shared_ptr<const void> claim;  // to its length; nullptr: the peer has offered too much
  };
  void Open(Incoming incoming);
  std::vector<std::shared_ptr<AcceptedOffer>> AllAccepted();

  const Host* const host_;
  Channel* const channel_;
  Reception* const reception_;
  const Bind bind_;
  std::mutex mutex_;
  bool down_ = false, retired_ = false;
  uint32_t next_number_ = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slots>> slots_;  // offered to the peer
  absl::flat_hash_set<uint64_t> unsent_;  // of those, the ones that are not offered yet
  absl::flat_hash_map<uint64_t, std::shared_ptr<AcceptedOffer>> accepted_;  // offered by it
  absl::flat_hash_map<uint64_t, std::string> pieces_;  // of offers that are not whole
  uint64_t piece_bytes_ = 0;
  absl::flat_hash_map<uint64_t, bool> opening_;  // true: withdrawn meanwhile
  std::deque<Incoming> to_open_;
  const std::shared_ptr<OfferAccount> account_ = std::make_shared<OfferAccount>();
  bool opener_runs_ = false;
  uint64_t offered_ = 0;  // above the number of every offer of the peer
  std::atomic<bool> any_accepted_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_
