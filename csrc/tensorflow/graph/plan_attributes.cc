// SPDX-License-Identifier: Apache-2.0
#include "graph/plan_attributes.h"

#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/attr_value_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rdmatensor {
namespace {

using tensorflow::AttrValue;
using tensorflow::Edge;
using tensorflow::Node;

// Attributes of producers and consumers: parallel lists, of which `order` has kPlanOrderSize numbers for each entry.
struct ListNames {
  const char* index;  // of the output, or input
  const char *edge, *shape, *order;
  const char* device;  // that receives; producers only
};
constexpr ListNames kOut = {"_rdma_out_index", "_rdma_out_edge", "_rdma_out_shape",
                            "_rdma_out_order", "_rdma_out_device"};
constexpr ListNames kIn = {"_rdma_in_index", "_rdma_in_edge", "_rdma_in_shape", "_rdma_in_order",
                           nullptr};
struct Lists {
  AttrValue index, edge, shape, order, device;

  void Add(const RemoteEdge& remote, int at, const tensorflow::TensorShapeProto& known,
           const rdt_plan_fusion& fusion) {
    index.mutable_list()->add_i(at);
    edge.mutable_list()->add_s(remote.name);
    *shape.mutable_list()->add_shape() = known;
    for (int64_t number :
         {int64_t{remote.order.ready}, int64_t{remote.order.first}, int64_t{remote.order.last},
          int64_t{remote.in_loop}, int64_t{fusion.operation}, int64_t{fusion.alone}}) {
      order.mutable_list()->add_i(number);
    }
    device.mutable_list()->add_s(remote.recv_device);
  }

  void Attach(const ListNames& names, int64_t graph, Node* node) const {
    node->AddAttr(kPlanGraphAttr, graph);
    node->AddAttr(names.index, index);
    node->AddAttr(names.edge, edge);
    node->AddAttr(names.shape, shape);
    node->AddAttr(names.order, order);
    if (names.device != nullptr) node->AddAttr(names.device, device);
  }
};

void Detach(Node* node) {
  for (const ListNames& names : {kOut, kIn}) {
    if (node->attrs().Find(names.index) == nullptr) continue;
    for (const char* name : {names.index, names.edge, names.shape, names.order, names.device}) {
      if (name != nullptr) node->ClearAttr(name);
    }
    node->ClearAttr(kPlanGraphAttr);
  }
}

// The marks for a _Send or _Recv.
struct Mark {
  Node* node;
  std::string task, peer;  // at this end and at the other one
  int64_t graph;
  std::string edge;
  AttrValue shape, order;
};

const AttrValue::ListValue& List(const Node& node, const char* name) {
  static const auto* none = new AttrValue::ListValue;
  const AttrValue* value = node.attrs().Find(name);
  return value == nullptr ? *none : value->list();
}

// Reads the entry for input or output `at` of `holder`. Of outputs it reads the entry for `device`.
bool ReadLists(const Node& holder, const ListNames& names, int at, const std::string& device,
               Mark* mark) {
  const auto& indices = List(holder, names.index).i();
  const auto& edges = List(holder, names.edge).s();
  const auto& shapes = List(holder, names.shape).shape();
  const auto& orders = List(holder, names.order).i();
  // The graph may come from another process, so the lists are checked.
  for (int k = 0; k < indices.size(); ++k) {
    if (indices[k] != at || k >= edges.size() || k >= shapes.size() ||
        (k + 1) * kPlanOrderSize > orders.size()) {
      continue;
    }
    if (names.device != nullptr) {
      const auto& devices = List(holder, names.device).s();
      if (k >= devices.size() || devices[k] != device) continue;
    }
    mark->edge = edges[k];
    *mark->shape.mutable_shape() = shapes[k];
    for (int i = 0; i < kPlanOrderSize; ++i) {
      mark->order.mutable_list()->add_i(orders[k * kPlanOrderSize + i]);
    }
    return GetNodeAttr(holder.attrs(), kPlanGraphAttr, &mark->graph).ok();
  }
  return false;
}

// False unless `node` transfers a tensor between tasks that AttachEdges has described.
bool FindMark(Node* node, Mark* mark) {
  std::string send_device, recv_device;
  bool client_terminated = false;
  if (!node->IsSend() && !node->IsRecv()) return false;
  const tensorflow::AttrSlice attributes = node->attrs();
  if (!TryGetNodeAttr(attributes, "send_device", &send_device) ||
      !TryGetNodeAttr(attributes, "recv_device", &recv_device) ||
      (TryGetNodeAttr(attributes, "client_terminated", &client_terminated) && client_terminated)) {
    return false;
  }
  mark->node = node;
  mark->task = TaskOfDevice(node->IsSend() ? send_device : recv_device);
  mark->peer = TaskOfDevice(node->IsSend() ? recv_device : send_device);
  if (mark->task == mark->peer) return false;
  const Edge* sent = nullptr;
  if (node->IsSend()) {
    return node->input_edge(0, &sent).ok() &&
           ReadLists(*sent->src(), kOut, sent->src_output(), recv_device, mark);
  }
  // Every consumer has the attributes, except those that partitioning inserted.
  for (const Edge* edge : node->out_edges()) {
    if (!edge->IsControlEdge() && ReadLists(*edge->dst(), kIn, edge->dst_input(), "", mark)) {
      return true;
    }
  }
  return false;
}

bool DebugEnabled() {
  char level[16] = "";
  return rdt_config_get("LOG_LEVEL", level, sizeof level) == RDT_OK &&
         absl::string_view(level) == "debug";
}

void Describe(const Mark& mark) {
  const bool sends = mark.node->IsSend();
  tensorflow::DataType type = tensorflow::DT_INVALID;
  (void)TryGetNodeAttr(mark.node->attrs(), sends ? "T" : "tensor_type", &type);
  const auto& order = mark.order.list().i();
  const std::string line = absl::StrFormat(
      "plan: graph %016x: %s %s %s %s, %s %s, ready %d, first %d, last %d%s%s",
      static_cast<uint64_t>(mark.graph), mark.task, sends ? "sends" : "receives", mark.edge,
      absl::StrCat(sends ? "to " : "from ", mark.peer), tensorflow::DataTypeString(type),
      tensorflow::PartialTensorShape::DebugString(mark.shape.shape()), order[0], order[1], order[2],
      order[3] != 0 ? ", in a loop" : "",
      order[kPlanOperation] < 0 ? "" : absl::StrCat(", operation ", order[kPlanOperation]));
  rdt_log_line(RDT_LOG_DEBUG, line.c_str());
}

}  // namespace

void AttachEdges(const std::vector<RemoteEdge>& edges,
                 const std::vector<tensorflow::TensorShapeProto>& shapes,
                 const std::vector<rdt_plan_fusion>& fusions, int64_t graph) {
  absl::flat_hash_map<Node*, Lists> out, in;
  for (size_t i = 0; i < edges.size(); ++i) {
    const RemoteEdge& edge = edges[i];
    out[edge.producer].Add(edge, edge.output, shapes[i], fusions[i]);
    for (const auto& [consumer, input] : edge.consumers) {
      in[consumer].Add(edge, input, shapes[i], fusions[i]);
    }
  }
  for (const auto& [node, lists] : out) lists.Attach(kOut, graph, node);
  for (const auto& [node, lists] : in) lists.Attach(kIn, graph, node);
}

void MarkTransfers(Partitions* partitions) {
  std::vector<Mark> marks;
  std::map<std::tuple<int64_t, std::string, bool>, int> counts;  // by graph, task and direction
  for (const auto& [device, partition] : *partitions) {
    for (Node* node : partition->op_nodes()) {
      Mark mark;
      if (!FindMark(node, &mark)) continue;
      ++counts[{mark.graph, mark.task, node->IsSend()}];
      marks.push_back(std::move(mark));
    }
  }
  if (marks.empty()) return;
  const bool describe = DebugEnabled();
  for (const Mark& mark : marks) {
    mark.node->AddAttr(kPlanGraphAttr, mark.graph);
    mark.node->AddAttr(kPlanEdgeAttr, mark.edge);
    mark.node->AddAttr(kPlanShapeAttr, mark.shape);
    mark.node->AddAttr(kPlanOrderAttr, mark.order);
    mark.node->AddAttr(kPlanCountAttr, counts[{mark.graph, mark.task, mark.node->IsSend()}]);
    if (describe) Describe(mark);
  }
  for (const auto& [device, partition] : *partitions) {
    for (Node* node : partition->op_nodes()) Detach(node);
  }
  for (const auto& [key, count] : counts) {
    const auto& [graph, task, sends] = key;
    rdt_log_line(RDT_LOG_DEBUG,
                 absl::StrFormat("plan: graph %016x: %d edges %s %s", static_cast<uint64_t>(graph),
                                 count, sends ? "out of" : "into", task)
                     .c_str());
  }
}

}  // namespace rdmatensor
