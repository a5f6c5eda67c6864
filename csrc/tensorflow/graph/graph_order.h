// SPDX-License-Identifier: Apache-2.0
//
// The tensors that travel between tasks in a placed graph, and what the graph proves about their order.
// graph_analyzer reads graphs by the same rules, so that both find the same edges.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_ORDER_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_ORDER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rdmatensor.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {

// One tensor on its way to one device of another task.
struct RemoteEdge {
  tensorflow::Node* producer;
  int output;
  // Of the fed tensor or "producer:output", with "@device:CPU:1" unless it goes to CPU:0.
  std::string name;
  std::string recv_device;  // full name
  uint32_t source, destination;
  std::vector<std::pair<tensorflow::Node*, int>> consumers;  // and the numbers of their inputs
  bool in_loop;                                              // sent more than once in a step
  rdt_plan_order order;
};

// "/job:worker/replica:0/task:1"; empty for a device that names no job and task.
std::string TaskOfDevice(absl::string_view device);

// Whether the nodes of the graph run in more than one task. Takes little time.
bool SpansTasks(const tensorflow::Graph& graph);

// All edges, ordered by producer; those of nodes without a task are left out. Fails for graphs with
// malformed loops.
absl::StatusOr<std::vector<RemoteEdge>> FindRemoteEdges(const tensorflow::Graph& graph);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_ORDER_H_
