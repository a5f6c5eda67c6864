// SPDX-License-Identifier: Apache-2.0
#include "rows/row_kernel.h"

#include <limits>

namespace rdmatensor {

Variable VariableOf(tensorflow::OpKernelContext* context, int input) {
  Variable variable;
  if (!tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, input), &variable)
           .ok()) {
    variable.reset();
  }
  return variable;
}

bool HasRows(tensorflow::Var* variable) {
  const tensorflow::Tensor& table = *variable->tensor();
  return variable->copy_on_read_mode.load() && table.IsInitialized() &&
         table.dtype() == tensorflow::DT_FLOAT && table.dims() >= 1 && table.NumElements() > 0;
}

tensorflow::TensorShape ShapeOfRows(const tensorflow::Tensor& ids,
                                    const tensorflow::Tensor& table) {
  tensorflow::TensorShape shape = ids.shape();
  for (int i = 1; i < table.dims(); ++i) shape.AddDim(table.dim_size(i));
  return shape;
}

template <typename Id>
std::vector<Id> IdsIn(const tensorflow::Tensor& tensor, int64_t limit) {
  const auto flat = tensor.flat<Id>();
  if (limit <= 0 || flat.size() > std::numeric_limits<int32_t>::max()) return {};
  std::vector<Id> ids(flat.data(), flat.data() + flat.size());
  using Unsigned = std::make_unsigned_t<Id>;
  bool all_in = true;
  for (const Id id : ids) all_in &= static_cast<Unsigned>(id) < static_cast<uint64_t>(limit);
  return all_in ? std::move(ids) : std::vector<Id>();
}
template std::vector<int32_t> IdsIn(const tensorflow::Tensor&, int64_t);
template std::vector<int64_t> IdsIn(const tensorflow::Tensor&, int64_t);

}  // namespace rdmatensor
