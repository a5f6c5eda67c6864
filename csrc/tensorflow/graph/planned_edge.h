// SPDX-License-Identifier: Apache-2.0
//
// What the graph passes wrote on a _Send or _Recv about the tensor that it transfers, and compact names for
// rendezvous keys.
#ifndef RDMATENSOR_TENSORFLOW_GRAPH_PLANNED_EDGE_H_
#define RDMATENSOR_TENSORFLOW_GRAPH_PLANNED_EDGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "rdmatensor.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rdmatensor {

// A rendezvous key, or its part before ";frame:iteration", as a number of 128 bits, so that planned tensors are
// delivered without building the text of their keys. Valid in this process only.
struct KeyId {
  uint64_t low = 0, high = 0;

  // The id of a whole key.
  static KeyId Of(absl::string_view key);
  // The id of a prefix, which is also that of the key's first execution outside of loops.
  static KeyId OfPrefix(absl::string_view prefix);
  // The id of the key with this prefix in that frame and iteration.
  KeyId At(const tensorflow::FrameAndIter& frame_iter) const;

  bool operator==(const KeyId& other) const { return low == other.low && high == other.high; }
  template <typename H>
  friend H AbslHashValue(H state, const KeyId& id) {
    return H::combine(std::move(state), id.low, id.high);
  }
};

// "prefix;frame:iteration", as TensorFlow spells it.
std::string SpellKey(absl::string_view prefix, const tensorflow::FrameAndIter& frame_iter);

// The part of a tensor's key before ";frame:iteration".
std::string KeyPrefix(absl::string_view send_device, uint64_t incarnation,
                      absl::string_view receive_device, absl::string_view tensor_name);

struct EdgeDefinition {
  int64_t graph = 0;                // the same number at both ends, and of no other graph
  std::string name;                 // unique in the graph for one destination
  std::string source, destination;  // tasks
  uint64_t source_incarnation = 0;
  std::string key_prefix;
  KeyId key;  // of the prefix
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::PartialTensorShape shape;
  rdt_plan_order order{-1, 0, INT32_MAX, 0};
  rdt_plan_fusion fusion{-1, RDT_PLAN_ALONE_OFF};
  bool shares = false;  // the operation of `fusion`; else it has one of its own here
  bool in_loop = false;
  bool may_change = false;  // after Send: see ref_variables.h
  int count = 0;            // edges of the graph that enter (receive) or leave (send) the task

  // Reads the edge of a _Send or _Recv. False if the node carries no plan.
  bool Read(tensorflow::OpKernelConstruction* context);
  // Reads the edges of an operation that replaces several of these (fusion.h). Empty if it is malformed.
  static std::vector<EdgeDefinition> ReadAll(tensorflow::OpKernelConstruction* context);

 private:
  // What the edges of an operation have in common.
  struct Common;
  // Fills in what the attributes say. False if they contradict each other.
  bool Fill(const Common& common, const std::string& tensor_name,
            const tensorflow::TensorShapeProto& described, const int32_t* ordering);
};

// The planner's view of `edge`; points into it and into *dims.
rdt_plan_edge Describe(const EdgeDefinition& edge, std::vector<int64_t>* dims);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_GRAPH_PLANNED_EDGE_H_
