// SPDX-License-Identifier: Apache-2.0
#include "graph/fusion.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/planned_edge.h"
#include "graph/ref_variables.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/node_builder.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdmatensor {
namespace {

using tensorflow::AttrValue;
using tensorflow::DataType;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::NodeBuilder;

// Stateful, so that no optimiser merges, folds or removes them. Communication, so that TensorFlow leaves the kind of
// their errors as it is.
#define RDMATENSOR_TRANSFER_ATTRIBUTES      \
  Attr("T: list(type) >= 1")                \
      .Attr("tensor_names: list(string)")   \
      .Attr("send_device: string")          \
      .Attr("send_device_incarnation: int") \
      .Attr("recv_device: string")          \
      .SetIsStateful()                      \
      .SetIsDistributedCommunication()      \
      .SetShapeFn(tensorflow::shape_inference::UnknownShape)
REGISTER_OP("_RdmaSend").Input("tensors: T").RDMATENSOR_TRANSFER_ATTRIBUTES;
REGISTER_OP("_RdmaReceive").Output("received: variant").RDMATENSOR_TRANSFER_ATTRIBUTES;
#undef RDMATENSOR_TRANSFER_ATTRIBUTES
REGISTER_OP("_RdmaUnpack")
    .Input("received: variant")
    .Output("tensors: T")
    .Attr("T: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

// A _Send or _Recv that may be replaced.
struct Member {
  Node* node;
  std::string edge, tensor_name;
  DataType type;
};

// What the members of an operation have in common.
struct Batch {
  bool sends = false;
  int64_t graph = 0, incarnation = 0, operation = -1, count = 0;
  std::string send_device, recv_device;

  bool operator<(const Batch& other) const {
    const auto key = [](const Batch& batch) {
      return std::tie(batch.sends, batch.graph, batch.incarnation, batch.operation, batch.count,
                      batch.send_device, batch.recv_device);
    };
    return key(*this) < key(other);
  }
};

bool IsCpu(const std::string& device) {
  tensorflow::DeviceNameUtils::ParsedName name;
  return tensorflow::DeviceNameUtils::ParseFullName(device, &name) && name.type == "CPU";
}

// Whether the node's edges are those that partitioning gives it, so that they can be moved to another node.
bool HasPlainEdges(const Node& node) {
  for (const Edge* edge : node.in_edges()) {
    if (edge->src()->IsSource()) continue;
    if (edge->IsControlEdge() || !node.IsSend() ||
        tensorflow::IsRefType(edge->src()->output_type(edge->src_output()))) {
      return false;
    }
  }
  for (const Edge* edge : node.out_edges()) {
    if (node.IsSend() && !edge->dst()->IsSink()) return false;
  }
  return true;
}

// False unless the planner wants the node to share an operation.
bool Read(Node* node, Batch* batch, Member* member) {
  if (!node->IsSend() && !node->IsRecv()) return false;
  const AttrValue* const order = node->attrs().Find(kPlanOrderAttr);
  // The graph may come from another process, so its attributes are checked.
  if (order == nullptr || order->list().i_size() != kPlanOrderSize ||
      order->list().i(kPlanOperation) < 0) {
    return false;
  }
  const tensorflow::AttrSlice attributes = node->attrs();
  bool by_call_frame = false;
  batch->sends = node->IsSend();
  batch->operation = order->list().i(kPlanOperation);
  member->node = node;
  if (!GetNodeAttr(attributes, kPlanGraphAttr, &batch->graph).ok() ||
      !GetNodeAttr(attributes, kPlanCountAttr, &batch->count).ok() ||
      !GetNodeAttr(attributes, "send_device", &batch->send_device).ok() ||
      !GetNodeAttr(attributes, "recv_device", &batch->recv_device).ok() ||
      !GetNodeAttr(attributes, "send_device_incarnation", &batch->incarnation).ok() ||
      !GetNodeAttr(attributes, "tensor_name", &member->tensor_name).ok() ||
      !GetNodeAttr(attributes, kPlanEdgeAttr, &member->edge).ok() ||
      !GetNodeAttr(attributes, batch->sends ? "T" : "tensor_type", &member->type).ok() ||
      attributes.Find(kPlanShapeAttr) == nullptr ||
      (TryGetNodeAttr(attributes, "_hostmem_sendrecv", &by_call_frame) && by_call_frame)) {
    return false;
  }
  // A send that waits would read a reference variable later than TensorFlow does.
  const std::string key = KeyPrefix(batch->send_device, static_cast<uint64_t>(batch->incarnation),
                                    batch->recv_device, member->tensor_name);
  return IsCpu(batch->send_device) && IsCpu(batch->recv_device) && HasPlainEdges(*node) &&
         !MayChangeInPlace(SpellKey(key, {0, 0}));
}

// Adds what the kernels of both fused operations read.
void Describe(const Batch& batch, const std::vector<Member>& members, NodeBuilder* builder) {
  std::vector<DataType> types;
  std::vector<std::string> names, edges;
  AttrValue shapes, orders;
  for (const Member& member : members) {
    types.push_back(member.type);
    names.push_back(member.tensor_name);
    edges.push_back(member.edge);
    const tensorflow::AttrSlice attributes = member.node->attrs();
    *shapes.mutable_list()->add_shape() = attributes.Find(kPlanShapeAttr)->shape();
    orders.mutable_list()->mutable_i()->MergeFrom(attributes.Find(kPlanOrderAttr)->list().i());
  }
  builder->Attr("T", types)
      .Attr("tensor_names", names)
      .Attr("send_device", batch.send_device)
      .Attr("send_device_incarnation", batch.incarnation)
      .Attr("recv_device", batch.recv_device)
      .Attr(kPlanGraphAttr, batch.graph)
      .Attr(kPlanCountAttr, batch.count)
      .Attr(kPlanEdgeAttr, edges)
      .Attr(kPlanShapeAttr, shapes)
      .Attr(kPlanOrderAttr, orders);
}

// TensorFlow keeps the kernels of a session's stateful nodes by name, so the name must be unique in all its graphs.
NodeBuilder Builder(Graph* graph, const char* op, const Batch& batch, const Node& like) {
  const std::string name = absl::StrFormat("rdmatensor/%s_%016x_%d", op + 1,
                                           static_cast<uint64_t>(batch.graph), batch.operation);
  NodeBuilder builder(graph->NewName(name), op, graph->op_registry());
  builder.Device(like.requested_device()).AssignedDevice(like.assigned_device_name());
  return builder;
}

absl::Status FuseSends(Graph* graph, const Batch& batch, const std::vector<Member>& members) {
  std::vector<NodeBuilder::NodeOut> inputs;
  for (const Member& member : members) {
    const Edge* edge = nullptr;
    const absl::Status found = member.node->input_edge(0, &edge);
    if (!found.ok()) return found;
    inputs.emplace_back(edge->src(), edge->src_output());
  }
  NodeBuilder builder = Builder(graph, kFusedSendOp, batch, *members.front().node);
  builder.Input(inputs);
  Describe(batch, members, &builder);
  Node* fused = nullptr;
  return builder.Finalize(graph, &fused);
}

absl::Status FuseReceives(Graph* graph, const Batch& batch, const std::vector<Member>& members) {
  NodeBuilder builder = Builder(graph, kFusedReceiveOp, batch, *members.front().node);
  Describe(batch, members, &builder);
  Node *receive = nullptr, *unpack = nullptr;
  absl::Status status = builder.Finalize(graph, &receive);
  if (!status.ok()) return status;
  std::vector<DataType> types;
  for (const Member& member : members) types.push_back(member.type);
  status = Builder(graph, kUnpackOp, batch, *members.front().node)
               .Input(receive)
               .Attr("T", types)
               .Finalize(graph, &unpack);
  if (!status.ok()) {
    graph->RemoveNode(receive);
    return status;
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const auto& out = members[i].node->out_edges();
    for (const Edge* edge : std::vector<const Edge*>(out.begin(), out.end())) {
      if (edge->dst()->IsSink()) continue;
      if (edge->IsControlEdge()) {
        graph->AddControlEdge(unpack, edge->dst());
        continue;
      }
      // The edge exists, so this cannot fail.
      (void)graph->UpdateEdge(unpack, static_cast<int>(i), edge->dst(), edge->dst_input());
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<rdt_plan_fusion> FindOperations(
    const std::vector<RemoteEdge>& edges, const std::vector<tensorflow::TensorShapeProto>& shapes) {
  std::vector<rdt_plan_fusion> fusions(edges.size(), {-1, RDT_PLAN_ALONE_OFF});
  std::vector<EdgeDefinition> definitions(edges.size());
  std::vector<std::vector<int64_t>> dims(edges.size());
  std::vector<rdt_plan_edge> described;
  // Numbered by name, as in the graph analyzer, so that operations have the same numbers there.
  std::map<std::string, uint32_t> devices;
  for (const RemoteEdge& edge : edges) {
    devices[edge.producer->assigned_device_name()] = devices[edge.recv_device] = 0;
  }
  uint32_t number = 0;
  for (auto& [name, device] : devices) device = number++;
  for (size_t i = 0; i < edges.size(); ++i) {
    EdgeDefinition& definition = definitions[i];
    definition.name = edges[i].name;
    definition.dtype = tensorflow::BaseType(edges[i].producer->output_type(edges[i].output));
    definition.order = edges[i].order;
    definition.in_loop = edges[i].in_loop;
    if (!tensorflow::PartialTensorShape::BuildPartialTensorShape(shapes[i], &definition.shape)
             .ok()) {
      definition.shape = tensorflow::PartialTensorShape();
    }
    described.push_back(Describe(definition, &dims[i]));
    const std::string& source = edges[i].producer->assigned_device_name();
    if (!IsCpu(source) || !IsCpu(edges[i].recv_device)) {
      described.back().flags |= RDT_EDGE_DEVICE_MEMORY;
    }
    described.back().source = devices[source];
    described.back().destination = devices[edges[i].recv_device];
  }
  rdt_plan_options options{};
  options.struct_size = sizeof options;
  options.slots = options.loop_slots = 1;  // of no meaning here
  (void)rdt_config_get_u64("FUSE_BYTES", &options.fuse_bytes);
  if (rdt_plan_fuse(described.data(), described.size(), &options, fusions.data()) != RDT_OK) {
    rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("plan: nothing is fused: ", rdt_last_error()).c_str());
    std::fill(fusions.begin(), fusions.end(), rdt_plan_fusion{-1, RDT_PLAN_ALONE_OFF});
  }
  return fusions;
}

void FuseTransfers(Graph* graph) {
  std::map<Batch, std::vector<Member>> operations;
  for (Node* node : graph->op_nodes()) {
    Batch batch;
    Member member;
    if (Read(node, &batch, &member)) operations[std::move(batch)].push_back(std::move(member));
  }
  bool changed = false;
  for (auto& [batch, members] : operations) {
    if (members.size() < 2) continue;
    // In the planner's order, in which the members of a group are neighbours.
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.edge < b.edge; });
    const absl::Status status =
        batch.sends ? FuseSends(graph, batch, members) : FuseReceives(graph, batch, members);
    if (!status.ok()) {
      rdt_log_line(
          RDT_LOG_DEBUG,
          absl::StrCat("plan: ", members.size(), " operations stay: ", status.message()).c_str());
      continue;
    }
    changed = true;
    for (const Member& member : members) graph->RemoveNode(member.node);
    rdt_log_line(
        RDT_LOG_DEBUG,
        absl::StrCat("plan: one operation ", batch.sends ? "sends " : "receives ", members.size(),
                     " tensors from ", batch.send_device, " to ", batch.recv_device)
            .c_str());
  }
  if (changed) tensorflow::FixupSourceAndSinkEdges(graph);
}

}  // namespace rdmatensor
