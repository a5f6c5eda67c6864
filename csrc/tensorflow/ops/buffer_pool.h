// SPDX-License-Identifier: Apache-2.0
//
// Registered memory for the operands of collective operations. They move without a copy, and the tensors of
// their results stay where they arrived.
#ifndef RDMATENSOR_TENSORFLOW_OPS_BUFFER_POOL_H_
#define RDMATENSOR_TENSORFLOW_OPS_BUFFER_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "rdmatensor.h"

namespace rdmatensor {

// Thread-safe. Always owned by a std::shared_ptr; buffers may outlive it.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // `device` lives until Close.
  explicit BufferPool(rdt_device* device) : device_(device) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes` bytes, aligned to a page, with old contents. nullptr: there is no memory, or the pool is
  // closed. The memory returns to the pool with the last copy of the pointer.
  std::shared_ptr<char> Take(uint64_t bytes);
  // Withdraws the regions. The memory of buffers that are in use lives on, for this process only.
  void Close();

 private:
  struct Block {
    char* memory = nullptr;
    uint64_t bytes = 0;
    rdt_region* region =
        nullptr;  // nullptr: the pool is closed, or the memory could not be registered
  };
  void Return(char* memory);
  static void Free(const Block& block);

  rdt_device* const device_;
  std::mutex mutex_;
  bool closed_ = false;
  std::map<const char*, Block> used_;
  std::multimap<uint64_t, Block> free_;  // by size
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_BUFFER_POOL_H_
