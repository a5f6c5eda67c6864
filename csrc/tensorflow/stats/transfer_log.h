// SPDX-License-Identifier: Apache-2.0
//
// The tensors received during steps whose statistics a client asks for (RunMetadata), as TensorFlow shows those that
// come by RPC: entries named RecvTensor.
#ifndef RDMATENSOR_TENSORFLOW_STATS_TRANSFER_LOG_H_
#define RDMATENSOR_TENSORFLOW_STATS_TRANSFER_LOG_H_

#include <atomic>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"

namespace rdmatensor {

// Thread-safe. One for the process.
class TransferLog {
 public:
  static TransferLog* Get();
  bool active() const { return active_.load(std::memory_order_relaxed) != 0; }
  // `by`: by how much the number of those grows who want entries.
  void AddReaders(int by) { active_.fetch_add(by); }
  // A tensor was received in this step: under this rendezvous key, after a wait that began at `since` (WaitMoment), or
  // without one (0).
  void Add(int64_t step_id, absl::string_view key, uint64_t since, uint64_t bytes);
  tensorflow::WorkerCacheLogger& logger() { return logger_; }

 private:
  std::atomic<int> active_{0};
  tensorflow::WorkerCacheLogger logger_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_TRANSFER_LOG_H_
