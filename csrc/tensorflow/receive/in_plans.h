// SPDX-License-Identifier: Apache-2.0
//
// The planned edges that enter this process. The kernels that receive them register here when TensorFlow makes them,
// before the first step of their graph, and leave when it drops the graph. All edges of a graph into one task are
// given places together (InPlan), which are offered over the channel to each task that sends.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLANS_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLANS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "receive/in_plan.h"
#include "receive/offered_places.h"
#include "receive/promotion.h"
#include "stats/edge_waits.h"

namespace rdmatensor {

// A planned edge that enters this process, as its kernels hold it.
struct InEdge {
  std::shared_ptr<const EdgeDefinition> definition;
  std::shared_ptr<InPlan> plan;
  EdgeWaits* waits = nullptr;
};

// Thread-safe. One for the process.
class InPlans {
 public:
  static InPlans* Get();

  std::shared_ptr<InEdge> Add(EdgeDefinition definition);
  // A step of the graph receives. Places the edges that are there, or those of a plan that rested, on another thread,
  // because receives must not wait.
  void Use(const std::shared_ptr<InPlan>& plan, int64_t step_id);
  // All plans of edges into `task`.
  std::vector<std::shared_ptr<InPlan>> Of(const std::string& task);

  // The channel to `source` is up: offers it the places of every plan.
  void OfferAll(const ServerContext& server, const std::string& source,
                const std::shared_ptr<OfferedPlaces>& places);
  // Does the same for a channel whose offers have ended.
  void OfferAllAgain(const ServerContext& server, const std::string& source,
                     const std::shared_ptr<OfferedPlaces>& places);

  // Handles edges that may get a place later.
  Promotion& promotion() { return promotion_; }

 private:
  void Seal(const std::shared_ptr<InPlan>& plan);
  // Offers the links of a plan that got places now, or gets them again.
  void Offer(const std::shared_ptr<InPlan>& plan);
  // Forgets graphs that are gone, whenever there are twice as many edges as were left last time.
  void SweepLocked();

  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<InPlan>> plans_;  // by graph and task
  absl::flat_hash_map<std::string, std::weak_ptr<InEdge>> edges_;  // by graph and key
  Promotion promotion_;
  size_t sweep_at_ = 1024;
  std::vector<std::weak_ptr<InPlan>> placed_;  // that do not rest
  std::atomic<uint64_t> clock_{0};             // steps of all plans
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLANS_H_
