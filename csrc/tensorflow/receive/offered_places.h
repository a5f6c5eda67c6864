// SPDX-License-Identifier: Apache-2.0
//
// The offers of places made over one channel, and what became of them.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "channel/message.h"
#include "channel/plan_message.h"
#include "receive/slots.h"

namespace rdmatensor {

// Thread-safe. Belongs to a channel.
class OfferedPlaces {
 public:
  OfferedPlaces(const ServerContext* server, Channel* channel, Reception* reception)
      : server_(server), channel_(channel), reception_(reception) {}

  // Gives the link's edges places and offers them. Blocks while memory is registered.
  absl::StatusOr<std::shared_ptr<Slots>> MakeOffer(std::shared_ptr<const PlacedLink> link);

  // A message from the peer about offer `number`. False: it broke the protocol. Progress thread.
  bool Handle(MessageKind kind, uint64_t number, const char* data, size_t size);

  // Another channel is about to replace this one: withdraws all offers, and makes no more.
  void Retire();
  // The channel stays.
  void Resume();
  // No offer is in force.
  bool IsQuiet();
  // Ends all offers, because the channel is down.
  void OnDown();

 private:
  std::shared_ptr<Slots> FindSlots(uint64_t number);

  const ServerContext* const server_;
  Channel* const channel_;
  Reception* const reception_;
  std::mutex mutex_;
  bool down_ = false, retired_ = false;
  uint32_t next_number_ = 0;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slots>> slots_;
  absl::flat_hash_set<uint64_t> unsent_;  // of those, the ones that are not offered yet
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_OFFERED_PLACES_H_
