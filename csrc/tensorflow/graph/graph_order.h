// SPDX-License-Identifier: Apache-2.0
//
// Finds the tensors that travel between tasks in a placed graph, and what the graph proves about their order.
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

// A tensor that travels to one device of another task.
struct RemoteEdge {
  tensorflow::Node* producer;
  int output;
  // The fed tensor's name or "producer:output", with "@device:CPU:1" unless it goes to CPU:0.
  std::string name;
  std::string recv_device;  // full name
  uint32_t source, destination;
  std::vector<std::pair<tensorflow::Node*, int>> consumers;  // with the numbers of their inputs
  bool in_loop;                                              // sent more than once in a step
  rdt_plan_order order;
};

// The task of a device, "/job:worker/replica:0/task:1"; empty if the device names no job and task.
std::string TaskOfDevice(absl::string_view device);

// Whether the nodes of the graph run in more than one task. Fast.
bool SpansTasks(const tensorflow::Graph& graph);

// Returns all edges ordered by producer, except those of nodes without a task. Fails for graphs with malformed
// loops.
absl::StatusOr<std::vector<RemoteEdge>> FindRemoteEdges(const tensorflow::Graph& graph);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_ORDER_H_
