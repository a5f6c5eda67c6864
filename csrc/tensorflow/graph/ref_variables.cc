// SPDX-License-Identifier: Apache-2.0
#include "graph/ref_variables.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "memory/arena.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {
namespace {

using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

struct Prefixes {
  std::atomic<bool> any{false};
  std::shared_mutex mutex;
  absl::flat_hash_set<std::string> set;
};

Prefixes& KnownPrefixes() {
  static Prefixes* prefixes = new Prefixes;
  return *prefixes;
}

// Operations whose output never shares memory with an input that somebody else still holds. Every other
// operation may hand its input on, as Identity and Reshape do.
constexpr absl::string_view kAlwaysFresh =
    "Abs Add AddN AddV2 ArgMax ArgMin AvgPool AvgPoolGrad BatchMatMul BatchMatMulV2 BiasAdd "
    "BiasAddGrad Conv2D Conv2DBackpropFilter Conv2DBackpropInput Div Equal Exp FusedBatchNorm "
    "FusedBatchNormGrad FusedBatchNormGradV3 FusedBatchNormV3 Gather GatherV2 Greater Less Log "
    "LogSoftmax MatMul MaxPool MaxPoolGrad Maximum Minimum Mul Neg Pow RealDiv Relu ReluGrad "
    "Rsqrt Shape Sigmoid SigmoidGrad Size Softmax SoftmaxCrossEntropyWithLogits "
    "SparseSoftmaxCrossEntropyWithLogits Sqrt Square SquaredDifference Sub Tanh TanhGrad "
    "_FusedConv2D _FusedMatMul";

bool AlwaysFresh(const Node& node) {
  static const auto* ops =
      new absl::flat_hash_set<absl::string_view>(absl::StrSplit(kAlwaysFresh, ' '));
  return ops->contains(node.type_string());
}

// The nodes whose output may be a reference variable's own memory.
absl::flat_hash_set<const Node*> NodesSharingVariables(const Graph& graph) {
  absl::flat_hash_set<const Node*> sharing;
  std::vector<const Node*> work;
  for (const Node* node : graph.op_nodes()) {
    for (tensorflow::DataType type : node->output_types()) {
      if (tensorflow::IsRefType(type) && sharing.insert(node).second) work.push_back(node);
    }
  }
  while (!work.empty()) {
    const Node* node = work.back();
    work.pop_back();
    for (const Edge* edge : node->out_edges()) {
      const Node* next = edge->dst();
      if (edge->IsControlEdge() || !next->IsOp() || AlwaysFresh(*next)) continue;
      if (sharing.insert(next).second) work.push_back(next);
    }
  }
  return sharing;
}

void RememberSends(const Graph& graph) {
  for (const Node* node : NodesSharingVariables(graph)) {
    std::string sender, receiver, name;
    int64_t incarnation = 0;
    const tensorflow::AttrSlice attributes = node->attrs();
    if (!node->IsSend() || !GetNodeAttr(attributes, "send_device", &sender).ok() ||
        !GetNodeAttr(attributes, "recv_device", &receiver).ok() ||
        !GetNodeAttr(attributes, "tensor_name", &name).ok() ||
        !GetNodeAttr(attributes, "send_device_incarnation", &incarnation).ok()) {
      continue;
    }
    Prefixes& prefixes = KnownPrefixes();
    std::unique_lock<std::shared_mutex> lock(prefixes.mutex);
    prefixes.set.insert(absl::StrFormat("%s;%016x;%s;%s", sender,
                                        static_cast<uint64_t>(incarnation), receiver, name));
    prefixes.any.store(true, std::memory_order_release);
  }
}

class RefVariablesPass : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    // Without a grpc+rdma server in this process the plugin sends nothing.
    if (!Arena::Get()->active() || options.partition_graphs == nullptr) return absl::OkStatus();
    for (const auto& partition : *options.partition_graphs) RememberSends(*partition.second);
    return absl::OkStatus();
  }
};

const bool ref_variables_registered = [] {
  auto pass = std::make_unique<RefVariablesPass>();
  pass->set_name("rdmatensor_ref_variables");
  tensorflow::OptimizationPassRegistry::Global()->Register(
      tensorflow::OptimizationPassRegistry::POST_PARTITIONING, 1000, std::move(pass));
  return true;
}();

}  // namespace

bool MayChangeInPlace(absl::string_view rendezvous_key) {
  Prefixes& prefixes = KnownPrefixes();
  if (!prefixes.any.load(std::memory_order_acquire)) return false;
  // The key ends in ";frame:iteration".
  const absl::string_view prefix = rendezvous_key.substr(0, rendezvous_key.rfind(';'));
  std::shared_lock<std::shared_mutex> lock(prefixes.mutex);
  return prefixes.set.contains(prefix);
}

}  // namespace rdmatensor
