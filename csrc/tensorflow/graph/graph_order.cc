// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/graph_shapes.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/graph/control_flow.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdmatensor {
namespace {

using tensorflow::ControlFlowInfo;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

constexpr uint32_t kNoTask = 0;  // tasks count from 1

enum class Fact { WAITS, STATE, STATE_PREFIX, FREE, BRANCH };

constexpr std::pair<Fact, absl::string_view> kFacts[] = {
#define OP(fact, name) {Fact::fact, #name},
#include "graph_analyzer/read/ops.def"
#undef OP
};

bool Holds(Fact fact, absl::string_view op) {
  static const auto* facts = new absl::flat_hash_set<std::pair<Fact, absl::string_view>>(
      std::begin(kFacts), std::end(kFacts));
  return facts->contains({fact, op});
}

// Whether a stateful operation waits for its inputs only.
bool NeverWaits(absl::string_view op) {
  return Holds(Fact::STATE, op) ||
         std::any_of(std::begin(kFacts), std::end(kFacts), [op](const auto& known) {
           return known.first == Fact::STATE_PREFIX && absl::StartsWith(op, known.second);
         });
}

bool Blocks(const Node& node) {
  const std::string& op = node.type_string();
  return Holds(Fact::WAITS, op) || (node.op_def().is_stateful() && !NeverWaits(op));
}

bool IsFree(const Node& node) {
  return Holds(Fact::FREE, node.type_string()) || !FedTensor(node).empty();
}

// The tasks and devices that a graph's device names mean.
class Devices {
 public:
  struct Device {
    uint32_t task = kNoTask;
    std::string suffix;  // for the names of edges to it
  };

  const Device& Of(const Node& node) {
    // Names are interned: equal names have equal indices.
    auto [found, is_new] = devices_.try_emplace(node.assigned_device_name_index());
    if (is_new) found->second = Parse(node.assigned_device_name());
    return found->second;
  }

 private:
  Device Parse(const std::string& name) {
    const std::string task = TaskOfDevice(name);
    if (task.empty()) return {};
    Device device;
    device.task = tasks_.try_emplace(task, tasks_.size() + 1).first->second;
    const size_t begin = name.find("/device:");
    const absl::string_view local =
        begin == std::string::npos ? "" : absl::string_view(name).substr(begin + 1);
    if (!local.empty() && local != "device:CPU:0") device.suffix = absl::StrCat("@", local);
    return device;
  }

  absl::flat_hash_map<int, Device> devices_;
  absl::flat_hash_map<std::string, uint32_t> tasks_;
};

bool Repeats(const Node& node, const ControlFlowInfo& info) {
  // An Exit's output belongs to the enclosing loop, if there is one.
  const Node* frame = node.IsExit() ? info.parent_frame : info.frame;
  return frame != nullptr && frame->IsOp();
}

std::vector<RemoteEdge> CollectEdges(const Graph& graph, const std::vector<ControlFlowInfo>& frames,
                                     Devices* devices) {
  std::vector<RemoteEdge> edges;
  for (Node* producer : graph.op_nodes()) {
    const uint32_t source = devices->Of(*producer).task;
    std::map<std::pair<int, std::string>, RemoteEdge> made;  // by output and device
    for (const Edge* edge : producer->out_edges()) {
      Node* consumer = edge->dst();
      if (edge->IsControlEdge() || !consumer->IsOp()) continue;
      const Devices::Device& device = devices->Of(*consumer);
      if (source == kNoTask || device.task == kNoTask || device.task == source) continue;
      const std::string& recv_device = consumer->assigned_device_name();
      auto [found, is_new] = made.try_emplace({edge->src_output(), recv_device});
      RemoteEdge& remote = found->second;
      if (is_new) {
        const std::string fed = FedTensor(*producer);
        remote.producer = producer;
        remote.output = edge->src_output();
        remote.name = absl::StrCat(
            fed.empty() ? absl::StrCat(producer->name(), ":", remote.output) : fed, device.suffix);
        remote.recv_device = recv_device;
        remote.source = source;
        remote.destination = device.task;
        remote.in_loop = Repeats(*producer, frames[producer->id()]);
        remote.order = {-1, 0, INT32_MAX, 0};
      }
      remote.consumers.emplace_back(consumer, edge->dst_input());
    }
    for (auto& [key, remote] : made) edges.push_back(std::move(remote));
  }
  return edges;
}

// Fills in the orders. Nodes keep their ids in the graph.
absl::Status FindOrders(const Graph& graph, const std::vector<ControlFlowInfo>& frames,
                        Devices* devices, std::vector<RemoteEdge>* edges) {
  // Source, sink and removed nodes have no arcs.
  std::vector<rdt_plan_node> nodes(graph.num_node_ids(), rdt_plan_node{kNoTask, 0});
  std::vector<rdt_plan_arc> arcs;
  arcs.reserve(graph.num_edges());
  for (const Node* node : graph.op_nodes()) {
    const Node* frame = frames[node->id()].frame;
    nodes[node->id()].task = devices->Of(*node).task;
    nodes[node->id()].flags = (frame != nullptr && frame->IsOp() ? RDT_NODE_LOOP : 0) |
                              (Blocks(*node) ? RDT_NODE_BLOCKS : 0) |
                              (IsFree(*node) ? RDT_NODE_FREE : 0) |
                              (node->IsMerge() ? RDT_NODE_ANY : 0) |
                              (Holds(Fact::BRANCH, node->type_string()) ? RDT_NODE_BRANCH : 0);
    if (node->IsNextIteration()) continue;  // its arcs close loops
    for (const Edge* edge : node->out_edges()) {
      if (edge->dst()->IsOp()) {
        arcs.push_back(
            {static_cast<uint32_t>(node->id()), static_cast<uint32_t>(edge->dst()->id())});
      }
    }
  }
  size_t consumer_count = 0;
  for (const RemoteEdge& edge : *edges) consumer_count += edge.consumers.size();
  std::vector<uint32_t> consumers;
  consumers.reserve(consumer_count);  // `uses` points into it
  std::vector<rdt_plan_use> uses;
  for (const RemoteEdge& edge : *edges) {
    uses.push_back({static_cast<uint32_t>(edge.producer->id()), consumers.data() + consumers.size(),
                    edge.consumers.size()});
    for (const auto& [consumer, input] : edge.consumers) consumers.push_back(consumer->id());
  }
  std::vector<rdt_plan_order> orders(uses.size());
  if (rdt_plan_find_order(nodes.data(), nodes.size(), arcs.data(), arcs.size(), uses.data(),
                          uses.size(), orders.data()) != RDT_OK) {
    return absl::InternalError(rdt_last_error());
  }
  for (size_t i = 0; i < orders.size(); ++i) (*edges)[i].order = orders[i];
  return absl::OkStatus();
}

}  // namespace

std::string TaskOfDevice(absl::string_view device) {
  tensorflow::DeviceNameUtils::ParsedName name;
  if (!tensorflow::DeviceNameUtils::ParseFullName(device, &name) || !name.has_job ||
      !name.has_task) {
    return "";
  }
  return absl::StrCat("/job:", name.job, "/replica:", name.replica, "/task:", name.task);
}

bool SpansTasks(const Graph& graph) {
  absl::flat_hash_set<int> seen;  // numbers of device names
  std::string first;
  for (const Node* node : graph.op_nodes()) {
    if (!seen.insert(node->assigned_device_name_index()).second) continue;
    const std::string task = TaskOfDevice(node->assigned_device_name());
    if (!task.empty() && !first.empty() && task != first) return true;
    if (first.empty()) first = task;
  }
  return false;
}

absl::StatusOr<std::vector<RemoteEdge>> FindRemoteEdges(const Graph& graph) {
  std::vector<ControlFlowInfo> frames;
  std::vector<std::string> unreachable;  // without this argument such nodes are an error
  absl::Status status = BuildControlFlowInfo(&graph, &frames, &unreachable);
  if (!status.ok()) return status;
  Devices devices;
  std::vector<RemoteEdge> edges = CollectEdges(graph, frames, &devices);
  if (!edges.empty()) status = FindOrders(graph, frames, &devices, &edges);
  if (!status.ok()) return status;
  return edges;
}

}  // namespace rdmatensor
