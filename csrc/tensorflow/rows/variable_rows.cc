// SPDX-License-Identifier: Apache-2.0
//
// The kernels that read rows of a variable (ResourceGather), and that add to, subtract from and replace them
// (ResourceScatter...).
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rows/by_owner.h"
#include "rows/row_kernel.h"
#include "rows/row_kernels.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The shape of rows of `table` that `ids` name.
TensorShape ShapeOfRows(const Tensor& ids, const Tensor& table) {
  TensorShape shape = ids.shape();
  for (int i = 1; i < table.dims(); ++i) shape.AddDim(table.dim_size(i));
  return shape;
}

template <typename T, typename Id>
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
    if (!HasRows(*variable, tensorflow::DataTypeToEnum<T>::value)) return kLeft;
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
    const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
    const T* const from = table.flat<T>().data();
    T* const to = output->flat<T>().data();
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers.num_threads, workers.workers, static_cast<int64_t>(ids.size()), bytes,
                      [&](int64_t i, int64_t end) {
                        for (; i < end; ++i) {
                          const int64_t next = i + static_cast<int64_t>(kAhead);
                          if (next < end) Prefetch<0>(from + ids[static_cast<size_t>(next)] * width, bytes);
                          std::memcpy(to + i * width, from + ids[static_cast<size_t>(i)] * width,
                                      static_cast<size_t>(bytes));
                        }
                      });
    return static_cast<int64_t>(ids.size());
  }

 private:
  int batch_dims_ = 0;
};

struct Add {
  template <typename T>
  static void Change(T* row, const T* with, int64_t width) {
    for (int64_t k = 0; k < width; ++k) row[k] += with[k];
  }
};
struct Subtract {
  template <typename T>
  static void Change(T* row, const T* with, int64_t width) {
    for (int64_t k = 0; k < width; ++k) row[k] -= with[k];
  }
};
struct Replace {
  template <typename T>
  static void Change(T* row, const T* with, int64_t width) {
    std::memcpy(row, with, static_cast<size_t>(width) * sizeof(T));
  }
};

template <typename T, typename Id, typename Change>
class ScatterRows : public RowKernel {
 public:
  using RowKernel::RowKernel;

 protected:
  int64_t ComputeRows(OpKernelContext* context) override {
    const Variable variable = VariableOf(context, 0);
    if (variable == nullptr) return kLeft;
    tensorflow::tf_shared_lock lock(*variable->mu());
    if (!HasRows(*variable, tensorflow::DataTypeToEnum<T>::value)) return kLeft;
    Tensor* const table = variable->tensor();
    const Tensor& updates = context->input(2);
    if (updates.shape() != ShapeOfRows(context->input(1), *table)) return kLeft;
    const std::vector<Id> ids = IdsIn<Id>(context->input(1), table->dim_size(0));
    if (ids.empty()) return kLeft;
    const int64_t width = table->NumElements() / table->dim_size(0);
    const int64_t bytes = width * static_cast<int64_t>(sizeof(T));
    T* const rows = table->flat<T>().data();
    const T* const with = updates.flat<T>().data();
    EachByOwner(
        context, ids, bytes, [&](size_t i) { Prefetch<1>(rows + ids[i] * width, bytes); },
        [&](size_t i) {
          Change::Change(rows + ids[i] * width, with + static_cast<int64_t>(i) * width, width);
        });
    return static_cast<int64_t>(ids.size());
  }
};

template <typename Change>
constexpr RowOperation::Make kScatter =
    MakeRowKernel<ScatterRows<float, int32_t, Change>, ScatterRows<float, int64_t, Change>>;

}  // namespace

const std::vector<RowOperation>& OperationsOnVariables() {
  static const auto* const operations = new std::vector<RowOperation>{
      {"ResourceGather", "dtype", "Tindices",
       MakeRowKernel<GatherRows<float, int32_t>, GatherRows<float, int64_t>>},
      {"ResourceScatterAdd", "dtype", "Tindices", kScatter<Add>},
      {"ResourceScatterSub", "dtype", "Tindices", kScatter<Subtract>},
      {"ResourceScatterUpdate", "dtype", "Tindices", kScatter<Replace>},
  };
  return *operations;
}

}  // namespace rdmatensor
