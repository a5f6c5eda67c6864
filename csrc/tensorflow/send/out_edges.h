// SPDX-License-Identifier: Apache-2.0
//
// The planned edges that leave this process. The kernels that send them register here when TensorFlow makes them,
// before the first step of their graph, and each edge is bound to the offer of its receiver once both are known.
#ifndef RDMATENSOR_TENSORFLOW_SEND_OUT_EDGES_H_
#define RDMATENSOR_TENSORFLOW_SEND_OUT_EDGES_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "send/accepted_offer.h"

namespace rdmatensor {

// Thread-safe. One for the process.
class OutEdges {
 public:
  static OutEdges* Get();

  std::shared_ptr<OutEdge> Add(EdgeDefinition definition);
  // Binds the edges to `destination` to its offer: those that are registered, and later ones.
  void Bind(const ServerContext& server, const std::string& destination,
            const std::shared_ptr<PushGate>& gate, const std::shared_ptr<AcceptedOffer>& accepted);

 private:
  struct Offered {
    std::weak_ptr<AcceptedOffer> accepted;
    std::shared_ptr<PushGate> gate;
  };
  // The edges of one graph from one task to another, and their receiver's offers.
  struct Link {
    absl::flat_hash_map<std::string, std::weak_ptr<OutEdge>> edges;  // by name
    std::vector<Offered> offers;
  };
  Link& LinkLocked(int64_t graph, const std::string& source, const std::string& destination);

  std::mutex mutex_;
  absl::flat_hash_map<std::string, Link> links_;
  size_t sweep_at_ = 1024;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SEND_OUT_EDGES_H_
