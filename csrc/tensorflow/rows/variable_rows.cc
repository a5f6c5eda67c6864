// SPDX-License-Identifier: Apache-2.0
//
// The kernels that read rows of a variable (ResourceGather), and that add to them, subtract from them and replace them
// (ResourceScatter...).
#include <cstring>
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
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename Id>
class GatherRows : public RowKernel {
 public:
  GatherRows(OpKernelConstruction* construction, std::unique_ptr<OpKernel> stock)
      : RowKernel(construction, std::move(stock)) {
    OP_REQUIRES_OK(construction, construction->GetAttr("batch_dims", &batch_dims_));
  }

 protected:
  int64_t ComputeRows(OpKernelContext* context) override {
    const Variable variable = VariableOf(context, 0);
    if (variable == nullptr || batch_dims_ != 0) return kLeft;
    tensorflow::tf_shared_lock lock(*variable->mu());
    if (!HasRows(variable.get())) return kLeft;
    const Tensor& table = *variable->tensor();
    const std::vector<Id> ids = IdsIn<Id>(context->input(1), table.dim_size(0));
    if (ids.empty()) return kLeft;
    Tensor* output = nullptr;
    const absl::Status status =
        context->allocate_output(0, ShapeOfRows(context->input(1), table), &output);
    if (!status.ok()) {
      context->SetStatus(status);
      return 0;
    }
    const int64_t width = table.NumElements() / table.dim_size(0);
    const int64_t bytes = width * static_cast<int64_t>(sizeof(float));
    const float* const rows = table.flat<float>().data();
    float* const to = output->flat<float>().data();
    const auto row_of = [&](int64_t i) { return rows + ids[static_cast<size_t>(i)] * width; };
    const auto count = static_cast<int64_t>(ids.size());
    tensorflow::Shard(ThreadsFor(context, count * bytes),
                      context->device()->tensorflow_cpu_worker_threads()->workers, count, bytes,
                      [&](int64_t i, int64_t end) {
                        for (; i < end; ++i) {
                          if (i + kAhead < end) Prefetch<0>(row_of(i + kAhead), bytes);
                          std::memcpy(to + i * width, row_of(i), static_cast<size_t>(bytes));
                        }
                      });
    return count;
  }

 private:
  int batch_dims_ = 0;
};

using ChangeRow = void (*)(float* row, const float* values, int64_t width);

void ReplaceRow(float* row, const float* values, int64_t width) {
  std::memcpy(row, values, static_cast<size_t>(width) * sizeof(float));
}

template <typename Id, ChangeRow change>
class ScatterRows : public RowKernel {
 public:
  using RowKernel::RowKernel;

 protected:
  int64_t ComputeRows(OpKernelContext* context) override {
    const Variable variable = VariableOf(context, 0);
    if (variable == nullptr) return kLeft;
    tensorflow::tf_shared_lock lock(*variable->mu());
    if (!HasRows(variable.get())) return kLeft;
    Tensor* const table = variable->tensor();
    const Tensor& updates = context->input(2);
    if (updates.shape() != ShapeOfRows(context->input(1), *table)) return kLeft;
    const std::vector<Id> ids = IdsIn<Id>(context->input(1), table->dim_size(0));
    if (ids.empty()) return kLeft;
    const int64_t width = table->NumElements() / table->dim_size(0);
    const int64_t bytes = width * static_cast<int64_t>(sizeof(float));
    float* const rows = table->flat<float>().data();
    const float* const values = updates.flat<float>().data();
    EachByOwner(
        context, ids, bytes,
        [&](size_t i) {
          Prefetch<1>(rows + ids[i] * width, bytes);
          Prefetch<0>(values + static_cast<int64_t>(i) * width, bytes);
        },
        [&](size_t i) {
          change(rows + ids[i] * width, values + static_cast<int64_t>(i) * width, width);
        });
    return static_cast<int64_t>(ids.size());
  }
};

template <ChangeRow change>
constexpr RowOperation::Make kScatter =
    MakeRowKernel<ScatterRows<int32_t, change>, ScatterRows<int64_t, change>>;

}  // namespace

const std::vector<RowOperation>& ReadsAndScatters() {
  static const auto* const operations = new std::vector<RowOperation>{
      {"ResourceGather", "dtype", MakeRowKernel<GatherRows<int32_t>, GatherRows<int64_t>>},
      {"ResourceScatterAdd", "dtype", kScatter<AddToRow>},
      {"ResourceScatterSub", "dtype", kScatter<SubtractFromRow>},
      {"ResourceScatterUpdate", "dtype", kScatter<ReplaceRow>},
  };
  return *operations;
}

}  // namespace rdmatensor
