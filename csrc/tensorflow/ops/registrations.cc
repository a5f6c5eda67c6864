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

// Puts another group in the place of one that was left.
REGISTER_OP("RdmatensorRejoin")
    .Attr("device: int")
    .Attr("group: int")
    .Attr("timeout_ms: int")
    .Input("left: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// What ends the use of the group (GroupState::Leave), and of its device (Release).
REGISTER_OP("RdmatensorLeave")
    .Attr("release: bool")
    .Input("group: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Starts an operation on `inputs`. TensorFlow starts operations in the order of the program: because of the
// resource, and in functions because of `after`, the output of the operation before. Grappler removes a
// control edge where it sees another path, and may cut that path later, at an IdentityN. Broadcast,
// all-reduce: any number of inputs. Others: one, which is cut or joined along its first dimension. Barrier:
// none. `scale` multiplies floating point inputs. Members give the same `detail`.
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
    .Attr("M: int >= 0 = 0")
    .Input("group: resource")
    .Input("inputs: N * T")
    .Input("after: M * variant")
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

// Sorts the different ones of `ids` by the member that owns their rows: row r of `rows` is row r / owners of member
// r % owners. Has those rows, how many of them each of `size` members owns, and the place of each id's among them.
REGISTER_OP("RdmatensorRoute")
    .Attr("T: {int32, int64}")
    .Attr("rows: int >= 1")
    .Attr("owners: int >= 1")
    .Attr("size: int >= 1")
    .Attr("detail: string")
    .Input("ids: T")
    .Output("asked: int32")
    .Output("counts: int32")
    .Output("places: int32")
    .SetShapeFn(UnknownShape);

// Pads each member's part of `asked` with -1 to the longest part of all members (`counts`, by asking member), and has
// the positions of `places` then.
REGISTER_OP("RdmatensorSpread")
    .Attr("size: int >= 1")
    .Attr("rank: int >= 0")
    .Input("asked: int32")
    .Input("places: int32")
    .Input("counts: int32")
    .Output("padded: int32")
    .Output("positions: int32")
    .SetShapeFn(UnknownShape);

// Rows of a table, which is a variable of float32. Negative rows are zero.
REGISTER_OP("RdmatensorReadRows")
    .Attr("T: {half, bfloat16, float}")
    .Attr("threads: int >= 0 = 0")
    .Input("table: resource")
    .Input("rows: int32")
    .Output("values: T")
    .SetIsStateful()
    .SetShapeFn(UnknownShape);

// Adds up the values of equal rows, and multiplies the sums by `scale`. Negative rows are left out.
REGISTER_OP("RdmatensorSumRows")
    .Attr("rows: int >= 1")
    .Attr("scale: float = 1.0")
    .Input("indices: int32")
    .Input("values: float")
    .Output("out_indices: int32")
    .Output("out_values: float")
    .SetShapeFn(UnknownShape);

// Adds up the values with equal positions, of `count` ones from 0 on. Those that nothing has are zero.
REGISTER_OP("RdmatensorSumAt")
    .Input("values: float")
    .Input("positions: int32")
    .Input("count: int32")
    .Output("sums: float")
    .SetShapeFn(UnknownShape);

// Updates the rows that `indices` name, and no others, with the sums of their gradients. `slots` are the optimizer's
// variables in Keras's order; `rates` are the rate, two factors of the rule, and epsilon.
REGISTER_OP("RdmatensorUpdateRows")
    .Attr("rule: {'sgd', 'momentum', 'nesterov', 'adagrad', 'adam', 'amsgrad'}")
    .Attr("N: int >= 0")
    .Attr("threads: int >= 0 = 0")
    .Input("table: resource")
    .Input("slots: N * resource")
    .Input("indices: int32")
    .Input("values: float")
    .Input("rates: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

}  // namespace
}  // namespace rdmatensor
