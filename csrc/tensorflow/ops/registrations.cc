// SPDX-License-Identifier: Apache-2.0
//
// The operations that rdmatensor.train puts into graphs.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rdmatensor {
namespace {

using tensorflow::shape_inference::ScalarShape;
using tensorflow::shape_inference::UnknownShape;

// The group at an address of this process, as rdmatensor.Group has it.
REGISTER_OP("RdmatensorGroup")
    .Attr("device: int")
    .Attr("group: int")
    .Attr("timeout_ms: int")
    .Output("resource: resource")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);

// What ends the use of the group (GroupState::Leave), and of its device (Release).
REGISTER_OP("RdmatensorLeave")
    .Attr("release: bool")
    .Input("group: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Starts an operation on `inputs`. The resource makes TensorFlow start operations in the order of the
// program. Broadcast, all-reduce: any number of inputs. Others: one, which is cut or joined along its first
// dimension. Barrier: none. `scale` multiplies floating point inputs. Members give the same `detail`.
REGISTER_OP("RdmatensorStart")
    .Attr(
        "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, "
        "uint64} = DT_FLOAT")
    .Attr("N: int >= 0")
    .Attr(
        "kind: {'all_reduce', 'reduce_scatter', 'all_gather', 'broadcast', 'all_to_all', "
        "'barrier'}")
    .Attr("reduction: {'sum', 'product', 'min', 'max', 'mean'} = 'sum'")
    .Attr("scale: float = 1.0")
    .Attr("root: int >= 0 = 0")
    .Attr("detail: string")
    .Input("group: resource")
    .Input("inputs: N * T")
    .Output("started: variant")
    .SetIsStateful()
    .SetShapeFn(ScalarShape);

// Waits for the operation, without a thread, and has its results.
REGISTER_OP("RdmatensorFinish")
    .Attr(
        "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, "
        "uint64}")
    .Attr("N: int >= 0")
    .Input("started: variant")
    .Output("outputs: N * T")
    .SetShapeFn(UnknownShape);

// Waits for an operation without results. It runs even if nothing depends on it.
REGISTER_OP("RdmatensorWait")
    .Attr("T: type = DT_FLOAT")
    .Attr("N: int = 0")
    .Input("started: variant")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

}  // namespace
}  // namespace rdmatensor
