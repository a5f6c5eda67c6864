// SPDX-License-Identifier: Apache-2.0
//
// How long consumers waited for tensors, from the request to the arrival. The clock is read only if a tensor has
// not arrived when it is requested.
#ifndef RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_
#define RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "stats/path_stats.h"

namespace rdmatensor {

// Nanoseconds of a monotonic clock; never 0.
inline uint64_t WaitMoment() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// The waits of all receives of one edge.
struct EdgeWaits;
// The waits of the edge that plans call `edge`, in whatever graph; with "", of all tensors from `source` to
// `destination` that no plan names. Never freed.
EdgeWaits* WaitsOf(absl::string_view source, absl::string_view destination, absl::string_view edge);

// Counts a wait that began at `since` and ended now with the tensor's arrival, and shows it in TensorFlow's
// profiler under the name `edge`.
void EndWait(EdgeWaits* waits, uint64_t since, absl::FunctionRef<absl::string_view()> edge,
             uint64_t bytes, Path path);

struct WaitSum {
  uint64_t waits = 0, nanoseconds = 0;
};
// The sum over all tensors from `source`.
WaitSum WaitsFor(absl::string_view source);
// The edges with the longest waits, as a JSON list.
std::string SlowEdgesAsJson();
void ResetWaits();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_EDGE_WAITS_H_
