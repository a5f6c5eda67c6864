// SPDX-License-Identifier: Apache-2.0
#include "channel/budget.h"

#include <algorithm>
#include <atomic>

#include "memory/arena.h"
#include "rdmatensor.h"

namespace rdmatensor {
namespace {

// This has no destructor, because tensors may be freed while static destructors run.
std::atomic<uint64_t> held{0};

}  // namespace

PlaceReservation::~PlaceReservation() { held.fetch_sub(bytes_); }

void PlaceReservation::Hold(uint64_t bytes) {
  bytes_ = bytes;
  held.fetch_add(bytes);
}

uint64_t PlaceBytes() { return held.load(); }

uint64_t BudgetOf(const ServerContext& server) {
  const uint64_t wanted = server.settings.plan_limit;
  const uint64_t limit = wanted != 0 ? wanted : Arena::Get()->GetUsage().limit_bytes;
  const uint64_t used = PlaceBytes();
  // The tensors themselves must be registered too.
  const uint64_t registrable = rdt_device_registrable(server.device) / 2;
  return used < limit ? std::min(limit - used, registrable) : 0;
}

}  // namespace rdmatensor
