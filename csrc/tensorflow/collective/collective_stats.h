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

class CollectiveGroup;

// "all_reduce" and the like.
const char* NameOf(rdt_collective_kind kind);

// All functions may be called from any thread.
// One operation that this process took part in, with that many bytes of input and output, whichever is
// more.
void CountCollective(rdt_collective_kind kind, uint64_t bytes);
// One that failed.
void CountFailedCollective();
// One that was left to TensorFlow's algorithm, for `reason`.
void CountStockCollective(absl::string_view reason);

// A piece of a tensor that a peer running TensorFlow's algorithm asked for by RecvBuf.
void CountStockBuffer(uint64_t bytes);

// Every group is shown as long as it exists.
void AddToStats(CollectiveGroup* group);
void RemoveFromStats(CollectiveGroup* group);

std::string CollectivesAsJson();
void ResetCollectives();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_COLLECTIVE_COLLECTIVE_STATS_H_
