// SPDX-License-Identifier: Apache-2.0
//
// One operation for many tensors. TensorFlow sends each tensor by a _Send and receives it by a _Recv. Where the
// planner found that several become ready together (rdt_plan_fuse), this replaces
//
//   their _Send nodes by one _RdmaSend with as many inputs,
//   their _Recv nodes by one _RdmaReceive and an _RdmaUnpack with as many outputs.
//
// Receiving is asynchronous, and TensorFlow starts each consumer of an asynchronous node on a thread of its own.
// Unpacking is not, so the consumers run one after the other, as they would behind any other node.
//
// TensorFlow knows _Send and _Recv by name: no other operation is run, or may end, without values. So tensors that
// come after a condition keep theirs. What travels stays the same, so either end may have single operations.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_FUSION_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_FUSION_H_

#include <vector>

#include "graph/graph_order.h"
#include "graph/plan_attributes.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {

constexpr char kFusedSendOp[] = "_RdmaSend";
constexpr char kFusedReceiveOp[] = "_RdmaReceive";
constexpr char kUnpackOp[] = "_RdmaUnpack";

// Decides which edges share operations, by the planner, for the setting FUSE_BYTES of this process.
std::vector<rdt_plan_fusion> FindOperations(
    const std::vector<RemoteEdge>& edges, const std::vector<tensorflow::TensorShapeProto>& shapes);

// Fuses the operations of one device's partition, after MarkTransfers. A failure leaves the graph as it was.
void FuseTransfers(tensorflow::Graph* graph);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_FUSION_H_
