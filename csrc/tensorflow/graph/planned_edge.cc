// SPDX-License-Identifier: Apache-2.0
#include "graph/planned_edge.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/plan_attributes.h"
#include "graph/ref_variables.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"

namespace rdmatensor {
namespace {

// The task in a device's full name, spelled as servers name themselves.
absl::string_view TaskOf(absl::string_view device) {
  return device.substr(0, device.rfind("/device:"));
}

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

bool EdgeDefinition::Read(tensorflow::OpKernelConstruction* context) {
  // Most nodes have no plan, and GetAttr would make an error for each missing attribute.
  if (!context->HasAttr(kPlanGraphAttr)) return false;
  std::string send_device, receive_device, tensor_name;
  int64_t incarnation = 0;
  std::vector<int32_t> ordering;
  tensorflow::TensorShapeProto described;
  const bool found = context->GetAttr(kPlanGraphAttr, &graph).ok() &&
                     context->GetAttr(kPlanEdgeAttr, &name).ok() &&
                     context->GetAttr(kPlanShapeAttr, &described).ok() &&
                     context->GetAttr(kPlanOrderAttr, &ordering).ok() &&
                     context->GetAttr(kPlanCountAttr, &count).ok() &&
                     context->GetAttr("send_device", &send_device).ok() &&
                     context->GetAttr("recv_device", &receive_device).ok() &&
                     context->GetAttr("send_device_incarnation", &incarnation).ok() &&
                     context->GetAttr("tensor_name", &tensor_name).ok() && ordering.size() == 4;
  // Another process may have made the node, so its contents must not trigger assertions.
  if (!found || !tensorflow::PartialTensorShape::BuildPartialTensorShape(described, &shape).ok()) {
    return false;
  }
  if (!context->GetAttr("T", &dtype).ok() && !context->GetAttr("tensor_type", &dtype).ok()) {
    return false;
  }
  dtype = tensorflow::BaseType(dtype);
  source = std::string(TaskOf(send_device));
  destination = std::string(TaskOf(receive_device));
  source_incarnation = static_cast<uint64_t>(incarnation);
  order = {ordering[0], ordering[1], ordering[2]};
  in_loop = ordering[3] != 0;
  key_prefix = absl::StrFormat("%s;%016x;%s;%s", send_device, static_cast<uint64_t>(incarnation),
                               receive_device, tensor_name);
  key = KeyId::OfPrefix(key_prefix);
  may_change = MayChangeInPlace(SpellKey(key_prefix, {0, 0}));
  return source != destination;
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
