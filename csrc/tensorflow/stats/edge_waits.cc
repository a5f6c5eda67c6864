// SPDX-License-Identifier: Apache-2.0
#include "stats/edge_waits.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/spans.h"

namespace rdmatensor {

struct EdgeWaits {
  std::string source, destination, edge;
  std::atomic<uint64_t> waits{0}, nanoseconds{0}, longest{0};
};

namespace {

// Programs that make graphs for ever have edges without end: those beyond count as not planned.
constexpr size_t kMaxEdges = 16384;
constexpr size_t kShown = 20;
constexpr uint64_t kNanosecondsInMicrosecond = 1000;

struct Table {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, std::string>, std::unique_ptr<EdgeWaits>> edges;
};

// Never destroyed: tensors may arrive while static destructors run.
Table& GlobalTable() {
  static Table* table = new Table;
  return *table;
}

struct Shown {
  const EdgeWaits* edge;
  uint64_t nanoseconds;
};

std::string AsJson(const EdgeWaits& edge, uint64_t nanoseconds) {
  return absl::StrCat("{\"edge\":", Quoted(edge.edge), ",\"source\":", Quoted(edge.source),
                      ",\"destination\":", Quoted(edge.destination),
                      ",\"waits\":", edge.waits.load(),
                      ",\"wait_us\":", nanoseconds / kNanosecondsInMicrosecond,
                      ",\"longest_us\":", edge.longest.load() / kNanosecondsInMicrosecond, "}");
}

}  // namespace

EdgeWaits* WaitsOf(absl::string_view source, absl::string_view destination,
                   absl::string_view edge) {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto key = std::make_tuple(std::string(source), std::string(destination), std::string(edge));
  auto found = table.edges.find(key);
  if (found == table.edges.end() && table.edges.size() >= kMaxEdges) {
    std::get<2>(key).clear();
    found = table.edges.find(key);
  }
  if (found != table.edges.end()) return found->second.get();
  auto waits = std::make_unique<EdgeWaits>();
  std::tie(waits->source, waits->destination, waits->edge) = key;
  return table.edges.emplace(std::move(key), std::move(waits)).first->second.get();
}

void EndWait(EdgeWaits* waits, uint64_t since, absl::FunctionRef<absl::string_view()> edge,
             uint64_t bytes, Path path) {
  const uint64_t taken = WaitMoment() - since;
  waits->waits.fetch_add(1, std::memory_order_relaxed);
  waits->nanoseconds.fetch_add(taken, std::memory_order_relaxed);
  uint64_t longest = waits->longest.load(std::memory_order_relaxed);
  while (taken > longest && !waits->longest.compare_exchange_weak(longest, taken)) {
  }
  if (Tracing()) {
    RecordSpan(SpanName("rdmatensor::wait", edge(), waits->source, bytes, PathName(path)), taken);
  }
}

WaitSum WaitsFor(absl::string_view source) {
  WaitSum sum;
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  // Edges lie together by source.
  for (auto each = table.edges.lower_bound({std::string(source), "", ""});
       each != table.edges.end() && each->second->source == source; ++each) {
    sum.waits += each->second->waits.load(std::memory_order_relaxed);
    sum.nanoseconds += each->second->nanoseconds.load(std::memory_order_relaxed);
  }
  return sum;
}

std::string SlowEdgesAsJson() {
  std::vector<Shown> edges;
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  for (const auto& [key, edge] : table.edges) {
    if (edge->waits.load() != 0) edges.push_back({edge.get(), edge->nanoseconds.load()});
  }
  const auto end = edges.begin() + static_cast<ptrdiff_t>(std::min(kShown, edges.size()));
  std::partial_sort(edges.begin(), end, edges.end(),
                    [](const Shown& a, const Shown& b) { return a.nanoseconds > b.nanoseconds; });
  std::string out = "[";
  for (auto each = edges.begin(); each != end; ++each) {
    absl::StrAppend(&out, each == edges.begin() ? "" : ",", AsJson(*each->edge, each->nanoseconds));
  }
  return out + "]";
}

void ResetWaits() {
  Table& table = GlobalTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  for (auto& [key, edge] : table.edges) {
    edge->waits.store(0);
    edge->nanoseconds.store(0);
    edge->longest.store(0);
  }
}

}  // namespace rdmatensor
