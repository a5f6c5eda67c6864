// SPDX-License-Identifier: Apache-2.0
//
// The operations on stores that rdmatensor.train puts into graphs. TensorFlow runs those of one store in the order of
// the program, because they have one resource. Marks are the 64 bits of the core's.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rdmatensor {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ScalarShape;
using tensorflow::shape_inference::ShapeHandle;

// Sets the shapes of outputs from `first` on, as the attribute `shapes` has them, and those before are scalars.
absl::Status ShapesAfter(InferenceContext* c, int first) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  for (int i = 0; i < first; ++i) c->set_output(i, c->Scalar());
  for (size_t i = 0; i < shapes.size() && first + static_cast<int>(i) < c->num_outputs(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(first + static_cast<int>(i), shape);
  }
  return absl::OkStatus();
}

#define RDT_STORE_TYPES                                                                        \
  "T: list({half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, " \
  "uint64, bool}) >= 1"

// The store at an address of this process, as rdmatensor.Store has it.
REGISTER_OP("RdmatensorStore")
    .Attr("store: int")
    .Attr("detail: string")
    .Attr("bytes: int >= 0")
    .Attr("slot_bytes: int >= 0")
    .Output("resource: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);

// Returns when no operation uses the store any more (StoreState::Leave).
REGISTER_OP("RdmatensorStoreLeave")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Makes `tensors` the newest version.
REGISTER_OP("RdmatensorStorePublish")
    .Attr(RDT_STORE_TYPES)
    .Input("store: resource")
    .Input("mark: int64")
    .Input("tensors: T")
    .Output("version: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);

// Reads the newest version of a member.
REGISTER_OP("RdmatensorStorePull")
    .Attr(RDT_STORE_TYPES)
    .Attr("shapes: list(shape) >= 1")
    .Attr("timeout_ms: int")
    .Input("store: resource")
    .Input("rank: int32")
    .Output("version: int64")
    .Output("mark: int64")
    .Output("tensors: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return ShapesAfter(c, 2); });

// Writes `tensors` into the own slot at a member, if that is free.
REGISTER_OP("RdmatensorStorePush")
    .Attr(RDT_STORE_TYPES)
    .Attr("timeout_ms: int")
    .Input("store: resource")
    .Input("rank: int32")
    .Input("mark: int64")
    .Input("tensors: T")
    .Output("sent: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);

// Takes the oldest push and frees its slot. If nothing has arrived, the tensors are `otherwise`.
REGISTER_OP("RdmatensorStoreTake")
    .Attr(RDT_STORE_TYPES)
    .Input("store: resource")
    .Input("otherwise: T")
    .Output("arrived: bool")
    .Output("rank: int32")
    .Output("mark: int64")
    .Output("tensors: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Scalar());
      for (int i = 3; i < c->num_outputs(); ++i) c->set_output(i, c->input(i - 2));
      return absl::OkStatus();
    });

}  // namespace
}  // namespace rdmatensor
