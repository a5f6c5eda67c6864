// SPDX-License-Identifier: Apache-2.0
//
// The budget of memory that this process may use as places for planned tensors.
#ifndef RDMATENSOR_TENSORFLOW_CHANNEL_BUDGET_H_
#define RDMATENSOR_TENSORFLOW_CHANNEL_BUDGET_H_

#include <cstdint>

#include "channel/server_context.h"

namespace rdmatensor {

// Counts the bytes of one region of places, from Hold until this object is destroyed.
class PlaceReservation {
 public:
  PlaceReservation() = default;
  ~PlaceReservation();
  PlaceReservation(const PlaceReservation&) = delete;
  PlaceReservation& operator=(const PlaceReservation&) = delete;
  // Call this once at most.
  void Hold(uint64_t bytes);

 private:
  uint64_t bytes_ = 0;
};

// Returns the bytes that all reservations of this process hold.
uint64_t PlaceBytes();
// Returns the bytes that may still be reserved, limited by PLAN_LIMIT and by what the device can register.
uint64_t BudgetOf(const ServerContext& server);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CHANNEL_BUDGET_H_
