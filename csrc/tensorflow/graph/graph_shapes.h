// SPDX-License-Identifier: Apache-2.0
//
// Infers what is known of the shapes of a graph's tensors before it runs.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_SHAPES_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_SHAPES_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/graph/graph.h"

namespace rdmatensor {

// Infers all shapes on construction. For one thread. The graph and the library must outlive it.
class GraphShapes {
 public:
  // `library` holds the functions that nodes call.
  GraphShapes(const tensorflow::Graph& graph, const tensorflow::FunctionLibraryDefinition* library);

  // The shape of an output; of unknown rank if inference knows nothing. A fed tensor has its placeholder's shape,
  // which a client may ignore, so what is sent must be compared with it.
  tensorflow::TensorShapeProto Of(const tensorflow::Node& node, int output) const;

 private:
  enum class Loops { kAssume, kGiveUp };
  void Infer(const std::vector<tensorflow::Node*>& order, Loops loops);
  bool RelaxAssumptions();
  void Refine(const tensorflow::Node& node, const tensorflow::PartialTensorShape& shape);
  tensorflow::PartialTensorShape Known(const tensorflow::Edge& edge) const;

  const tensorflow::Graph& graph_;
  const tensorflow::FunctionLibraryDefinition* const library_;
  std::unique_ptr<tensorflow::ShapeRefiner> refiner_;
  // A Merge node at which a tensor enters a loop and comes around.
  struct Loop {
    const tensorflow::Node* merge;
    const tensorflow::Edge *enter, *next;
    bool relaxed;                          // it does not keep the shape with which it enters,
    tensorflow::PartialTensorShape limit;  // but this
  };
  std::vector<Loop> loops_;
};

// Writes the shapes of a graph's placeholders into attributes of their consumers. The placeholders vanish when the
// graph is pruned for one set of feeds, and GraphShapes then finds their shapes there. To be run POST_PLACEMENT.
void KeepPlaceholderShapes(tensorflow::Graph* graph);

// The name ("x:0") of the tensor that a client feeds through `node`; empty if `node` is not a feed.
std::string FedTensor(const tensorflow::Node& node);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_GRAPH_SHAPES_H_
