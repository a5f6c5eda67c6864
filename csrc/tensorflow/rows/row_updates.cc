// SPDX-License-Identifier: Apache-2.0
//
// The kernels by which optimizers change rows of a variable and of its slots (ResourceSparseApply...). A row that is
// named several times is changed several times, in the order of the gradients.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
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

const UpdateRule& RuleOf(const std::string& operation) {
  const auto& rules = UpdateRules();
  return *std::find_if(rules.begin(), rules.end(),
                       [&](const UpdateRule& each) { return operation == each.operation; });
}

template <typename Id>
class UpdateRows : public RowKernel {
 public:
  UpdateRows(OpKernelConstruction* construction, std::unique_ptr<OpKernel> stock)
      : RowKernel(construction, std::move(stock)), rule_(RuleOf(type_string())) {
    OP_REQUIRES_OK(construction, construction->GetAttr("use_locking", &exclusively_));
    if (rule_.flag != nullptr) {
      OP_REQUIRES_OK(construction, construction->GetAttr(rule_.flag, &flag_));
    }
  }

 protected:
  int64_t ComputeRows(OpKernelContext* context) override {
    float numbers[kMostNumbers];
    if (!TakeNumbers(context, numbers)) return kLeft;
    const int count = rule_.slots + 1;
    Variable variables[kMostTables];
    std::vector<tensorflow::Var*> order;
    for (int i = 0; i < count; ++i) {
      variables[i] = VariableOf(context, i);
      if (variables[i] == nullptr) return kLeft;
      order.push_back(variables[i].get());
    }
    // Everybody who locks several variables does it in the order of their locks' addresses.
    std::sort(order.begin(), order.end(), [](tensorflow::Var* a, tensorflow::Var* b) {
      return std::less<>()(a->mu(), b->mu());
    });
    if (std::adjacent_find(order.begin(), order.end()) != order.end()) return kLeft;
    std::optional<tensorflow::mutex_lock> exclusive[kMostTables];
    std::optional<tensorflow::tf_shared_lock> shared[kMostTables];
    for (size_t i = 0; i < order.size(); ++i) {
      if (exclusively_) {
        exclusive[i].emplace(*order[i]->mu());
      } else {
        shared[i].emplace(*order[i]->mu());
      }
    }
    const Tensor& table = *variables[0]->tensor();
    float* tables[kMostTables];
    for (int i = 0; i < count; ++i) {
      Tensor* const each = variables[i]->tensor();
      if (!HasRows(variables[i].get()) || each->shape() != table.shape()) return kLeft;
      tables[i] = each->flat<float>().data();
    }
    const Tensor& gradient = context->input(rule_.gradient);
    const Tensor& which = context->input(rule_.gradient + 1);
    const int64_t width = table.NumElements() / table.dim_size(0);
    // TensorFlow has other formulas for rows of one number.
    if (width == 1 || which.dims() != 1 || gradient.shape() != ShapeOfRows(which, table)) {
      return kLeft;
    }
    const std::vector<Id> ids = IdsIn<Id>(which, table.dim_size(0));
    if (ids.empty()) return kLeft;
    const float* const gradients = gradient.flat<float>().data();
    const int64_t bytes = width * static_cast<int64_t>(sizeof(float));
    EachByOwner(
        context, ids, bytes * count,
        [&](size_t i) {
          for (int each = 0; each < count; ++each) {
            Prefetch<1>(tables[each] + ids[i] * width, bytes);
          }
          Prefetch<0>(gradients + static_cast<int64_t>(i) * width, bytes);
        },
        [&](size_t i) {
          constexpr int64_t kOnStack = 1024;
          float on_stack[kOnStack];
          std::unique_ptr<float[]> on_heap;
          if (width > kOnStack) on_heap = std::make_unique<float[]>(static_cast<size_t>(width));
          float* rows[kMostTables];
          for (int each = 0; each < count; ++each) rows[each] = tables[each] + ids[i] * width;
          rule_.change(numbers, flag_, width, gradients + static_cast<int64_t>(i) * width, rows[0],
                       rows + 1, on_heap != nullptr ? on_heap.get() : on_stack);
        });
    return static_cast<int64_t>(ids.size());
  }

 private:
  static constexpr int kMostTables = kMostSlots + 1;

  // False if the rule does not do this case.
  bool TakeNumbers(OpKernelContext* context, float* numbers) const {
    float* next = numbers;
    for (const int input : rule_.numbers) {
      const Tensor& number = context->input(input);
      if (!tensorflow::TensorShapeUtils::IsScalar(number.shape())) return false;
      *next++ = number.scalar<float>()();
    }
    return rule_.fits == nullptr || rule_.fits(numbers, flag_);
  }

  const UpdateRule& rule_;
  bool flag_ = false, exclusively_ = false;
};

}  // namespace

const std::vector<RowOperation>& Updates() {
  static const auto* const operations = [] {
    auto* const all = new std::vector<RowOperation>;
    for (const UpdateRule& each : UpdateRules()) {
      all->push_back(
          {each.operation, "T", MakeRowKernel<UpdateRows<int32_t>, UpdateRows<int64_t>>});
    }
    return all;
  }();
  return *operations;
}

}  // namespace rdmatensor
