// SPDX-License-Identifier: Apache-2.0
//
// What the plugin's kernels of operations on rows of variables share. Each stands before TensorFlow's kernel of its
// node, does the case that embeddings make, and leaves the rest to that kernel: every error, and what is rare.
#ifndef RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNEL_H_
#define RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNEL_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "stats/row_stats.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace rdmatensor {

class RowKernel : public tensorflow::OpKernel {
 public:
  RowKernel(tensorflow::OpKernelConstruction* construction,
            std::unique_ptr<tensorflow::OpKernel> stock)
      : OpKernel(construction), stock_(std::move(stock)) {}

  void Compute(tensorflow::OpKernelContext* context) final {
    const int64_t rows = ComputeRows(context);
    CountRows(rows);
    if (rows < 0) stock_->Compute(context);
  }
  bool IsExpensive() override { return stock_->IsExpensive(); }

 protected:
  static constexpr int64_t kLeft = -1;
  // Returns how many rows it read or changed; kLeft if it did nothing, not even set an error.
  virtual int64_t ComputeRows(tensorflow::OpKernelContext* context) = 0;

 private:
  const std::unique_ptr<tensorflow::OpKernel> stock_;
};

using Variable = tensorflow::core::RefCountPtr<tensorflow::Var>;

// The variable that input `input` names; nullptr if there is none.
Variable VariableOf(tensorflow::OpKernelContext* context, int input);

// Whether operations on single rows may use the variable, whose lock the caller holds: nothing shares its memory.
// TensorFlow's kernels make it so (EnsureSparseVariableAccess). They are of float32, and there is at least one.
bool HasRows(tensorflow::Var* variable);

// The shape of the rows of `table` that `ids` name.
tensorflow::TensorShape ShapeOfRows(const tensorflow::Tensor& ids, const tensorflow::Tensor& table);

// The ids that `tensor` holds. Copies, because a peer that lent the tensor may still write to it. None if one of them
// is not in [0, limit), or there are none, or more than an int32 counts.
template <typename Id>
std::vector<Id> IdsIn(const tensorflow::Tensor& tensor, int64_t limit);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_ROWS_ROW_KERNEL_H_
