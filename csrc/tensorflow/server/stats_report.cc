// SPDX-License-Identifier: Apache-2.0
#include "server/stats_report.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "channel/budget.h"
#include "collective/collective_stats.h"
#include "memory/arena.h"
#include "rdmatensor.h"
#include "service/plan_json.h"
#include "stats/checksum.h"
#include "stats/control_stats.h"
#include "stats/edge_waits.h"
#include "stats/path_stats.h"
#include "stats/row_stats.h"

namespace rdmatensor {
namespace {

constexpr const char* kPlanNames[kPlanEventCount] = {
    "busy",        "unfit",    "copied",  "fused",      "groups",       "mismatched",
    "over_budget", "promoted", "demoted", "operations", "in_operations"};

std::string AsJson(const SentReceived& both) {
  return absl::StrCat("{\"sent_tensors\":", both.sent.tensors, ",\"sent_bytes\":", both.sent.bytes,
                      ",\"received_tensors\":", both.received.tensors,
                      ",\"received_bytes\":", both.received.bytes, "}");
}

std::string AsJson(const Totals& totals) {
  return absl::StrCat("{\"tensors\":", totals.tensors, ",\"bytes\":", totals.bytes, "}");
}

std::string AsJson(const Arena::Usage& arena) {
  return absl::StrCat("{\"active\":", arena.active ? "true" : "false",
                      ",\"limit_bytes\":", arena.limit_bytes, ",\"regions\":", arena.regions,
                      ",\"reserved_bytes\":", arena.reserved_bytes,
                      ",\"used_bytes\":", arena.used_bytes, ",\"peak_bytes\":", arena.peak_bytes,
                      ",\"allocations\":", arena.allocations,
                      ",\"exhausted_allocations\":", arena.exhausted_allocations,
                      ",\"exhausted_bytes\":", arena.exhausted_bytes, "}");
}

std::string RetryInMs(const PeerCounts& peer) {
  using Clock = std::chrono::steady_clock;
  if (peer.retry == Clock::time_point()) return "null";
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(peer.retry - Clock::now());
  return absl::StrCat(std::max<int64_t>(0, left.count()));
}

using Controls = std::map<std::string, ControlCounts>;

std::string AsJson(const Controls& controls) {
  std::string out = "{";
  for (const auto& [task, counts] : controls) {
    absl::StrAppend(&out, out.size() > 1 ? "," : "", Quoted(task),
                    ":{\"way\":", Quoted(ControlWayName(counts.way)),
                    ",\"why\":", Quoted(counts.why),
                    ",\"channel_calls\":", counts.calls[static_cast<int>(ControlWay::kChannel)],
                    ",\"grpc_calls\":", counts.calls[static_cast<int>(ControlWay::kGrpc)], "}");
  }
  return out + "}";
}

// How this process starts and ends steps at the task; null if it does not.
std::string ControlOf(const Controls& controls, const std::string& task) {
  const auto found = controls.find(task);
  return found == controls.end() ? "null" : Quoted(ControlWayName(found->second.way));
}

// Devices read the setting when they open, before there are peers.
bool IsEncrypted(const std::string& transport) {
  char value[8];
  return transport == "tcp" && rdt_config_get("ENCRYPT", value, sizeof(value)) == RDT_OK &&
         std::string(value) == "on";
}

std::string AsJson(const PeerCounts& peer, const Controls& controls) {
  const bool receives = peer.direction == Direction::kReceive;
  const WaitSum waited = receives ? WaitsFor(peer.task) : WaitSum();
  return absl::StrCat(
      "{\"task\":", Quoted(peer.task), ",\"direction\":", receives ? "\"receive\"" : "\"send\"",
      ",\"state\":", Quoted(peer.state), ",\"transport\":", Quoted(peer.transport),
      ",\"encrypted\":", IsEncrypted(peer.transport) ? "true" : "false",
      ",\"why\":", Quoted(peer.why), ",\"tensors\":", peer.tensors.tensors,
      ",\"bytes\":", peer.tensors.bytes, ",\"rpc_bytes\":", peer.rpc_bytes,
      ",\"failbacks\":", peer.failbacks, ",\"moves\":", peer.moves, ",\"waits\":", waited.waits,
      ",\"wait_us\":", waited.nanoseconds / 1000, ",\"retry_in_ms\":", RetryInMs(peer),
      ",\"control\":", ControlOf(controls, peer.task), "}");
}

std::string StatsAsJson() {
  const PathCounts counts = ReadPathCounts();
  const Controls controls = ReadControlCounts();
  std::string out = "{\"paths\":{";
  for (int i = 0; i < kPathCount; ++i) {
    absl::StrAppend(&out, i ? "," : "", Quoted(PathName(static_cast<Path>(i))), ":",
                    AsJson(counts.paths[i]));
  }
  absl::StrAppend(&out, "},\"fetched\":{\"in_place\":", AsJson(counts.in_place),
                  ",\"read\":", AsJson(counts.read), "},\"plan\":{\"place_bytes\":", PlaceBytes());
  for (int i = 0; i < kPlanEventCount; ++i) {
    absl::StrAppend(&out, ",", Quoted(kPlanNames[i]), ":", counts.plan[i]);
  }
  absl::StrAppend(&out, "},\"arena\":", AsJson(Arena::Get()->GetUsage()),
                  ",\"collectives\":", CollectivesAsJson(), ",\"checksums\":", ChecksumsAsJson(),
                  ",\"rows\":", RowsAsJson(), ",\"slow_edges\":", SlowEdgesAsJson(),
                  ",\"devices\":", DevicesAsJson(), ",\"transports\":{");
  const char* separator = "";
  for (const auto& [name, both] : counts.transports) {
    absl::StrAppend(&out, separator, Quoted(name), ":", AsJson(both));
    separator = ",";
  }
  absl::StrAppend(&out, "},\"servers\":[");
  separator = "";
  for (const std::string& task : counts.servers) {
    absl::StrAppend(&out, separator, Quoted(task));
    separator = ",";
  }
  absl::StrAppend(&out, "],\"rpc_reasons\":{");
  separator = "";
  for (const auto& [reason, count] : counts.rpc_reasons) {
    absl::StrAppend(&out, separator, Quoted(reason), ":", count);
    separator = ",";
  }
  absl::StrAppend(&out, "},\"failbacks\":", counts.failbacks, ",\"moves\":", counts.moves,
                  ",\"control\":", AsJson(controls), ",\"peers\":[");
  separator = "";
  for (const PeerCounts& peer : counts.peers) {
    absl::StrAppend(&out, separator, AsJson(peer, controls));
    separator = ",";
  }
  absl::StrAppend(&out, "]}");
  return out;
}

size_t CopyOut(const std::string& json, char* out, size_t size) {
  if (out != nullptr && json.size() < size) std::memcpy(out, json.c_str(), json.size() + 1);
  return json.size() + 1;
}

}  // namespace
}  // namespace rdmatensor

size_t rdt_tf_stats_json(char* out, size_t size) {
  return rdmatensor::CopyOut(rdmatensor::StatsAsJson(), out, size);
}

size_t rdt_tf_plan_json(const char* task, char* out, size_t size) {
  rdmatensor::ServerContexts* const servers = rdmatensor::ServerContexts::Get();
  const rdmatensor::ServerContext* const server =
      task != nullptr ? servers->Of(task) : servers->Only();
  if (server == nullptr) return 0;
  return rdmatensor::CopyOut(rdmatensor::PlanAsJson(*server), out, size);
}

void rdt_tf_stats_reset(void) {
  rdmatensor::Arena::Get()->ResetUsage();
  rdmatensor::ResetCollectives();
  rdmatensor::ResetChecksums();
  rdmatensor::ResetRows();
  rdmatensor::ResetWaits();
  rdmatensor::ResetPathCounts();
  rdmatensor::ResetControlCounts();
}
