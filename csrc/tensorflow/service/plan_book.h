// SPDX-License-Identifier: Apache-2.0
//
// The plans in force in this process. The kernels of planned edges register here when TensorFlow makes
// them, before the first step of their graph, and leave when it drops the graph:
//
//   receive kernels -> InPlan: all edges of a graph into one task, given places by the planner
//                   -> one PlacedLink for each sending task, offered over the channel to it
//   send kernels    -> OutEdge, bound to the offer of its receiver once both are known
#ifndef RDMATENSOR_TENSORFLOW_SERVICE_PLAN_BOOK_H_
#define RDMATENSOR_TENSORFLOW_SERVICE_PLAN_BOOK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "channel/host.h"
#include "graph/planned_edge.h"
#include "receive/in_plan.h"
#include "receive/offered_places.h"
#include "receive/promotion.h"
#include "send/accepted_offer.h"
#include "stats/edge_waits.h"

namespace rdmatensor {

// A planned edge that enters this process, as its kernels hold it.
struct InEdge {
  std::shared_ptr<const EdgeDefinition> definition;
  std::shared_ptr<InPlan> plan;
  EdgeWaits* waits = nullptr;
};

// Thread-safe. One for the process.
class PlanBook {
 public:
  static PlanBook* Get();

  // Finds the planned tensors of all channels from a task, by the name that any session gives it.
  using PlannedFrom =
      std::function<std::vector<std::shared_ptr<PlannedTensors>>(absl::string_view source)>;
  // The newest server of a task is the one whose edges are planned.
  void AddHost(const Host* host, PlannedFrom planned_from);
  void RemoveHost(const Host* host);
  const Host* HostOf(const std::string& task);
  // nullptr unless the process has exactly one.
  const Host* OnlyHost();
  // Calls `visit` under a lock, which a server needs before it closes its device.
  void ForEachHost(absl::FunctionRef<void(const Host&)> visit);

  std::shared_ptr<InEdge> AddReceive(EdgeDefinition definition);
  std::shared_ptr<OutEdge> AddSend(EdgeDefinition definition);
  // A step of the graph receives. Places the edges that are there, or those of a plan that rested, on another thread,
  // because receives must not wait.
  void Use(const std::shared_ptr<InPlan>& plan, int64_t step_id);
  // All plans of edges into `task`.
  std::vector<std::shared_ptr<InPlan>> PlansOf(const std::string& task);

  // The channel to `source` is up: offers it the places of every plan.
  void OfferAll(const Host& host, const std::string& source,
                const std::shared_ptr<PlannedTensors>& planned);
  // Does the same for a channel whose offers have ended.
  void OfferAllAgain(const Host& host, const std::string& source,
                     const std::shared_ptr<PlannedTensors>& planned);
  // Binds the edges to `destination` to its offer: those that are registered, and later ones.
  void Bind(const Host& host, const std::string& destination, const std::shared_ptr<PushGate>& gate,
            const std::shared_ptr<AcceptedOffer>& accepted);

  // Handles edges that may get a place later.
  Promotion& promotion() { return promotion_; }

 private:
  using LinkName = std::string;
  static LinkName NameOf(int64_t graph, const std::string& source, const std::string& destination);
  struct Server {
    const Host* host = nullptr;
    PlannedFrom planned_from;
  };
  struct Offered {
    std::weak_ptr<AcceptedOffer> accepted;
    std::shared_ptr<PushGate> gate;
  };
  void Seal(const std::shared_ptr<InPlan>& plan);
  // Offers the links of a plan that got places now, or gets them again.
  void Offer(const std::shared_ptr<InPlan>& plan);
  bool FindServer(const std::string& task, Server* server);
  // Forgets graphs that are gone, whenever the book has twice as many entries as were left last time.
  void SweepLocked();

  std::mutex mutex_;
  absl::flat_hash_map<std::string, Server> servers_;               // by task
  absl::flat_hash_map<LinkName, std::weak_ptr<InPlan>> plans_;     // with an empty source
  absl::flat_hash_map<LinkName, std::weak_ptr<InEdge>> receives_;  // by plan and edge
  absl::flat_hash_map<LinkName, absl::flat_hash_map<std::string, std::weak_ptr<OutEdge>>> sends_;
  absl::flat_hash_map<LinkName, std::vector<Offered>> offers_;
  Promotion promotion_;
  size_t sweep_at_ = 1024;
  std::vector<std::weak_ptr<InPlan>> placed_;  // that do not rest
  std::atomic<uint64_t> clock_{0};             // steps of all plans
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVICE_PLAN_BOOK_H_
