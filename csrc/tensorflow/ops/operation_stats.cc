// SPDX-License-Identifier: Apache-2.0
#include "ops/operation_stats.h"

#include <algorithm>

namespace rdmatensor {
namespace {

// Programs may make up names for ever; what comes later counts together.
constexpr size_t kMostNames = 256;
constexpr const char* kOthers = "others";

double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

void OperationStats::Begin(int64_t now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (under_way_++ == 0) first_ = now;
  last_ = now;
}

void OperationStats::End(const Started& started, bool failed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--under_way_ == 0) {
    busy_ += std::max(started.ended - first_, int64_t{0});
    exposed_ += std::max(started.ended - last_, int64_t{0});
  }
  auto found = by_name_.find(started.name());
  if (found == by_name_.end()) {
    found = by_name_.try_emplace(by_name_.size() < kMostNames ? started.name() : kOthers).first;
  }
  Costs& costs = found->second;
  ++(failed ? costs.failed : costs.operations);
  if (failed) return;
  const int64_t took = started.ended - started.begun;
  costs.bytes += started.bytes;
  costs.took += took;
  costs.longest = std::max(costs.longest, took);
  costs.waited += started.report.waited_ns;
  if (started.report.waited_ns == 0 || started.report.last >= late_.size()) return;
  Late& late = late_[started.report.last];
  ++late.operations;
  late.waited += started.report.waited_ns;
}

void OperationStats::AddTo(Json* object) {
  std::lock_guard<std::mutex> lock(mutex_);
  Json operations = Json::Object(), late = Json::List();
  int64_t waited = 0;
  for (const auto& [name, costs] : by_name_) {
    waited += costs.waited;
    operations.Add(name, Json::Object()
                             .Add("operations", costs.operations)
                             .Add("failed", costs.failed)
                             .Add("bytes", costs.bytes)
                             .Add("seconds", Seconds(costs.took))
                             .Add("longest_seconds", Seconds(costs.longest))
                             .Add("waited_seconds", Seconds(costs.waited)));
  }
  for (const Late& each : late_) {
    late.Add(Json::Object()
                 .Add("operations", each.operations)
                 .Add("waited_seconds", Seconds(each.waited)));
  }
  object->Add("operations", operations)
      .Add("late", late)
      .Add("busy_seconds", Seconds(busy_))
      .Add("exposed_seconds", Seconds(exposed_))
      .Add("waited_seconds", Seconds(waited));
}

}  // namespace rdmatensor
