// SPDX-License-Identifier: Apache-2.0
//
// Passes what is known of a tensor to the kernels at both of its ends, in private attributes that travel with the
// graph. The attributes are first on the tensor's producer and consumers, because _Send and _Recv do not exist
// before the graph is partitioned, and then on these.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph_order.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/tensor_shape.pb.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {

// Attributes of _Send, _Recv, _HostSend and _HostRecv between tasks, which have all five or none. A peer may have
// written them: check before use.
constexpr char kPlanGraphAttr[] = "_rdma_graph";  // int: the graph's number, the same at both ends
constexpr char kPlanEdgeAttr[] = "_rdma_edge";    // string: RemoteEdge::name
constexpr char kPlanShapeAttr[] = "_rdma_shape";  // shape: may be partial
// list(int): ready, first, last, in_loop, operation, alone; the last two as in rdt_plan_fusion
constexpr char kPlanOrderAttr[] = "_rdma_order";
constexpr int kPlanOrderSize = 6;
constexpr int kPlanOperation = 4;  // its index in the list
// int: the number of this graph's edges into the task of a _Recv, or out of the task of a _Send.
constexpr char kPlanCountAttr[] = "_rdma_count";

// Writes the attributes before partitioning. `shapes` and `fusions` are those of the edges; `graph` must not be 0.
void AttachEdges(const std::vector<RemoteEdge>& edges,
                 const std::vector<tensorflow::TensorShapeProto>& shapes,
                 const std::vector<rdt_plan_fusion>& fusions, int64_t graph);

using Partitions = std::unordered_map<std::string, std::unique_ptr<tensorflow::Graph>>;

// Moves the attributes to the nodes that transfer, after partitioning. `partitions` are all those of one or several
// tasks.
void MarkTransfers(Partitions* partitions);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_
