// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_exports.h"

#include "absl/strings/str_cat.h"

namespace rdmatensor {

ArenaExports::ArenaExports(Arena* arena, rdt_device* device) : arena_(arena), device_(device) {
  arena_->Subscribe(this);
}

ArenaExports::~ArenaExports() { arena_->Unsubscribe(this); }

bool ArenaExports::OnRegion(const Arena::Region& region) {
  rdt_region* registered = nullptr;
  if (rdt_region_register(device_, region.base, region.size, RDT_ACCESS_READ, nullptr,
                          &registered) != RDT_OK) {
    if (!warned_.exchange(true, std::memory_order_relaxed)) {
      rdt_log_line(
          RDT_LOG_WARN,
          absl::StrCat("tensorflow: peers cannot read ", region.size,
                       " bytes of the arena, which will not grow any more; tensors outside "
                       "its other regions are copied when sent, or go by grpc: ",
                       rdt_last_error())
              .c_str());
    }
    return false;
  }
  regions_[static_cast<size_t>(region.index)].store(registered, std::memory_order_release);
  return true;
}

std::vector<uint64_t> ArenaExports::Keys() const {
  std::vector<uint64_t> keys;
  rdt_region_info info{};
  for (const std::atomic<rdt_region*>& each : regions_) {
    if (rdt_region_get_info(each.load(std::memory_order_acquire), &info) == RDT_OK) {
      keys.push_back(info.key);
    }
  }
  return keys;
}

bool ArenaExports::Locate(const rdt_channel* channel, const void* address, uint64_t* region_key,
                          uint64_t* offset) const {
  const Arena::Region* region = arena_->Find(address);
  if (region == nullptr) return false;
  const rdt_region* registered =
      regions_[static_cast<size_t>(region->index)].load(std::memory_order_acquire);
  rdt_region_info info{};
  if (!rdt_region_reaches(registered, channel) ||
      rdt_region_get_info(registered, &info) != RDT_OK) {
    return false;
  }
  *region_key = info.key;
  *offset = static_cast<uint64_t>(static_cast<const char*>(address) - region->base);
  return true;
}

}  // namespace rdmatensor
