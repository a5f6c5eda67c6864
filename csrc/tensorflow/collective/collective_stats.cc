// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_stats.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "collective/collective_groups.h"
#include "stats/path_stats.h"

namespace rdmatensor {
namespace {

constexpr const char* kKindNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "all_to_all"};
constexpr int kKinds = sizeof kKindNames / sizeof kKindNames[0];

struct Counter {
  std::atomic<uint64_t> count{0}, bytes{0};
  void Add(uint64_t size) {
    count.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(size, std::memory_order_relaxed);
  }
  void Reset() {
    count.store(0, std::memory_order_relaxed);
    bytes.store(0, std::memory_order_relaxed);
  }
  std::string AsJson(absl::string_view what) const {
    return absl::StrCat("{", Quoted(what), ":", count.load(), ",\"bytes\":", bytes.load(), "}");
  }
};

struct Stats {
  Counter kinds[kKinds];
  Counter served_by_grpc;
  std::atomic<uint64_t> failed{0};
  std::mutex mutex;
  std::map<std::string, uint64_t> reasons;
  std::set<CollectiveGroup*> groups;
};

// Never destroyed: operations may end while static destructors run.
Stats& GlobalStats() {
  static Stats* stats = new Stats;
  return *stats;
}

}  // namespace

const char* NameOf(rdt_collective_kind kind) {
  const int index = static_cast<int>(kind) - RDT_ALL_REDUCE;
  return index >= 0 && index < kKinds ? kKindNames[index] : "";
}

void CountCollective(rdt_collective_kind kind, uint64_t bytes) {
  const int index = static_cast<int>(kind) - RDT_ALL_REDUCE;
  if (index >= 0 && index < kKinds) GlobalStats().kinds[index].Add(bytes);
}

void CountFailedCollective() { GlobalStats().failed.fetch_add(1, std::memory_order_relaxed); }

void CountStockCollective(absl::string_view reason) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  ++stats.reasons[std::string(reason)];
}

void CountStockBuffer(uint64_t bytes) { GlobalStats().served_by_grpc.Add(bytes); }

void AddToStats(CollectiveGroup* group) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.groups.insert(group);
}

void RemoveFromStats(CollectiveGroup* group) {
  Stats& stats = GlobalStats();
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.groups.erase(group);
}

std::string CollectivesAsJson() {
  Stats& stats = GlobalStats();
  std::string out = "{\"operations\":{";
  for (int i = 0; i < kKinds; ++i) {
    absl::StrAppend(&out, i ? "," : "", Quoted(kKindNames[i]), ":",
                    stats.kinds[i].AsJson("operations"));
  }
  absl::StrAppend(&out, "},\"failed\":", stats.failed.load(),
                  ",\"served_by_grpc\":", stats.served_by_grpc.AsJson("buffers"),
                  ",\"by_tensorflow\":{");
  std::lock_guard<std::mutex> lock(stats.mutex);
  const char* separator = "";
  for (const auto& [reason, count] : stats.reasons) {
    absl::StrAppend(&out, separator, Quoted(reason), ":", count);
    separator = ",";
  }
  absl::StrAppend(&out, "},\"groups\":[");
  separator = "";
  for (const CollectiveGroup* group : stats.groups) {
    absl::StrAppend(&out, separator, group->AsJson());
    separator = ",";
  }
  return out + "]}";
}

void ResetCollectives() {
  Stats& stats = GlobalStats();
  for (Counter& counter : stats.kinds) counter.Reset();
  stats.served_by_grpc.Reset();
  stats.failed.store(0, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(stats.mutex);
  stats.reasons.clear();
  for (CollectiveGroup* group : stats.groups) group->ResetCounts();
}

}  // namespace rdmatensor
