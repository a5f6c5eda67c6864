// SPDX-License-Identifier: Apache-2.0
#include "ops/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace rdmatensor {
namespace {

constexpr uint64_t kSmallest = 4096;

// A power of two, or three quarters of one, so that at most a third is spare.
uint64_t SizeFor(uint64_t bytes) {
  uint64_t size = kSmallest;
  while (size < bytes && size <= UINT64_MAX / 4) size *= 2;
  return size / 4 * 3 >= std::max(bytes, kSmallest) ? size / 4 * 3 : size;
}

}  // namespace

BufferPool::~BufferPool() {
  for (const auto& [size, block] : free_) Free(block);
}

std::shared_ptr<char> BufferPool::Take(uint64_t bytes) {
  const uint64_t size = SizeFor(bytes);
  Block block;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || size < bytes) return nullptr;
    if (const auto found = free_.find(size); found != free_.end()) {
      block = found->second;
      free_.erase(found);
    }
  }
  if (block.memory == nullptr) {
    void* memory = nullptr;
    if (rdt_memory_alloc(size, &memory) != RDT_OK) return nullptr;
    block.memory = static_cast<char*>(memory);
    block.bytes = size;
    std::lock_guard<std::mutex> lock(mutex_);
    // Without a region the operation copies.
    if (closed_ || rdt_region_register(device_, memory, size, RDT_ACCESS_READ | RDT_ACCESS_WRITE,
                                       nullptr, &block.region) != RDT_OK) {
      block.region = nullptr;
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    used_.emplace(block.memory, block);
  }
  return std::shared_ptr<char>(block.memory,
                               [pool = shared_from_this()](char* memory) { pool->Return(memory); });
}

void BufferPool::Return(char* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = used_.find(memory);
  const Block block = found->second;
  used_.erase(found);
  if (closed_) {
    Free(block);
  } else {
    free_.emplace(block.bytes, block);
  }
}

void BufferPool::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(closed_, true)) return;
  for (auto& [memory, block] : used_) rdt_region_close(std::exchange(block.region, nullptr));
  for (auto& [size, block] : free_) {
    rdt_region_close(std::exchange(block.region, nullptr));
    Free(block);
  }
  free_.clear();
}

void BufferPool::Free(const Block& block) { (void)rdt_memory_free(block.memory); }

}  // namespace rdmatensor
