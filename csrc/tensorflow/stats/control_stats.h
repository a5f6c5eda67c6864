// SPDX-License-Identifier: Apache-2.0
//
// Counts, per task, how the messages travel that start and end its steps, and says why.
#ifndef RDMATENSOR_TENSORFLOW_STATS_CONTROL_STATS_H_
#define RDMATENSOR_TENSORFLOW_STATS_CONTROL_STATS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace rdmatensor {

enum class ControlWay { kChannel, kGrpc };
const char* ControlWayName(ControlWay way);

// All functions may be called from any thread.

// This process calls `task` this way from now on. `why`: over a channel its transport, else the reason.
void RecordControl(absl::string_view task, ControlWay way, absl::string_view why);
// One call of `task`.
void CountCall(absl::string_view task, ControlWay way);

struct ControlCounts {
  ControlWay way = ControlWay::kGrpc;
  std::string why;
  uint64_t calls[2] = {};  // by way
};
std::map<std::string, ControlCounts> ReadControlCounts();
// Sets counts to zero.
void ResetControlCounts();

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_STATS_CONTROL_STATS_H_
