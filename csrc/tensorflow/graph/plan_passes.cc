// SPDX-License-Identifier: Apache-2.0
//
// The graph passes that tell the kernels of a graph's transfers, before the first step, which tensor they will
// carry: its name, its shape as far as it is known, and its position in the order of transfers. A failure leaves
// the graph as it is, and its tensors take the dynamic path.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "graph/fusion.h"
#include "graph/graph_order.h"
#include "graph/graph_shapes.h"
#include "graph/plan_attributes.h"
#include "memory/arena.h"
#include "rdmatensor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"

namespace rdmatensor {
namespace {

using tensorflow::GraphOptimizationPass;
using tensorflow::GraphOptimizationPassOptions;
using tensorflow::OptimizationPassRegistry;

// Passes run for every op of eager code, so this cheap test comes first.
bool Serving() { return Arena::Get()->active(); }

bool Planning() {
  char plan[8] = "";
  return rdt_config_get("PLAN", plan, sizeof plan) == RDT_OK && absl::string_view(plan) == "on";
}

// Random, because sessions may have equal graphs, whose tensors must not be confused. Never 0.
int64_t NewGraphId() {
  const uint64_t id = RandomBits();
  return static_cast<int64_t>(id == 0 ? 1 : id);
}

class KeepPlaceholderShapesPass : public GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    // Functions have arguments instead of placeholders, and these do not vanish.
    if (!Serving() || options.graph == nullptr || options.is_function_graph || !Planning()) {
      return absl::OkStatus();
    }
    KeepPlaceholderShapes(options.graph->get());
    return absl::OkStatus();
  }
};

class AttachEdgesPass : public GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (!Serving() || options.graph == nullptr) return absl::OkStatus();
    const tensorflow::Graph& graph = **options.graph;
    if (!SpansTasks(graph) || !Planning()) return absl::OkStatus();
    const auto edges = FindRemoteEdges(graph);
    if (!edges.ok()) {
      const std::string why(edges.status().message());
      rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("plan: a graph stays unplanned: ", why).c_str());
    } else if (!edges->empty()) {
      const GraphShapes shapes(graph,
                               options.flib_def != nullptr ? options.flib_def : &graph.flib_def());
      std::vector<tensorflow::TensorShapeProto> known;
      for (const RemoteEdge& edge : *edges) known.push_back(shapes.Of(*edge.producer, edge.output));
      AttachEdges(*edges, known, FindOperations(*edges, known), NewGraphId());
    }
    return absl::OkStatus();
  }
};

class MarkTransfersPass : public GraphOptimizationPass {
 public:
  absl::Status Run(const GraphOptimizationPassOptions& options) override {
    if (Serving() && options.partition_graphs != nullptr) MarkTransfers(options.partition_graphs);
    return absl::OkStatus();
  }
};

// After TensorFlow's own passes.
void Register(OptimizationPassRegistry::Grouping when, const char* name,
              std::unique_ptr<GraphOptimizationPass> pass) {
  pass->set_name(name);
  OptimizationPassRegistry::Global()->Register(when, 1000, std::move(pass));
}

const bool plan_passes_registered = [] {
  Register(OptimizationPassRegistry::POST_PLACEMENT, "rdmatensor_keep_placeholder_shapes",
           std::make_unique<KeepPlaceholderShapesPass>());
  Register(OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, "rdmatensor_attach_edges",
           std::make_unique<AttachEdgesPass>());
  Register(OptimizationPassRegistry::POST_PARTITIONING, "rdmatensor_mark_transfers",
           std::make_unique<MarkTransfersPass>());
  return true;
}();

}  // namespace
}  // namespace rdmatensor
