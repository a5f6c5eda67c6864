// SPDX-License-Identifier: Apache-2.0
//
// How what is known of a tensor reaches the kernels at both of its ends: in private attributes, which
// travel with the graph. First on its producer and its consumers, because _Send and _Recv do not exist
// yet; once the graph is cut up, on these.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph_order.h"
#include "graph/graph_shapes.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {

// On _Send, _Recv, _HostSend and _HostRecv between tasks, all five or none. Remote tasks see what a
// peer wrote: check before use.
constexpr char kPlanGraphAttr[] = "_rdma_graph";  // int: of the graph, the same at both ends
constexpr char kPlanEdgeAttr[] = "_rdma_edge";    // string: RemoteEdge::name
constexpr char kPlanShapeAttr[] = "_rdma_shape";  // shape: may be partial
constexpr char kPlanOrderAttr[] = "_rdma_order";  // list(int): ready, first, last, in_loop
// int: of this graph's edges into the task of a _Recv, or out of that of a _Send.
constexpr char kPlanCountAttr[] = "_rdma_count";

// Before partitioning. `graph` is not 0.
void AttachEdges(const std::vector<RemoteEdge>& edges, const GraphShapes& shapes, int64_t graph);

using Partitions = std::unordered_map<std::string, std::unique_ptr<tensorflow::Graph>>;

// After it: moves what AttachEdges wrote to the nodes that transfer. `partitions` are all of a task, or
// of several.
void MarkTransfers(Partitions* partitions);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_PLAN_ATTRIBUTES_H_
