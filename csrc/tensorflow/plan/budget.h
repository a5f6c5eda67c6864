// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may hold as places for planned tensors, and holds.
#ifndef RDMATENSOR_TENSORFLOW_PLAN_BUDGET_H_
#define RDMATENSOR_TENSORFLOW_PLAN_BUDGET_H_

#include <cstdint>

#include "wire/host.h"

namespace rdmatensor {

// The bytes of one region of places count from Hold until this object is destroyed.
class PlaceClaim {
 public:
  PlaceClaim() = default;
  ~PlaceClaim();
  PlaceClaim(const PlaceClaim&) = delete;
  PlaceClaim& operator=(const PlaceClaim&) = delete;
  // Once.
  void Hold(uint64_t bytes);

 private:
  uint64_t bytes_ = 0;
};

// What all claims of this process hold.
uint64_t PlaceBytes();
// What they may still hold: by PLAN_LIMIT, and by what the device can still register.
uint64_t BudgetOf(const Host& host);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PLAN_BUDGET_H_
