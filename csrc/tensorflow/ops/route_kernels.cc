// SPDX-License-Identifier: Apache-2.0
//
// The kernels that prepare a lookup of rows that other members own: who is asked for what.
//
// Row r of a table belongs to member r % owners, whose row r / owners it is.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/row_groups.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdmatensor {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kMostIds = int64_t{1} << 30;

// Sorts the different ids by owner.
template <typename T>
class RouteKernel : public tensorflow::OpKernel {
 public:
  explicit RouteKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owners", &owners_));
    OP_REQUIRES_OK(construction, construction->GetAttr("size", &size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("detail", &detail_));
    OP_REQUIRES(construction, owners_ <= size_ && rows_ <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError("rdmatensor: more owners than members, or 2^31 rows"));
  }

  void Compute(OpKernelContext* context) override {
    const auto ids = context->input(0).flat<T>();
    const int64_t count = ids.size();
    OP_REQUIRES(
        context, count < kMostIds,
        absl::InvalidArgumentError(absl::StrCat("rdmatensor: ", detail_, ": 2^30 ids at once")));
    RowGroups groups(count);
    Tensor *asked = nullptr, *counts = nullptr, *places = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({size_}), &counts));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({count}), &places));
    auto place = places->flat<int32_t>();
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES(context, ids(i) >= 0 && static_cast<int64_t>(ids(i)) < rows_,
                  absl::InvalidArgumentError(absl::StrCat("rdmatensor: ", detail_, ": id ", ids(i),
                                                          " is not in [0, ", rows_, ")")));
      place(i) = groups.Add(static_cast<int32_t>(i), static_cast<int32_t>(ids(i)));
    }
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({groups.size()}), &asked));

    const auto owner = [this](int32_t row) { return static_cast<size_t>(row % owners_); };
    std::vector<int32_t> next(static_cast<size_t>(size_) + 1),
        place_of(static_cast<size_t>(groups.size()));
    for (int64_t g = 0; g < groups.size(); ++g) ++next[owner(groups.row(g)) + 1];
    std::copy(next.begin() + 1, next.end(), counts->flat<int32_t>().data());
    for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    for (int64_t g = 0; g < groups.size(); ++g) {
      const int32_t row = groups.row(g);
      const int32_t at = next[owner(row)]++;
      place_of[static_cast<size_t>(g)] = at;
      asked->flat<int32_t>()(at) = static_cast<int32_t>(row / owners_);
    }
    for (int64_t i = 0; i < count; ++i) place(i) = place_of[static_cast<size_t>(place(i))];
  }

 private:
  int64_t rows_ = 0, owners_ = 1, size_ = 1;
  std::string detail_;
};

// Makes the parts of all members equally long.
class SpreadKernel : public tensorflow::OpKernel {
 public:
  explicit SpreadKernel(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("size", &size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("rank", &rank_));
  }

  void Compute(OpKernelContext* context) override {
    const auto asked = context->input(0).flat<int32_t>();
    const auto places = context->input(1).flat<int32_t>();
    const auto counts = context->input(2).flat<int32_t>();
    OP_REQUIRES(context, rank_ < size_ && counts.size() == size_ * size_,
                absl::InvalidArgumentError("rdmatensor: these are no counts of all members"));
    const int32_t* const own = counts.data() + rank_ * size_;
    int64_t total = 0, longest = 0;
    for (int64_t i = 0; i < counts.size(); ++i) {
      OP_REQUIRES(context, counts(i) >= 0 && counts(i) < kMostIds,
                  absl::InvalidArgumentError(absl::StrCat("rdmatensor: member ", i / size_,
                                                          " asks for ", counts(i), " rows")));
      longest = std::max<int64_t>(longest, counts(i));
    }
    for (int64_t i = 0; i < size_; ++i) total += own[i];
    OP_REQUIRES(context, total == asked.size() && longest * size_ < kMostIds,
                absl::InvalidArgumentError("rdmatensor: the counts contradict the rows"));
    Tensor *padded = nullptr, *positions = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({size_ * longest}), &padded));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(1).shape(), &positions));
    std::vector<int32_t> position(static_cast<size_t>(total));
    int32_t* out = padded->flat<int32_t>().data();
    for (int64_t i = 0, place = 0; i < size_; ++i) {
      for (int64_t k = 0; k < longest; ++k, ++out) {
        *out = k < own[i] ? asked(place) : -1;
        if (k < own[i])
          position[static_cast<size_t>(place++)] = static_cast<int32_t>(i * longest + k);
      }
    }
    for (int64_t i = 0; i < places.size(); ++i) {
      const int32_t place = places(i);
      OP_REQUIRES(context, place >= 0 && place < total,
                  absl::InvalidArgumentError("rdmatensor: a place is outside of the rows"));
      positions->flat<int32_t>()(i) = position[static_cast<size_t>(place)];
    }
  }

 private:
  int64_t size_ = 1, rank_ = 0;
};

REGISTER_KERNEL_BUILDER(
    Name("RdmatensorRoute").Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("T"),
    RouteKernel<int32_t>);
REGISTER_KERNEL_BUILDER(
    Name("RdmatensorRoute").Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("T"),
    RouteKernel<int64_t>);
REGISTER_KERNEL_BUILDER(Name("RdmatensorSpread").Device(tensorflow::DEVICE_CPU), SpreadKernel);

}  // namespace
}  // namespace rdmatensor
