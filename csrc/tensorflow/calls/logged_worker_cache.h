// SPDX-License-Identifier: Apache-2.0
//
// Connections to the tasks of a cluster whose log has the tensors that came over channels, too.
#ifndef RDMATENSOR_TENSORFLOW_CALLS_LOGGED_WORKER_CACHE_H_
#define RDMATENSOR_TENSORFLOW_CALLS_LOGGED_WORKER_CACHE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "stats/transfer_log.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/framework/step_stats.pb.h"

namespace rdmatensor {

// Thread-safe. TensorFlow turns the log of each cache of a process on for a step, and reads all of them.
class LoggedWorkerCache : public tensorflow::WorkerCacheWrapper {
 public:
  explicit LoggedWorkerCache(std::shared_ptr<tensorflow::WorkerCacheInterface> stock)
      : WorkerCacheWrapper(stock.get()), stock_(std::move(stock)) {}
  ~LoggedWorkerCache() override { TransferLog::Get()->AddReaders(-readers_); }

  void SetLogging(bool active) override {
    WorkerCacheWrapper::SetLogging(active);
    std::lock_guard<std::mutex> lock(mutex_);
    const int by = active         ? 1
                   : readers_ > 0 ? -1
                                  : 0;  // it may be turned off without having been turned on
    readers_ += by;
    TransferLog::Get()->AddReaders(by);
  }
  void ClearLogs() override {
    WorkerCacheWrapper::ClearLogs();
    TransferLog::Get()->logger().ClearLogs();
  }
  bool RetrieveLogs(int64_t step_id, tensorflow::StepStats* stats) override {
    // TensorFlow's loggers replace what is there.
    tensorflow::StepStats by_rpc, by_channels;
    const bool some = WorkerCacheWrapper::RetrieveLogs(step_id, &by_rpc);
    const bool more = TransferLog::Get()->logger().RetrieveLogs(step_id, &by_channels);
    stats->MergeFrom(by_rpc);
    stats->MergeFrom(by_channels);
    return some || more;
  }

 protected:
  tensorflow::WorkerCacheInterface* stock() const { return stock_.get(); }

 private:
  const std::shared_ptr<tensorflow::WorkerCacheInterface> stock_;
  std::mutex mutex_;
  int readers_ = 0;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_CALLS_LOGGED_WORKER_CACHE_H_
