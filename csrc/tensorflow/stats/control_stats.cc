// SPDX-License-Identifier: Apache-2.0
#include "stats/control_stats.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "rdmatensor.h"

namespace rdmatensor {
namespace {

struct ControlStats {
  std::mutex mutex;
  std::map<std::string, ControlCounts, std::less<>> tasks;
};

// Never destroyed: calls may end while static destructors run.
ControlStats& AllControl() {
  static auto* stats = new ControlStats;
  return *stats;
}

ControlCounts& Of(ControlStats* stats, absl::string_view task) {
  auto found = stats->tasks.find(task);
  if (found != stats->tasks.end()) return found->second;
  return stats->tasks[std::string(task)];
}

}  // namespace

const char* ControlWayName(ControlWay way) {
  return way == ControlWay::kChannel ? "channel" : "grpc";
}

void RecordControl(absl::string_view task, ControlWay way, absl::string_view why) {
  ControlStats& stats = AllControl();
  {
    std::lock_guard<std::mutex> lock(stats.mutex);
    ControlCounts& counts = Of(&stats, task);
    if (counts.way == way && counts.why == why) return;
    counts.way = way;
    counts.why = std::string(why);
  }
  rdt_log_line(RDT_LOG_INFO,
               absl::StrCat("tensorflow: ", task, " is called over ",
                            way == ControlWay::kChannel ? "a channel of " : "grpc: ", why)
                   .c_str());
}

void CountCall(absl::string_view task, ControlWay way) {
  ControlStats& stats = AllControl();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++Of(&stats, task).calls[static_cast<int>(way)];
}

std::map<std::string, ControlCounts> ReadControlCounts() {
  ControlStats& stats = AllControl();
  std::lock_guard<std::mutex> lock(stats.mutex);
  return {stats.tasks.begin(), stats.tasks.end()};
}

void ResetControlCounts() {
  ControlStats& stats = AllControl();
  std::lock_guard<std::mutex> lock(stats.mutex);
  for (auto& [task, counts] : stats.tasks) counts.calls[0] = counts.calls[1] = 0;
}

}  // namespace rdmatensor
