// SPDX-License-Identifier: Apache-2.0
#include "service/plan_json.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "receive/in_plans.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

std::string ShapeOf(const tensorflow::PartialTensorShape& shape) {
  if (shape.unknown_rank()) return "null";
  std::string out = "[";
  for (int i = 0; i < shape.dims(); ++i) {
    const int64_t dim = shape.dim_size(i);
    absl::StrAppend(&out, i ? "," : "", dim < 0 ? "null" : absl::StrCat(dim));
  }
  return out + "]";
}

// Python's names, which differ from TensorFlow's C++ ones for three types.
std::string NameOf(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_HALF:
      return "float16";
    case tensorflow::DT_FLOAT:
      return "float32";
    case tensorflow::DT_DOUBLE:
      return "float64";
    default:
      return tensorflow::DataTypeString(dtype);
  }
}

std::string LastOf(const rdt_plan_order& order) {
  return order.last == INT32_MAX ? "null" : absl::StrCat(order.last);
}

// Why the edge has operations of its own; "" if it shares them.
std::string WhyAlone(const EdgeDefinition& edge) {
  if (edge.shares) return "";
  if (edge.fusion.operation >= 0)
    return "a reference variable, or a part of the graph that another process made";
  return rdt_plan_alone_text(edge.fusion.alone);
}

std::string EdgeAsJson(const PlacedLink& link, const PlacedEdge& edge) {
  const EdgeDefinition& definition = *edge.definition;
  const rdt_plan_place& place = edge.place;
  std::string out = absl::StrCat(
      "{\"name\":", Quoted(definition.name), ",\"graph\":", Quoted(absl::StrCat(link.graph)),
      ",\"source\":", Quoted(link.source), ",\"destination\":", Quoted(link.destination),
      ",\"dtype\":", Quoted(NameOf(definition.dtype)), ",\"shape\":", ShapeOf(definition.shape),
      ",\"in_loop\":", definition.in_loop ? "true" : "false",
      ",\"class\":", Quoted(rdt_plan_class_name(place.plan_class)),
      ",\"reason\":", Quoted(rdt_plan_reason_text(place.reason)), ",\"bytes\":", place.bytes,
      ",\"first\":", definition.order.first, ",\"last\":", LastOf(definition.order),
      ",\"group\":", place.group < 0 ? "null" : absl::StrCat(place.group),
      ",\"operation\":", definition.shares ? absl::StrCat(definition.fusion.operation) : "null",
      ",\"alone\":", Quoted(WhyAlone(definition)));
  if (place.ring < 0) {
    return out + ",\"slots\":0,\"ring\":null,\"offset\":null,\"stride\":null,\"consumers\":[]}";
  }
  const Offer::Ring& ring = link.rings[static_cast<size_t>(place.ring)];
  return absl::StrCat(out, ",\"slots\":", ring.slots, ",\"ring\":", place.ring,
                      ",\"offset\":", ring.offset + place.offset, ",\"stride\":", ring.stride,
                      ",\"consumers\":[]}");
}

std::string LinkAsJson(const PlacedLink& link) {
  return absl::StrCat("{\"graph\":", Quoted(absl::StrCat(link.graph)),
                      ",\"source\":", Quoted(link.source),
                      ",\"destination\":", Quoted(link.destination), ",\"bytes\":", link.bytes,
                      ",\"rings\":", link.rings.size(), ",\"groups\":", link.groups.size(),
                      ",\"hash\":\"", absl::StrFormat("%016x", link.hash), "\"}");
}

}  // namespace

std::string DevicesAsJson() {
  std::vector<std::string> devices;
  ServerContexts::Get()->ForEach([&devices](const ServerContext& server) {
    rdt_stats now{};
    if (rdt_device_stats(server.device, &now) != RDT_OK) return;
    devices.push_back(absl::StrCat(
        "{\"task\":", Quoted(server.task), ",\"address\":", Quoted(server.address),
        ",\"writes\":", now.writes, ",\"write_bytes\":", now.write_bytes, ",\"reads\":", now.reads,
        ",\"read_bytes\":", now.read_bytes, ",\"atomics\":", now.atomics,
        ",\"notifies_sent\":", now.notifies_sent, ",\"notifies_received\":", now.notifies_received,
        ",\"notify_bytes_sent\":", now.notify_bytes_sent, ",\"notify_bytes_received\":",
        now.notify_bytes_received, ",\"queued\":", now.queued, ",\"doorbells\":", now.doorbells,
        ",\"wakeups\":", now.wakeups, ",\"channels_opened\":", now.channels_opened,
        ",\"channels_lost\":", now.channels_lost, ",\"regions\":", now.regions,
        ",\"region_bytes\":", now.region_bytes, ",\"pending\":", now.pending, "}"));
  });
  return absl::StrCat("[", absl::StrJoin(devices, ","), "]");
}

std::string PlanAsJson(const ServerContext& server) {
  std::vector<std::shared_ptr<const PlacedLink>> links;
  for (const std::shared_ptr<InPlan>& plan : InPlans::Get()->Of(server.task)) {
    if (plan->rests()) continue;
    for (auto& link : plan->Links()) links.push_back(std::move(link));
  }
  std::sort(links.begin(), links.end(), [](const auto& a, const auto& b) {
    return std::tie(a->source, a->graph) < std::tie(b->source, b->graph);
  });
  std::set<std::string> tasks = {server.task};
  std::vector<std::string> edges, described;
  std::set<const EdgeDefinition*> placed;
  for (const auto& link : links) {
    tasks.insert(link->source);
    described.push_back(LinkAsJson(*link));
    for (const PlacedEdge& edge : link->edges) {
      placed.insert(edge.definition.get());
      edges.push_back(EdgeAsJson(*link, edge));
    }
  }
  for (const auto& link : links) {
    for (const PlacedEdge& edge : link->others) {
      // Promoted edges have a link of their own.
      if (placed.count(edge.definition.get()) == 0) edges.push_back(EdgeAsJson(*link, edge));
    }
  }
  std::vector<std::string> names;
  for (const std::string& task : tasks) names.push_back(Quoted(task));
  const Settings& settings = server.settings;
  return absl::StrCat("{\"version\":1,\"tasks\":[", absl::StrJoin(names, ","),
                      "],\"options\":{\"slots\":", settings.plan_slots,
                      ",\"loop_slots\":", settings.plan_loop_slots,
                      ",\"batch\":", settings.batch_size, ",\"fuse_bytes\":", settings.fuse_bytes,
                      ",\"fuse_group_bytes\":", kGroupBytes, "},\"links\":[",
                      absl::StrJoin(described, ","), "],\"edges\":[", absl::StrJoin(edges, ","),
                      "]}");
}

}  // namespace rdmatensor
