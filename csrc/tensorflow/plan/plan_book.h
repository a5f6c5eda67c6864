// SPDX-License-Identifier: Apache-2.0
//
// The plans in force in this process. The kernels of planned edges register here when TensorFlow makes
// them, before the first step of their graph, and leave when it drops the graph:
//
//   receive kernels -> InPlan: all edges of a graph into one task, given places by the planner
//                   -> one PlacedLink for each sending task, offered over the channel to it
//   send kernels    -> OutEdge, bound to the offer of its receiver once both are known
#ifndef RDMATENSOR_TENSORFLOW_PLAN_PLAN_BOOK_H_
#define RDMATENSOR_TENSORFLOW_PLAN_PLAN_BOOK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "graph/planned_edge.h"
#include "plan/routes.h"
#include "plan/slots.h"

namespace rdmatensor {

class Endpoint;
class SourcePeer;

// Small enough that a group does not wait long for its last member.
inline constexpr uint64_t kGroupBytes = 64 * 1024;

// The planned edges of one graph that enter one task. Thread-safe. Kept by the kernels that receive
// them; when the last is gone, the places are withdrawn.
class InPlan : public std::enable_shared_from_this<InPlan> {
 public:
  InPlan(int64_t graph, std::string task, int expected)
      : graph_(graph), task_(std::move(task)), expected_(expected) {}
  ~InPlan();

  int64_t graph() const { return graph_; }
  const std::string& task() const { return task_; }
  // Plans once all edges that the graph passes announced are there.
  void Add(std::shared_ptr<const EdgeDefinition> edge);
  // Plans with what is there; what comes later takes the dynamic path. Idempotent.
  void Seal();
  // The same, on another thread. For receives, which must not wait.
  void SealSoon();
  // The planner's result, also before any channel exists.
  std::vector<std::shared_ptr<const PlacedLink>> Links();
  // Another link, for an edge that was promoted.
  void AddLink(std::shared_ptr<const PlacedLink> link);
  void RemoveLink(const PlacedLink* link);
  // True once for each link and channel.
  bool MayOffer(const std::shared_ptr<const PlacedLink>& link,
                const std::shared_ptr<Channel>& channel);
  // Remembers who holds places, to withdraw them.
  void AddSlots(std::weak_ptr<Slots> slots);

 private:
  // The planner's answer, by sending task.
  std::vector<std::shared_ptr<const PlacedLink>> Place(Endpoint* endpoint);

  const int64_t graph_;
  const std::string task_;
  const int expected_;
  std::mutex mutex_;
  std::atomic<bool> sealed_{false}, sealing_{false};
  std::vector<std::shared_ptr<const EdgeDefinition>> edges_;
  std::vector<std::shared_ptr<const PlacedLink>> links_;
  std::vector<std::weak_ptr<Slots>> slots_;
  std::vector<std::pair<std::weak_ptr<const PlacedLink>, std::weak_ptr<Channel>>> offered_;
};

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

  // The newest server of a task is the one whose edges are planned.
  void AddEndpoint(Endpoint* endpoint);
  void RemoveEndpoint(Endpoint* endpoint);
  Endpoint* EndpointOf(const std::string& task);
  // nullptr unless the process has exactly one.
  Endpoint* OnlyEndpoint();
  // What the devices of all of them count, as a JSON list.
  std::string DevicesAsJson();

  std::shared_ptr<InEdge> AddReceive(EdgeDefinition definition);
  std::shared_ptr<OutEdge> AddSend(EdgeDefinition definition);

  // The channel to `source` is up: offers it the places of every plan.
  void OfferAll(Endpoint* endpoint, const std::string& source,
                const std::shared_ptr<Channel>& channel);
  // Binds what is sent from here to an offer, now and as it is registered.
  void Bind(Endpoint* endpoint, const std::shared_ptr<Routes>& routes);

  // A tensor of this key came by the dynamic path. Its edge may be promoted or demoted.
  void Observe(Endpoint* endpoint, absl::string_view key, const tensorflow::TensorShape& shape,
               const std::shared_ptr<Channel>& channel);

  // The plan of `endpoint`'s task, in the format of graph_analyzer.
  std::string AsJson(Endpoint* endpoint);

 private:
  friend class InPlan;
  using LinkName = std::string;
  static LinkName NameOf(int64_t graph, const std::string& source, const std::string& destination);
  // An edge whose size only its tensors tell.
  struct Watch {
    std::weak_ptr<InPlan> plan;
    std::shared_ptr<const EdgeDefinition> definition;
    tensorflow::TensorShape shape;
    uint64_t times = 0;
    uint64_t capacity = 0;
    bool promoting = false;
    std::weak_ptr<Slots> slots;
  };
  void WatchEdge(const std::shared_ptr<InPlan>& plan,
                 std::shared_ptr<const EdgeDefinition> definition);
  void Promote(Endpoint* endpoint, KeyId key, const std::shared_ptr<Channel>& channel);
  std::vector<std::shared_ptr<InPlan>> AllPlans(const std::string& task);
  // Forgets graphs that are gone, whenever the books have grown to twice what was left last time.
  void SweepLocked();
  std::shared_ptr<Slots> MakeOffer(const std::shared_ptr<InPlan>& plan,
                                   const std::shared_ptr<const PlacedLink>& link,
                                   const std::shared_ptr<Channel>& channel);

  std::mutex mutex_;
  absl::flat_hash_map<std::string, Endpoint*> endpoints_;
  absl::flat_hash_map<LinkName, std::weak_ptr<InPlan>> plans_;     // with an empty source
  absl::flat_hash_map<LinkName, std::weak_ptr<InEdge>> receives_;  // by plan and edge
  absl::flat_hash_map<LinkName, absl::flat_hash_map<std::string, std::weak_ptr<OutEdge>>> sends_;
  absl::flat_hash_map<LinkName, std::vector<std::weak_ptr<Routes>>> offers_;
  absl::flat_hash_map<KeyId, Watch> watched_;
  std::atomic<bool> any_watched_{false};
  size_t sweep_at_ = 1024;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PLAN_PLAN_BOOK_H_
