// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_operation.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/dtypes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {
namespace {

using tensorflow::CollectiveParams;
using tensorflow::Tensor;

// 0 if the core has no such kind.
int KindOf(tensorflow::CollectiveType type) {
  switch (type) {
    case tensorflow::REDUCTION_COLLECTIVE:
      return RDT_ALL_REDUCE;
    case tensorflow::REDUCE_SCATTER_COLLECTIVE:
      return RDT_REDUCE_SCATTER;
    case tensorflow::GATHER_COLLECTIVE:
      return RDT_ALL_GATHER;
    case tensorflow::BROADCAST_COLLECTIVE:
      return RDT_BROADCAST;
    case tensorflow::ALL_TO_ALL_COLLECTIVE:
      return RDT_ALL_TO_ALL;
    default:
      return 0;
  }
}

int DtypeOf(tensorflow::DataType dtype, bool reduces) {
  // One byte, which can be copied but not reduced.
  if (dtype == tensorflow::DT_BOOL) return reduces ? 0 : RDT_UINT8;
  return CoreDtypeOf(dtype);
}

int ReductionOf(const tensorflow::OpKernel* merge_op) {
  if (merge_op == nullptr) return 0;
  const absl::string_view name = merge_op->type_string_view();
  if (name == "Add") return RDT_SUM;
  if (name == "Mul") return RDT_PRODUCT;
  if (name == "Minimum") return RDT_MIN;
  return name == "Maximum" ? RDT_MAX : 0;
}

bool Reduces(tensorflow::CollectiveType type) {
  return type == tensorflow::REDUCTION_COLLECTIVE || type == tensorflow::REDUCE_SCATTER_COLLECTIVE;
}

// A scalar counts as one row.
int64_t Rows(const Tensor& tensor) { return tensor.dims() == 0 ? 1 : tensor.dim_size(0); }

}  // namespace

const char* WhyStock(const CollectiveParams& params, bool nccl) {
  const tensorflow::CollectiveType type = params.instance.type;
  nccl |= params.instance.impl_details.communication_hint == "nccl";
  if (nccl && params.group.device_type == tensorflow::DEVICE_GPU) return "nccl";
  if (KindOf(type) == 0) return "kind";
  if (DtypeOf(params.instance.data_type, Reduces(type)) == 0) return "type";
  if (Reduces(type)) {
    if (ReductionOf(params.merge_op) == 0) return "reduction";
    const tensorflow::OpKernel* const final_op = params.final_op;
    if (final_op != nullptr && final_op->type_string_view() != "Div") return "final operation";
  }
  return WhyStock(params.group);
}

const char* WhyStock(const tensorflow::CollGroupParams& group) {
  // A task with several devices is several members, which meet inside the task.
  if (group.num_tasks != 0 && group.num_tasks != group.group_size) return "devices of one task";
  return group.group_size < 2 ? "one member" : nullptr;
}

rdt_collective_kind KindOf(const CollectiveParams& params) {
  return static_cast<rdt_collective_kind>(KindOf(params.instance.type));
}

absl::Status CheckSizes(const CollectiveParams& params, const Tensor* input, const Tensor& output) {
  const int64_t size = params.group.group_size;
  const tensorflow::CollectiveType type = params.instance.type;
  bool suits = output.dtype() == params.instance.data_type;
  if (input != nullptr) {
    const int64_t elements = input->NumElements();
    suits &= input->dtype() == output.dtype();
    if (type == tensorflow::GATHER_COLLECTIVE) {
      suits &= output.NumElements() == elements * size;
    } else if (type == tensorflow::REDUCE_SCATTER_COLLECTIVE) {
      suits &= Rows(*input) % size == 0 && output.NumElements() * size == elements;
    } else {
      suits &= output.NumElements() == elements;
      if (type == tensorflow::ALL_TO_ALL_COLLECTIVE) suits &= Rows(*input) == size;
    }
  }
  if (suits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      params.name, ": an input of shape ", input ? input->shape().DebugString() : "(none)",
      " does not suit a group of ", size,
      " members: a scattered input needs a first dimension that is a multiple of that"));
}

void Describe(const CollectiveParams& params, const Tensor* input, Tensor* output,
              rdt_collective* collective) {
  collective->struct_size = sizeof *collective;
  collective->kind = KindOf(params);
  collective->dtype =
      static_cast<rdt_dtype>(DtypeOf(output->dtype(), Reduces(params.instance.type)));
  collective->op = static_cast<rdt_reduction>(ReductionOf(params.merge_op));
  collective->algorithm = RDT_ALGORITHM_AUTO;
  collective->root = static_cast<uint32_t>(std::max(params.source_rank, 0));
  // Only the root of a broadcast has an input. The others pass their output.
  const Tensor& counted = input != nullptr ? *input : *output;
  collective->input = counted.data();
  collective->output = output->data();
  collective->count = static_cast<uint64_t>(counted.NumElements());
}

}  // namespace rdmatensor
