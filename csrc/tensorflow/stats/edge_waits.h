// SPDX-License-Identifier: Apache-2.0
//
// Which tensors were waited for, and how long: from when a consumer asked for one until it was here. The
// clock is read only where there is something to wait for.
#ifndef RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_
#define RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "stats/path_stats.h"

namespace rdmatensor {

// Nanoseconds of a clock that never goes back; never 0.
inline uint64_t WaitMoment() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// The waits of all receives of one edge.
struct EdgeWaits;
// Those of the edge named so by the plan; "": of all from `source` into `destination` that no plan names.
// The same edge of several graphs has one. Valid for ever.
EdgeWaits* WaitsOf(absl::string_view source, absl::string_view destination, absl::string_view edge);

// A wait that began at `since` has ended with the tensor. Counts it, and shows it in TensorFlow's profiler
// as of `edge`.
void EndWait(EdgeWaits* waits, uint64_t since, absl::FunctionRef<absl::string_view()> edge,
             uint64_t bytes, Path path);

struct WaitSum {
  uint64_t waits = 0, nanoseconds = 0;
};
// Of all tensors from `source`.
WaitSum WaitsFor(absl::string_view source);
// The edges that were waited for longest, as a JSON list.
std::string SlowEdgesAsJson();
void ResetWaits();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_
