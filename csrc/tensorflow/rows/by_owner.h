// SPDX-License-Identifier: Apache-2.0
//
// Work on rows, on several threads that need no locks: each row has one owner, which does all work on it, in order.
#ifndef RDMATENSOR_TENSORFLOW_ROWS_BY_OWNER_H_
#define RDMATENSOR_TENSORFLOW_ROWS_BY_OWNER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace rdmatensor {

// Memory is prefetched so many rows ahead, because it takes as long to arrive as some rows take to process.
inline constexpr int kAhead = 8;
// Handing work to another thread pays from so many bytes on.
inline constexpr int64_t kBytesOfThread = 256 * 1024;

template <int to_write>
void Prefetch(const void* data, int64_t bytes) {
  constexpr int64_t kLine = 64, kMost = 1024;  // the processor follows long rows by itself
  const char* const begin = static_cast<const char*>(data);
  for (int64_t at = 0; at < std::min(bytes, kMost); at += kLine)
    __builtin_prefetch(begin + at, to_write);
}

// How many threads work on `bytes` pays for.
inline int ThreadsFor(tensorflow::OpKernelContext* context, int64_t bytes) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  return static_cast<int>(std::clamp<int64_t>(bytes / kBytesOfThread, 1, workers.num_threads));
}

// Calls `work(i)` for each element i of `ids`; on the same thread, and in order, for those that name the same row.
// `fetch(i)` comes some elements earlier. `row_bytes` is what the work on an element touches.
template <typename Id, typename Fetch, typename Work>
void EachByOwner(tensorflow::OpKernelContext* context, const std::vector<Id>& ids,
                 int64_t row_bytes, const Fetch& fetch, const Work& work) {
  const size_t count = ids.size();
  const int64_t bytes = static_cast<int64_t>(count) * row_bytes;
  const auto owners = static_cast<uint64_t>(ThreadsFor(context, bytes));
  if (owners == 1) {
    for (size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) fetch(i + kAhead);
      work(i);
    }
    return;
  }
  // Rows that share a line of the cache have one owner, and frequent ids, which are often neighbours, different ones.
  int shift = 0;
  while (shift < 6 && (row_bytes << shift) < 64) ++shift;
  const auto owner_of = [shift, owners](Id id) {
    return ((static_cast<uint32_t>(id >> shift) * uint64_t{2654435769}) & 0xffffffff) * owners >>
           32;
  };
  const auto own = [&](int64_t owner, int64_t end) {
    const std::unique_ptr<uint32_t[]> mine(new uint32_t[count]);
    for (; owner < end; ++owner) {
      size_t found = 0;
      for (size_t i = 0; i < count; ++i) {  // without branches, which nobody could predict
        mine[found] = static_cast<uint32_t>(i);
        found += owner_of(ids[i]) == static_cast<uint64_t>(owner);
      }
      for (size_t i = 0; i < found; ++i) {
        if (i + kAhead < found) fetch(mine[i + kAhead]);
        work(mine[i]);
      }
    }
  };
  tensorflow::Shard(static_cast<int>(owners),
                    context->device()->tensorflow_cpu_worker_threads()->workers,
                    static_cast<int64_t>(owners), bytes / static_cast<int64_t>(owners), own);
}

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_ROWS_BY_OWNER_H_
