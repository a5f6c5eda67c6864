// SPDX-License-Identifier: Apache-2.0
//
// The arena's regions as the peers of one device see them.
#ifndef RDMATENSOR_TENSORFLOW_MEMORY_ARENA_EXPORTS_H_
#define RDMATENSOR_TENSORFLOW_MEMORY_ARENA_EXPORTS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "memory/arena.h"
#include "rdmatensor.h"

namespace rdmatensor {

// Registers every region with the device, which must stay open until this is destroyed. The first region that
// cannot be registered, because of the limit of locked memory for example, causes a warning. Tensors in such a
// region are copied into another one when sent, or go by RPC. Thread-safe.
class ArenaExports : public Arena::Listener {
 public:
  ArenaExports(Arena* arena, rdt_device* device);
  ~ArenaExports() override;
  ArenaExports(const ArenaExports&) = delete;
  ArenaExports& operator=(const ArenaExports&) = delete;

  // Finds the memory at `address` as the channel's peer must name it. False if the peer cannot reach it.
  bool Locate(const rdt_channel* channel, const void* address, uint64_t* region_key,
              uint64_t* offset) const;

  // The keys of all registered regions.
  std::vector<uint64_t> Keys() const;

  bool OnRegion(const Arena::Region& region) override;

 private:
  Arena* const arena_;
  rdt_device* const device_;
  // The device owns them; nullptr: not registered.
  std::array<std::atomic<rdt_region*>, Arena::kMaxRegions> regions_{};
  std::atomic<bool> warned_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_MEMORY_ARENA_EXPORTS_H_
