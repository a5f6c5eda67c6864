// SPDX-License-Identifier: Apache-2.0
#include "graph/planned_edge.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/task_name.h"
#include "graph/plan_attributes.h"
#include "graph/ref_variables.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace rdmatensor {
namespace {

uint64_t Mix(uint64_t seed, const tensorflow::FrameAndIter& frame_iter) {
  return absl::HashOf(seed, frame_iter.frame_id, frame_iter.iter_id);
}

}  // namespace

KeyId KeyId::OfPrefix(absl::string_view prefix) {
  return {absl::HashOf(prefix), absl::HashOf(prefix, uint64_t{0x9e3779b97f4a7c15})};
}

KeyId KeyId::At(const tensorflow::FrameAndIter& frame_iter) const {
  if (frame_iter.frame_id == 0 && frame_iter.iter_id == 0) return *this;
  return {Mix(low, frame_iter), Mix(high, frame_iter)};
}

KeyId KeyId::Of(absl::string_view key) {
  const size_t end = key.rfind(';');
  const size_t colon = key.rfind(':');
  tensorflow::FrameAndIter at(0, 0);
  if (end == absl::string_view::npos || colon == absl::string_view::npos || colon < end ||
      !absl::SimpleAtoi(key.substr(end + 1, colon - end - 1), &at.frame_id) ||
      !absl::SimpleAtoi(key.substr(colon + 1), &at.iter_id)) {
    return OfPrefix(key);
  }
  return OfPrefix(key.substr(0, end)).At(at);
}

std::string SpellKey(absl::string_view prefix, const tensorflow::FrameAndIter& frame_iter) {
  return absl::StrCat(prefix, ";", frame_iter.frame_id, ":", frame_iter.iter_id);
}

std::string KeyPrefix(absl::string_view send_device, uint64_t incarnation,
                      absl::string_view receive_device, absl::string_view tensor_name) {
  return absl::StrFormat("%s;%016x;%s;%s", send_device, incarnation, receive_device, tensor_name);
}

struct EdgeDefinition::Common {
  int64_t graph = 0, incarnation = 0;
  int count = 0;
  std::string send_device, receive_device;

  bool Read(tensorflow::OpKernelConstruction* context) {
    return context->GetAttr(kPlanGraphAttr, &graph).ok() &&
           context->GetAttr(kPlanCountAttr, &count).ok() &&
           context->GetAttr("send_device", &send_device).ok() &&
           context->GetAttr("recv_device", &receive_device).ok() &&
           context->GetAttr("send_device_incarnation", &incarnation).ok();
  }
};

bool EdgeDefinition::Fill(const Common& common, const std::string& tensor_name,
                          const tensorflow::TensorShapeProto& described, const int32_t* ordering) {
  // Another process may have made the node, so its contents must not trigger assertions.
  if (!tensorflow::PartialTensorShape::BuildPartialTensorShape(described, &shape).ok()) {
    return false;
  }
  graph = common.graph;
  count = common.count;
  dtype = tensorflow::BaseType(dtype);
  source = std::string(TaskOf(common.send_device));
  destination = std::string(TaskOf(common.receive_device));
  source_incarnation = static_cast<uint64_t>(common.incarnation);
  order = {ordering[0], ordering[1], ordering[2], 0};
  in_loop = ordering[3] != 0;
  fusion.operation = ordering[kPlanOperation];
  fusion.alone = static_cast<rdt_plan_alone>(ordering[kPlanOperation + 1]);
  key_prefix =
      KeyPrefix(common.send_device, source_incarnation, common.receive_device, tensor_name);
  key = KeyId::OfPrefix(key_prefix);
  may_change = MayChangeInPlace(SpellKey(key_prefix, {0, 0}));
  return source != destination;
}

bool EdgeDefinition::Read(tensorflow::OpKernelConstruction* context) {
  // Most nodes have no plan, and GetAttr would make an error for each missing attribute.
  if (!context->HasAttr(kPlanGraphAttr)) return false;
  Common common;
  std::string tensor_name;
  std::vector<int32_t> ordering;
  tensorflow::TensorShapeProto described;
  return common.Read(context) && context->GetAttr(kPlanEdgeAttr, &name).ok() &&
         context->GetAttr(kPlanShapeAttr, &described).ok() &&
         context->GetAttr(kPlanOrderAttr, &ordering).ok() && ordering.size() == kPlanOrderSize &&
         context->GetAttr("tensor_name", &tensor_name).ok() &&
         (context->GetAttr("T", &dtype).ok() || context->GetAttr("tensor_type", &dtype).ok()) &&
         Fill(common, tensor_name, described, ordering.data());
}

std::vector<EdgeDefinition> EdgeDefinition::ReadAll(tensorflow::OpKernelConstruction* context) {
  Common common;
  tensorflow::DataTypeVector dtypes;
  std::vector<std::string> names, tensor_names;
  std::vector<int32_t> orderings;
  std::vector<tensorflow::TensorShapeProto> shapes;
  if (!common.Read(context) || !context->GetAttr("T", &dtypes).ok() ||
      !context->GetAttr("tensor_names", &tensor_names).ok() ||
      !context->GetAttr(kPlanEdgeAttr, &names).ok() ||
      !context->GetAttr(kPlanShapeAttr, &shapes).ok() ||
      !context->GetAttr(kPlanOrderAttr, &orderings).ok() || names.size() != dtypes.size() ||
      tensor_names.size() != dtypes.size() || shapes.size() != dtypes.size() ||
      orderings.size() != dtypes.size() * kPlanOrderSize) {
    return {};
  }
  std::vector<EdgeDefinition> edges(dtypes.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    edges[i].name = names[i];
    edges[i].dtype = dtypes[i];
    edges[i].shares = true;
    if (!edges[i].Fill(common, tensor_names[i], shapes[i], &orderings[i * kPlanOrderSize])) {
      return {};
    }
  }
  return edges;
}

rdt_plan_edge Describe(const EdgeDefinition& edge, std::vector<int64_t>* dims) {
  dims->clear();
  for (int i = 0; i < edge.shape.dims(); ++i) dims->push_back(edge.shape.dim_size(i));
  rdt_plan_edge out{};
  out.name = edge.name.c_str();
  out.dtype = static_cast<uint32_t>(edge.dtype);
  out.element_size = tensorflow::DataTypeCanUseMemcpy(edge.dtype)
                         ? static_cast<uint32_t>(tensorflow::DataTypeSize(edge.dtype))
                         : 0;
  out.rank = edge.shape.dims();
  out.dims = dims->data();
  out.flags = edge.in_loop ? RDT_EDGE_LOOP : 0;
  out.order = edge.order;
  return out;
}

}  // namespace rdmatensor
