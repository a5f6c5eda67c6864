// SPDX-License-Identifier: Apache-2.0
//
// The kernel that adds up the gradients of each row (UnsortedSegmentSum), as optimizers do before they update rows.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "rows/by_owner.h"
#include "rows/row_kernel.h"
#include "rows/row_kernels.h"
#include "rows/rules.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Id>
class SumSegments : public RowKernel {
 public:
  using RowKernel::RowKernel;

 protected:
  int64_t ComputeRows(OpKernelContext* context) override {
    const Tensor &data = context->input(0), &which = context->input(1), &count = context->input(2);
    if (!tensorflow::TensorShapeUtils::IsScalar(count.shape())) return kLeft;
    const int64_t limit = count.dtype() == tensorflow::DT_INT32 ? count.scalar<int32_t>()()
                                                                : count.scalar<int64_t>()();
    // With one dimension the rows are single numbers, for which TensorFlow's kernel is no slower.
    if (which.dims() != 1 || data.dims() < 2 || data.dim_size(0) != which.dim_size(0)) return kLeft;
    const std::vector<Id> ids = IdsIn<Id>(which, limit);
    if (ids.empty()) return kLeft;
    TensorShape shape = data.shape();
    Tensor* output = nullptr;
    absl::Status status = shape.SetDimWithStatus(0, limit);
    if (status.ok()) status = context->allocate_output(0, shape, &output);
    if (!status.ok()) {
      context->SetStatus(status);
      return 0;
    }
    const int64_t width = data.NumElements() / data.dim_size(0);
    const int64_t bytes = width * static_cast<int64_t>(sizeof(float));
    const float* const from = data.flat<float>().data();
    float* const sums = output->flat<float>().data();
    std::fill_n(sums, limit * width, 0.0F);
    EachByOwner(
        context, ids, bytes,
        [&](size_t i) {
          Prefetch<1>(sums + ids[i] * width, bytes);
          Prefetch<0>(from + static_cast<int64_t>(i) * width, bytes);
        },
        [&](size_t i) {
          AddToRow(sums + ids[i] * width, from + static_cast<int64_t>(i) * width, width);
        });
    return static_cast<int64_t>(ids.size());
  }
};

}  // namespace

const std::vector<RowOperation>& Sums() {
  static const auto* const operations = new std::vector<RowOperation>{
      {"UnsortedSegmentSum", "T", MakeRowKernel<SumSegments<int32_t>, SumSegments<int64_t>>}};
  return *operations;
}

}  // namespace rdmatensor
