// SPDX-License-Identifier: Apache-2.0
//
// The kernels that read, add up and update rows of tables. Only rows that are named are touched.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/row_groups.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/util/work_sharder.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using Variable = tensorflow::core::RefCountPtr<Var>;

// Handing work to another thread pays above so many nanoseconds (Shard); a number of a row takes about as many.
constexpr int64_t kCostOfNumber = 1;

// Calls `work` with ranges of [0, count), on up to `threads` threads; 0 means as many as TensorFlow has.
void InParallel(OpKernelContext* context, int64_t threads, int64_t count, int64_t cost,
                const std::function<void(int64_t, int64_t)>& work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  const int64_t most = threads == 0 ? workers.num_threads : threads;
  tensorflow::Shard(static_cast<int>(std::min<int64_t>(most, workers.num_threads)), workers.workers,
                    count, cost, work);
}

// A table: rows of `width` numbers.
absl::Status CheckTable(const Tensor& table, const std::string& name) {
  if (table.dtype() == tensorflow::DT_FLOAT && table.dims() == 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rdmatensor: ", name, " has to be a matrix of float32, not ", table.DebugString(0)));
}

template <typename T>
class ReadRowsKernel : public tensorflow::OpKernel {
 public:
  explicit ReadRowsKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("threads", &threads_));
  }

  void Compute(OpKernelContext* context) override {
    Variable variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(
                                context, tensorflow::HandleFromInput(context, 0), &variable));
    const auto rows = context->input(1).flat<int32_t>();
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    OP_REQUIRES_OK(context, CheckTable(table, "the table"));
    const int64_t width = table.dim_size(1), limit = table.dim_size(0);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({rows.size(), width}), &output));
    for (int64_t i = 0; i < rows.size(); ++i) {
      OP_REQUIRES(context, rows(i) < limit,
                  absl::InvalidArgumentError(absl::StrCat("rdmatensor: row ", rows(i),
                                                          " of a table with ", limit, " rows")));
    }
    const float* const from = table.flat<float>().data();
    T* const to = output->flat<T>().data();
    InParallel(context, threads_, rows.size(), width * kCostOfNumber, [&](int64_t i, int64_t end) {
      for (; i < end; ++i) {
        T* const out = to + i * width;
        if (rows(i) < 0) {
          std::fill_n(out, width, T(0));
          continue;
        }
        const float* const in = from + rows(i) * width;
        for (int64_t k = 0; k < width; ++k) out[k] = static_cast<T>(in[k]);
      }
    });
  }

 private:
  int64_t threads_ = 0;
};

// Groups equal rows; negative ones are left out.
absl::Status Group(const Tensor& rows, const Tensor& values, int64_t limit, RowGroups* groups) {
  if (rows.dims() != 1 || values.dims() != 2 || rows.dim_size(0) != values.dim_size(0)) {
    return absl::InvalidArgumentError(absl::StrCat("rdmatensor: ", rows.shape().DebugString(),
                                                   " rows for values of shape ",
                                                   values.shape().DebugString()));
  }
  const auto row = rows.flat<int32_t>();
  for (int64_t i = 0; i < row.size(); ++i) {
    if (row(i) >= limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("rdmatensor: row ", row(i), " of a table with ", limit, " rows"));
    }
    if (row(i) >= 0) groups->Add(static_cast<int32_t>(i), row(i));
  }
  return absl::OkStatus();
}

// The sum of a group's values. It lies in `values` if there is only one, else in `sum`.
const float* SumOf(const RowGroups& groups, int64_t group, const float* values, int64_t width,
                   float* sum) {
  int32_t element = groups.First(group);
  const float* const first = values + element * width;
  element = groups.Next(element);
  if (element < 0) return first;
  std::copy_n(first, width, sum);
  for (; element >= 0; element = groups.Next(element)) {
    const float* const value = values + element * width;
    for (int64_t k = 0; k < width; ++k) sum[k] += value[k];
  }
  return sum;
}

class SumRowsKernel : public tensorflow::OpKernel {
 public:
  explicit SumRowsKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &limit_));
    OP_REQUIRES_OK(construction, construction->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &rows = context->input(0), &values = context->input(1);
    RowGroups groups(rows.NumElements());
    OP_REQUIRES_OK(context, Group(rows, values, limit_, &groups));
    const int64_t width = values.dim_size(1);
    Tensor *out_rows = nullptr, *out_values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({groups.size()}), &out_rows));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, TensorShape({groups.size(), width}), &out_values));
    const float* const from = values.flat<float>().data();
    float* const to = out_values->flat<float>().data();
    InParallel(context, 0, groups.size(), width * kCostOfNumber, [&](int64_t g, int64_t end) {
      for (; g < end; ++g) {
        out_rows->flat<int32_t>()(g) = groups.row(g);
        float* const out = to + g * width;
        const float* const sum = SumOf(groups, g, from, width, out);
        for (int64_t k = 0; k < width; ++k) out[k] = sum[k] * scale_;
      }
    });
  }

 private:
  int64_t limit_ = 0;
  float scale_ = 1;
};

// TensorFlow's UnsortedSegmentSum does the same, and takes several times as long.
class SumAtKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &places = context->input(1);
    const auto counts = context->input(2).flat<int32_t>();
    OP_REQUIRES(context, counts.size() == 1 && counts(0) >= 0,
                absl::InvalidArgumentError("rdmatensor: the number of sums has to be one number"));
    OP_REQUIRES(
        context,
        values.dims() == 2 && places.dims() == 1 && values.dim_size(0) == places.dim_size(0),
        absl::InvalidArgumentError(absl::StrCat("rdmatensor: ", places.shape().DebugString(),
                                                " positions for values of shape ",
                                                values.shape().DebugString())));
    const int64_t count = counts(0), width = values.dim_size(1);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count, width}), &output));
    const auto place = places.flat<int32_t>();
    const float* in = values.flat<float>().data();
    float* const sums = output->flat<float>().data();
    std::vector<bool> begun(static_cast<size_t>(count));
    for (int64_t i = 0; i < place.size(); ++i, in += width) {
      OP_REQUIRES(context, place(i) >= 0 && place(i) < count,
                  absl::InvalidArgumentError(
                      absl::StrCat("rdmatensor: position ", place(i), " of ", count, " sums")));
      float* const sum = sums + place(i) * width;
      if (begun[static_cast<size_t>(place(i))]) {
        for (int64_t k = 0; k < width; ++k) sum[k] += in[k];
      } else {
        std::copy_n(in, width, sum);
        begun[static_cast<size_t>(place(i))] = true;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (!begun[static_cast<size_t>(i)]) std::fill_n(sums + i * width, width, 0.0F);
    }
  }
};

// How an optimizer changes a row: its numbers, those of its slots, and its gradient.
struct Rates {
  float rate, a, b, epsilon;
};
using Rule = void (*)(const Rates& r, int64_t width, const float* g, float* x, float* const* slots);

void Sgd(const Rates& r, int64_t width, const float* g, float* x, float* const*) {
  for (int64_t k = 0; k < width; ++k) x[k] -= r.rate * g[k];
}

template <bool nesterov>
void Momentum(const Rates& r, int64_t width, const float* g, float* x, float* const* slots) {
  float* const m = slots[0];
  for (int64_t k = 0; k < width; ++k) {
    m[k] = m[k] * r.a - r.rate * g[k];
    x[k] += nesterov ? m[k] * r.a - r.rate * g[k] : m[k];
  }
}

void Adagrad(const Rates& r, int64_t width, const float* g, float* x, float* const* slots) {
  float* const a = slots[0];
  for (int64_t k = 0; k < width; ++k) {
    a[k] += g[k] * g[k];
    x[k] -= r.rate * g[k] / std::sqrt(a[k] + r.epsilon);
  }
}

template <bool amsgrad>
void Adam(const Rates& r, int64_t width, const float* g, float* x, float* const* slots) {
  float *const m = slots[0], *const v = slots[1], *const most = amsgrad ? slots[2] : v;
  for (int64_t k = 0; k < width; ++k) {
    m[k] += (g[k] - m[k]) * (1 - r.a);
    v[k] += (g[k] * g[k] - v[k]) * (1 - r.b);
    if (amsgrad) most[k] = std::max(most[k], v[k]);
    x[k] -= r.rate * m[k] / (std::sqrt(most[k]) + r.epsilon);
  }
}

struct NamedRule {
  const char* name;
  Rule rule;
  size_t slots;
};
constexpr NamedRule kRules[] = {
    {"sgd", Sgd, 0},         {"momentum", Momentum<false>, 1}, {"nesterov", Momentum<true>, 1},
    {"adagrad", Adagrad, 1}, {"adam", Adam<false>, 2},         {"amsgrad", Adam<true>, 3}};

class UpdateRowsKernel : public tensorflow::OpKernel {
 public:
  explicit UpdateRowsKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string rule;
    int64_t slots = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("rule", &rule));
    OP_REQUIRES_OK(construction, construction->GetAttr("N", &slots));
    OP_REQUIRES_OK(construction, construction->GetAttr("threads", &threads_));
    while (rule != rule_->name) ++rule_;  // TensorFlow has checked the name
    OP_REQUIRES(construction, static_cast<size_t>(slots) == rule_->slots,
                absl::InvalidArgumentError(absl::StrCat("rdmatensor: ", rule, " has ", rule_->slots,
                                                        " slots, not ", slots)));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Variable> tables(rule_->slots + 1);
    for (size_t i = 0; i < tables.size(); ++i) {
      OP_REQUIRES_OK(
          context,
          tensorflow::LookupResource(
              context, tensorflow::HandleFromInput(context, static_cast<int>(i)), &tables[i]));
    }
    const int first = static_cast<int>(tables.size());
    const Tensor &rows = context->input(first), &values = context->input(first + 1);
    const auto rates = context->input(first + 2).flat<float>();
    OP_REQUIRES(context, rates.size() == 4,
                absl::InvalidArgumentError("rdmatensor: an update has four rates"));

    // Everybody who locks several variables does it in the order of their locks' addresses.
    std::vector<Var*> order;
    for (const Variable& each : tables) order.push_back(each.get());
    std::sort(order.begin(), order.end(),
              [](Var* a, Var* b) { return std::less<>()(a->mu(), b->mu()); });
    OP_REQUIRES(context, std::adjacent_find(order.begin(), order.end()) == order.end(),
                absl::InvalidArgumentError("rdmatensor: a slot is named twice"));
    std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
    for (Var* each : order) {
      locks.push_back(std::make_unique<tensorflow::mutex_lock>(*each->mu()));
    }
    OP_REQUIRES_OK(context, CheckTable(*tables[0]->tensor(), "the table"));
    const TensorShape& shape = tables[0]->tensor()->shape();
    std::vector<float*> data;
    for (const Variable& each : tables) {
      OP_REQUIRES_OK(context, Own(context, each.get(), shape));
      data.push_back(each->tensor()->flat<float>().data());
    }
    RowGroups groups(rows.NumElements());
    OP_REQUIRES_OK(context, Group(rows, values, shape.dim_size(0), &groups));
    const int64_t width = shape.dim_size(1);
    OP_REQUIRES(
        context, values.dim_size(1) == width,
        absl::InvalidArgumentError(absl::StrCat("rdmatensor: gradients of ", values.dim_size(1),
                                                " numbers for rows of ", width)));
    const Rates r = {rates(0), rates(1), rates(2), rates(3)};
    const float* const from = values.flat<float>().data();
    const int64_t cost = width * kCostOfNumber * static_cast<int64_t>(tables.size());
    InParallel(context, threads_, groups.size(), cost, [&](int64_t g, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(width));
      std::vector<float*> slots(data.size() - 1);
      for (; g < end; ++g) {
        const int64_t at = groups.row(g) * width;
        for (size_t i = 0; i < slots.size(); ++i) slots[i] = data[i + 1] + at;
        rule_->rule(r, width, SumOf(groups, g, from, width, sum.data()), data[0] + at,
                    slots.data());
      }
    });
  }

 private:
  // Makes this the only user of a variable's memory. From then on, TensorFlow copies what it reads as a whole.
  static absl::Status Own(OpKernelContext* context, Var* variable, const TensorShape& shape) {
    Tensor* const tensor = variable->tensor();
    if (tensor->dtype() != tensorflow::DT_FLOAT || tensor->shape() != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("rdmatensor: a slot has to be float32 of shape ", shape.DebugString(),
                       ", not ", tensor->DebugString(0)));
    }
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    if (!tensor->RefCountIsOne()) {
      Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_FLOAT, shape, &copy));
      std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
      *tensor = std::move(copy);
    }
    variable->copy_on_read_mode.store(true);
    return absl::OkStatus();
  }

  const NamedRule* rule_ = kRules;
  int64_t threads_ = 0;
};

#define READ_ROWS(T)                                                                    \
  REGISTER_KERNEL_BUILDER(                                                              \
      Name("RdmatensorReadRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      ReadRowsKernel<T>)
READ_ROWS(float);
READ_ROWS(Eigen::half);
READ_ROWS(tensorflow::bfloat16);
REGISTER_KERNEL_BUILDER(Name("RdmatensorSumRows").Device(tensorflow::DEVICE_CPU), SumRowsKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorSumAt").Device(tensorflow::DEVICE_CPU), SumAtKernel);
REGISTER_KERNEL_BUILDER(Name("RdmatensorUpdateRows").Device(tensorflow::DEVICE_CPU),
                        UpdateRowsKernel);

}  // namespace
}  // namespace rdmatensor
