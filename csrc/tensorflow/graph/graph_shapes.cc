// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_shapes.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/graph/algorithm.h"

namespace rdmatensor {
namespace {

using tensorflow::AttrValue;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::PartialTensorShape;
using tensorflow::TensorShapeProto;

// Attributes of consumers of placeholders: the placeholders' names ("x:0") and shapes. They do not have the numbers
// of inputs, because TensorFlow's optimizers may exchange inputs and keep the attributes.
constexpr char kFedAttr[] = "_rdma_fed";
constexpr char kFedShapeAttr[] = "_rdma_fed_shape";

// Shapes of loop variables count as unknown if inference needs more than this many rounds.
constexpr int kMaxRounds = 8;

PartialTensorShape FromProto(const TensorShapeProto& proto) {
  PartialTensorShape shape;
  if (!PartialTensorShape::BuildPartialTensorShape(proto, &shape).ok()) return {};
  return shape;
}

// What is known of a tensor that has one of both shapes.
PartialTensorShape Common(const PartialTensorShape& a, const PartialTensorShape& b) {
  PartialTensorShape common;
  if (a.unknown_rank() || b.unknown_rank() || a.dims() != b.dims()) return common;
  std::vector<int64_t> sizes(a.dims());
  for (int i = 0; i < a.dims(); ++i) {
    sizes[i] = a.dim_size(i) == b.dim_size(i) ? a.dim_size(i) : -1;
  }
  if (!PartialTensorShape::MakePartialShape(sizes.data(), a.dims(), &common).ok()) return {};
  return common;
}

PartialTensorShape KeptShape(const Node& feed, const std::string& tensor) {
  for (const Edge* edge : feed.out_edges()) {
    const AttrValue* names = edge->dst()->attrs().Find(kFedAttr);
    const AttrValue* shapes = edge->dst()->attrs().Find(kFedShapeAttr);
    if (edge->IsControlEdge() || names == nullptr || shapes == nullptr) continue;
    for (int i = 0; i < names->list().s_size() && i < shapes->list().shape_size(); ++i) {
      if (names->list().s(i) == tensor) return FromProto(shapes->list().shape(i));
    }
  }
  return {};
}

// The shape of an argument or feed that the caller is expected to pass; of unknown rank for other nodes.
PartialTensorShape ExpectedShape(const Node& node) {
  if (node.IsArg()) {
    const AttrValue* shapes = node.attrs().Find("_output_shapes");
    if (shapes != nullptr && shapes->list().shape_size() == 1) {
      return FromProto(shapes->list().shape(0));
    }
    return {};
  }
  const std::string tensor = FedTensor(node);
  return tensor.empty() ? PartialTensorShape() : KeptShape(node, tensor);
}

}  // namespace

std::string FedTensor(const Node& node) {
  bool from_client = false;
  std::string name;
  if (!node.IsRecv() || !GetNodeAttr(node.attrs(), "client_terminated", &from_client).ok() ||
      !from_client || !GetNodeAttr(node.attrs(), "tensor_name", &name).ok()) {
    return "";
  }
  return name;
}

void KeepPlaceholderShapes(Graph* graph) {
  for (Node* node : graph->op_nodes()) {
    PartialTensorShape shape;
    if (node->type_string() != "Placeholder" || !GetNodeAttr(node->attrs(), "shape", &shape).ok() ||
        shape.unknown_rank()) {
      continue;
    }
    const std::string tensor = absl::StrCat(node->name(), ":0");
    for (const Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge() || !edge->dst()->IsOp()) continue;
      const AttrValue* known_names = edge->dst()->attrs().Find(kFedAttr);
      const AttrValue* known_shapes = edge->dst()->attrs().Find(kFedShapeAttr);
      AttrValue names = known_names != nullptr ? *known_names : AttrValue();
      AttrValue shapes = known_shapes != nullptr ? *known_shapes : AttrValue();
      names.mutable_list()->add_s(tensor);
      shape.AsProto(shapes.mutable_list()->add_shape());
      edge->dst()->AddAttr(kFedAttr, names);
      edge->dst()->AddAttr(kFedShapeAttr, shapes);
    }
  }
}

GraphShapes::GraphShapes(const Graph& graph, const tensorflow::FunctionLibraryDefinition* library)
    : graph_(graph), library_(library) {
  // Without the arcs that close loops this is an order in which inputs come before their users.
  std::vector<Node*> order;
  GetReversePostOrder(graph, &order, {},
                      [](const Edge& edge) { return !edge.src()->IsNextIteration(); });
  for (const Node* node : order) {
    if (!node->IsMerge()) continue;
    const Edge *enter = nullptr, *next = nullptr;
    for (const Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge()) continue;
      (edge->src()->IsNextIteration() ? next : enter) = edge;
    }
    if (enter != nullptr && next != nullptr) loops_.push_back({node, enter, next, false, {}});
  }
  // A loop variable is assumed to keep the shape with which it enters until inference disproves that. By induction,
  // the assumptions that remain hold for every iteration.
  for (int round = 0; round < kMaxRounds; ++round) {
    Infer(order, Loops::kAssume);
    if (!RelaxAssumptions()) return;
  }
  Infer(order, Loops::kGiveUp);
}

void GraphShapes::Infer(const std::vector<Node*>& order, Loops loops) {
  refiner_ = std::make_unique<tensorflow::ShapeRefiner>(graph_.versions(), graph_.op_registry());
  refiner_->set_require_shape_inference_fns(false);
  refiner_->set_function_library_for_shape_inference(library_);
  auto loop = loops_.begin();  // in the same order
  for (const Node* node : order) {
    const bool begins_loop = loop != loops_.end() && loop->merge == node;
    // A failure leaves only the shapes of this node unknown.
    if (node->IsOp() && refiner_->AddNode(node).ok()) {
      const Edge* input = nullptr;
      if (node->IsEnter() && node->input_edge(0, &input).ok()) {
        // TensorFlow's own inference leaves this shape unknown.
        Refine(*node, Known(*input));
      } else if (begins_loop && loops == Loops::kAssume) {
        Refine(*node,
               loop->relaxed ? Common(Known(*loop->enter), loop->limit) : Known(*loop->enter));
      } else {
        Refine(*node, ExpectedShape(*node));
      }
    }
    if (begins_loop) ++loop;
  }
}

// Weakens the assumptions that did not hold. True if there were any.
bool GraphShapes::RelaxAssumptions() {
  bool any = false;
  for (Loop& loop : loops_) {
    const PartialTensorShape assumed = FromProto(Of(*loop.merge, 0));
    const PartialTensorShape common = Common(assumed, Known(*loop.next));
    if (common.IsIdenticalTo(assumed)) continue;
    loop.relaxed = any = true;
    loop.limit = common;
  }
  return any;
}

// Adds what is known of the first output, unless it contradicts inference.
void GraphShapes::Refine(const Node& node, const PartialTensorShape& shape) {
  tensorflow::shape_inference::InferenceContext* context = refiner_->GetContext(&node);
  tensorflow::shape_inference::ShapeHandle handle;
  if (shape.unknown_rank() || context == nullptr || context->num_outputs() == 0 ||
      !context->MakeShapeFromPartialTensorShape(shape, &handle).ok()) {
    return;
  }
  (void)refiner_->SetShape(&node, 0, handle);
}

TensorShapeProto GraphShapes::Of(const Node& node, int output) const {
  TensorShapeProto proto;
  tensorflow::shape_inference::InferenceContext* context = refiner_->GetContext(&node);
  if (context == nullptr || output < 0 || output >= context->num_outputs()) {
    proto.set_unknown_rank(true);
  } else {
    context->ShapeHandleToProto(context->output(output), &proto);
  }
  return proto;
}

PartialTensorShape GraphShapes::Known(const Edge& edge) const {
  return FromProto(Of(*edge.src(), edge.src_output()));
}

}  // namespace rdmatensor
