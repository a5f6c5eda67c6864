// SPDX-License-Identifier: Apache-2.0
//
// The kernels that make a group, and start operations in it.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/dtypes.h"
#include "ops/group_state.h"
#include "ops/result_buffer.h"
#include "ops/started.h"
#include "ops/state_resource.h"
#include "ops/statistics.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "xla/tsl/profiler/utils/time_utils.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Makes the state of a group: the output, or what the handle that was given has from now on.
class GroupKernel : public tensorflow::OpKernel {
 public:
  explicit GroupKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("device", &device_));
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    OP_REQUIRES_OK(construction, construction->GetAttr("timeout_ms", &timeout_ms_));
  }
  void Compute(OpKernelContext* context) override {
    auto state = std::make_shared<GroupState>(reinterpret_cast<rdt_device*>(device_),
                                              reinterpret_cast<rdt_group*>(group_),
                                              static_cast<int>(timeout_ms_));
    if (context->num_inputs() > 0) {
      OP_REQUIRES_OK(context, ReplaceState(context, state));
    } else {
      SetHandle(context, state);
    }
    ShowStatisticsOf(state);  // where the group was left, its statistics are over
  }

 private:
  int64_t device_ = 0, group_ = 0, timeout_ms_ = 0;
};

class LeaveKernel : public tensorflow::OpKernel {
 public:
  explicit LeaveKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("release", &release_));
  }
  void Compute(OpKernelContext* context) override {
    const auto state = StateOf<GroupState>(context);
    OP_REQUIRES_OK(context, state.status());
    (*state)->Leave();
    if (release_) (*state)->Release();
  }

 private:
  bool release_ = false;
};

template <typename T>
void Scale(const Tensor& from, float by, char* to) {
  const T* const in = static_cast<const T*>(from.data());
  T* const out = reinterpret_cast<T*>(to);
  const int64_t count = from.NumElements();
  if constexpr (sizeof(T) == 8) {
    for (int64_t i = 0; i < count; ++i) out[i] = in[i] * static_cast<double>(by);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = static_cast<T>(static_cast<float>(in[i]) * by);
    }
  }
}

void CopyScaled(const Tensor& from, float by, char* to) {
  if (from.NumElements() == 0) return;
  if (by == 1.0F) {
    std::memcpy(to, from.data(), from.TotalBytes());
    return;
  }
  switch (from.dtype()) {
    case tensorflow::DT_FLOAT:
      return Scale<float>(from, by, to);
    case tensorflow::DT_DOUBLE:
      return Scale<double>(from, by, to);
    case tensorflow::DT_HALF:
      return Scale<Eigen::half>(from, by, to);
    default:
      return Scale<tensorflow::bfloat16>(from, by, to);
  }
}

class StartKernel : public tensorflow::OpKernel {
 public:
  explicit StartKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string kind, reduction;
    int64_t root = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(construction, construction->GetAttr("kind", &kind));
    OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &reduction));
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root));
    OP_REQUIRES_OK(construction, construction->GetAttr("detail", &detail_));
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &count_));
    lines_ = absl::StrSplit(detail_, '\n');
    detail_ = lines_.front();
    lines_.erase(lines_.begin());
    // In the order of their numbers.
    static constexpr const char* kKinds[] = {"all_reduce", "reduce_scatter", "all_gather",
                                             "broadcast",  "all_to_all",     "gather",
                                             "scatter",    "reduce",         "barrier"};
    static_assert(sizeof kKinds / sizeof kKinds[0] == RDT_BARRIER);
    static constexpr const char* kReductions[] = {"sum", "product", "min", "max", "mean"};
    described_.kind = static_cast<rdt_collective_kind>(NumberOf(kind, kKinds));
    described_.op = static_cast<rdt_reduction>(NumberOf(reduction, kReductions));
    described_.dtype = static_cast<rdt_dtype>(CoreDtypeOf(dtype_));
    described_.root = static_cast<uint32_t>(root);
    OP_REQUIRES(construction, scale_ == 1.0F || tensorflow::DataTypeIsFloating(dtype_),
                absl::InvalidArgumentError("only floating point inputs can be scaled"));
  }

  // To hand it to another thread takes longer than most of what follows.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    const auto state = StateOf<GroupState>(context);
    OP_REQUIRES_OK(context, state.status());
    GroupState& group = **state;
    std::vector<const Tensor*> inputs;
    for (int i = 1; i <= count_; ++i) inputs.push_back(&context->input(i));
    const std::string detail = DetailOf(inputs);
    auto started = std::make_shared<Started>(*state, detail_);
    started->called = tsl::profiler::GetCurrentTimeNanos();
    started->dtype = dtype_;
    for (const Tensor* input : inputs) started->bytes += input->TotalBytes();
    rdt_collective collective = described_;
    absl::Status status = UseInPlace(context, &group, started.get(), &collective)
                              ? absl::OkStatus()
                              : Prepare(&group, inputs, started.get(), &collective);
    status =
        status.ok() ? group.Start(started, &collective, detail) : group.Refuse(detail_, status);
    OP_REQUIRES_OK(context, status);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape(), &output));
    output->scalar<tensorflow::Variant>()() = StartedVariant{std::move(started)};
  }

 private:
  template <size_t count>
  static int NumberOf(const std::string& name, const char* const (&names)[count]) {
    size_t number = 0;
    while (number < count && name != names[number]) ++number;  // TensorFlow has checked the name
    return static_cast<int>(number) + 1;
  }

  // Returns the text that members compare. It names each input if there is one line for each.
  std::string DetailOf(absl::Span<const Tensor* const> inputs) const {
    std::string detail = detail_;
    const bool named = lines_.size() == inputs.size();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (named) absl::StrAppend(&detail, "\n", lines_[i]);
      absl::StrAppend(&detail, " ", inputs[i]->shape().DebugString());
    }
    for (size_t i = 0; !named && i < lines_.size(); ++i) absl::StrAppend(&detail, "\n", lines_[i]);
    return detail;
  }

  // Reduces a single tensor where it lies. Puts the result of an all-reduce in its place if nobody else uses the tensor.
  // Other hosts could not write there.
  bool UseInPlace(OpKernelContext* context, GroupState* group, Started* started,
                  rdt_collective* collective) const {
    const bool scatters = collective->kind == RDT_REDUCE_SCATTER;
    if ((!scatters && collective->kind != RDT_ALL_REDUCE) || count_ != 1 || scale_ != 1.0F) {
      return false;
    }
    const Tensor& input = context->input(1);
    if (!input.IsAligned() || input.NumElements() == 0) return false;
    TensorShape shape = input.shape();
    if (scatters) {
      if (shape.dims() == 0 || shape.dim_size(0) % group->size() != 0) return false;
      shape.set_dim(0, shape.dim_size(0) / group->size());
    }
    std::unique_ptr<Tensor> own;
    if (!scatters && group->ReducesInPlace(started->bytes)) {
      // TensorFlow counts what lies on the CPU as its device's memory.
      own =
          context->forward_input(1, OpKernelContext::Params::kNoReservation, dtype_, input.shape(),
                                 tensorflow::DEVICE_MEMORY, tensorflow::AllocatorAttributes());
    }
    const auto operand = std::make_shared<Tensor>(own != nullptr ? *own : input);
    started->input = std::shared_ptr<char>(operand, static_cast<char*>(operand->data()));
    started->output = own != nullptr
                          ? started->input
                          : group->pool().Take(started->bytes / (scatters ? group->size() : 1));
    if (started->output == nullptr) return false;
    started->results.emplace_back(0, std::move(shape));
    collective->input = started->input.get();
    collective->output = started->output.get();
    collective->count = static_cast<uint64_t>(operand->NumElements());
    return true;
  }

  // Finds memory, fills it, and lays out the results.
  absl::Status Prepare(GroupState* group, absl::Span<const Tensor* const> inputs, Started* started,
                       rdt_collective* collective) const {
    if (collective->kind == RDT_BARRIER) return absl::OkStatus();
    if (collective->kind == RDT_ALL_REDUCE || collective->kind == RDT_BROADCAST) {
      return PrepareMany(group, inputs, started, collective);
    }
    if (inputs.size() != 1) return absl::InvalidArgumentError("this operation has one input");
    const Tensor& input = *inputs.front();
    const uint64_t size = group->size();
    const bool gathers = collective->kind == RDT_ALL_GATHER;
    if (input.dims() == 0 && gathers) {
      return absl::InvalidArgumentError(
          "tensors are joined along the first dimension, and a scalar has none: give "
          "tensor[tf.newaxis]");
    }
    if (input.dims() == 0 || (!gathers && input.dim_size(0) % static_cast<int64_t>(size) != 0)) {
      return absl::InvalidArgumentError(absl::StrCat("the first dimension of ",
                                                     input.shape().DebugString(),
                                                     " cannot be cut into ", size, " equal parts"));
    }
    const uint64_t bytes = input.TotalBytes();
    TensorShape shape = input.shape();
    const bool scatters = collective->kind == RDT_REDUCE_SCATTER;
    if (gathers) shape.set_dim(0, shape.dim_size(0) * static_cast<int64_t>(size));
    if (scatters) shape.set_dim(0, shape.dim_size(0) / static_cast<int64_t>(size));
    started->output = group->pool().Take(gathers ? bytes * size : scatters ? bytes / size : bytes);
    started->input = gathers ? started->output : group->pool().Take(bytes);
    if (started->output == nullptr || started->input == nullptr) return NoMemory(bytes);
    char* const place = started->input.get() + (gathers ? bytes * group->rank() : 0);
    CopyScaled(input, scale_, place);
    collective->input = place;
    collective->output = started->output.get();
    collective->count = static_cast<uint64_t>(input.NumElements());
    started->results.emplace_back(0, std::move(shape));
    return absl::OkStatus();
  }

  // Several tensors lie side by side and are one operand.
  absl::Status PrepareMany(GroupState* group, absl::Span<const Tensor* const> inputs,
                           Started* started, rdt_collective* collective) const {
    uint64_t bytes = 0;
    for (const Tensor* input : inputs) {
      started->results.emplace_back(bytes, input->shape());
      bytes += Aligned(input->TotalBytes());
    }
    started->output = group->pool().Take(bytes);
    if (started->output == nullptr) return NoMemory(bytes);
    char* const base = started->output.get();
    const bool given = collective->kind == RDT_ALL_REDUCE || collective->root == group->rank();
    for (size_t i = 0; given && i < inputs.size(); ++i) {
      char* const place = base + started->results[i].first;
      const uint64_t size = inputs[i]->TotalBytes();
      CopyScaled(*inputs[i], scale_, place);
      // What lay here before could be slow to reduce.
      std::memset(place + size, 0, (kAlign - size % kAlign) % kAlign);
    }
    collective->input = collective->output = base;
    collective->count = bytes / static_cast<uint64_t>(tensorflow::DataTypeSize(dtype_));
    return absl::OkStatus();
  }

  static absl::Status NoMemory(uint64_t bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
  }

  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
  int count_ = 0;
  float scale_ = 1;
  std::string detail_;  // its first line
  std::vector<std::string> lines_;
  rdt_collective described_{};
};

REGISTER_KERNEL_BUILDER(Name("RdmatensorGroup").Device(tensorflow::DEVICE_CPU), GroupKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorRejoin").Device(tensorflow::DEVICE_CPU), GroupKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorLeave").Device(tensorflow::DEVICE_CPU), LeaveKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorStart").Device(tensorflow::DEVICE_CPU), StartKernel);

}  // namespace
}  // namespace rdmatensor
