// SPDX-License-Identifier: Apache-2.0
//
// What the operations of a group cost: by name, and by the member that was waited for.
#ifndef RDMATENSOR_TENSORFLOW_OPS_OPERATION_STATS_H_
#define RDMATENSOR_TENSORFLOW_OPS_OPERATION_STATS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "ops/started.h"

namespace rdmatensor {

// Thread-safe. Times are nanoseconds of GetCurrentTimeNanos.
class OperationStats {
 public:
  explicit OperationStats(uint32_t size) : late_(size) {}

  // An operation starts at `now`.
  void Begin(int64_t now);
  // It has ended, or was not started after all.
  void End(const Started& started, bool failed);

  // Adds operations, late members and times to `object`.
  void AddTo(Json* object);

 private:
  struct Costs {
    uint64_t operations = 0, failed = 0, bytes = 0;
    int64_t took = 0, longest = 0, waited = 0;
  };
  struct Late {
    uint64_t operations = 0;
    int64_t waited = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Costs> by_name_;
  std::vector<Late> late_;  // by rank
  int under_way_ = 0;
  int64_t first_ = 0, last_ = 0;    // starts since nothing was under way
  int64_t busy_ = 0, exposed_ = 0;  // while anything was under way; since the last start then
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_OPS_OPERATION_STATS_H_
