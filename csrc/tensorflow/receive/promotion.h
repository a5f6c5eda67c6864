// SPDX-License-Identifier: Apache-2.0
//
// Promotion of edges whose size the graph does not tell. Their tensors take the dynamic path at first. An edge
// whose tensors keep coming with one shape gets a place of that size, and loses it when a tensor does not fit.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_PROMOTION_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_PROMOTION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "receive/in_plan.h"
#include "receive/offered_places.h"
#include "receive/receive_events.h"
#include "receive/slots.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace rdmatensor {

// Thread-safe. Lives as long as the process.
class Promotion final : public DynamicObserver {
 public:
  // Watches the sizes of an edge's tensors.
  void Watch(const std::shared_ptr<InPlan>& plan, std::shared_ptr<const EdgeDefinition> definition);
  // The tensor's edge may be promoted or demoted.
  void Observe(const ServerContext& server, absl::string_view key,
               const tensorflow::TensorShape& shape,
               const std::shared_ptr<OfferedPlaces>& places) override;
  // Forgets graphs that are gone.
  void Sweep();

 private:
  struct Watched {
    std::weak_ptr<InPlan> plan;
    std::shared_ptr<const EdgeDefinition> definition;
    tensorflow::TensorShape shape;
    uint64_t times = 0;
    uint64_t capacity = 0;
    bool promoting = false;
    std::weak_ptr<Slots> slots;
  };
  void Promote(const ServerContext& server, KeyId key,
               const std::shared_ptr<OfferedPlaces>& places);

  std::mutex mutex_;
  absl::flat_hash_map<KeyId, Watched> watched_;
  std::atomic<bool> any_watched_{false};
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_PROMOTION_H_
