// SPDX-License-Identifier: Apache-2.0
//
// Counts of collective operations, for rdmatensor.tensorflow.stats()["collectives"].
#ifndef RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_STATS_H_
#define RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_STATS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "rdmatensor.h"

namespace rdmatensor {

class Json;

// The name in the statistics, "all_reduce" for RDT_ALL_REDUCE.
const char* NameOf(rdt_collective_kind kind);

// All functions may be called from any thread.
// Counts an operation in which this process took part. `bytes` is the size of its input or its output,
// whichever is larger.
void CountCollective(rdt_collective_kind kind, uint64_t bytes);
// Counts one that failed.
void CountFailedCollective();
// Counts one that was left to TensorFlow's algorithm for `reason`.
void CountStockCollective(absl::string_view reason);

// Counts a piece of a tensor for which a peer that runs TensorFlow's algorithm asked by RecvBuf.
void CountStockBuffer(uint64_t bytes);

// A group of tasks as the statistics show it. Both functions are called from any thread.
class ShownGroup {
 public:
  virtual Json AsJson() const = 0;
  virtual void ResetCounts() = 0;

 protected:
  ~ShownGroup() = default;
};

// A group is shown from the first call to the second, after which neither of its functions runs any more.
void AddToStats(ShownGroup* group);
void RemoveFromStats(ShownGroup* group);

std::string CollectivesAsJson();
void ResetCollectives();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_STATS_H_
