// SPDX-License-Identifier: Apache-2.0
//
// The planned edges of one graph that enter one task.
#ifndef RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLAN_H_
#define RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLAN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "channel/server_context.h"
#include "graph/planned_edge.h"
#include "receive/offered_places.h"
#include "receive/slots.h"

namespace rdmatensor {

// Limits a group, so that it does not wait long for its last member.
inline constexpr uint64_t kGroupBytes = 64 * 1024;

// A plan rests when, for each time that its graph ran, other graphs have run so often since it ran last. So graphs that
// run once, as those of ever new shapes do, leave the places of no more than so many behind, and a graph that runs
// regularly gets its places back after a few steps, however many others there are.
inline constexpr uint64_t kPatience = 32;

// The planned edges of one graph that enter one task. Thread-safe. Kept by the kernels that receive
// them; when the last is gone, the places are withdrawn. TensorFlow keeps the kernels of every graph that a program
// has traced, so the places of a graph that is not run for long are withdrawn too: it rests.
class InPlan {
 public:
  InPlan(int64_t graph, std::string task, int expected)
      : graph_(graph), task_(std::move(task)), expected_(expected) {}
  ~InPlan();

  int64_t graph() const { return graph_; }
  const std::string& task() const { return task_; }
  // True once all edges that the graph passes announced are there.
  bool Add(std::shared_ptr<const EdgeDefinition> edge);
  // Plans the edges that are there, with one link for each sending task. Later edges take the dynamic path.
  // False if this was done before.
  bool Place(const ServerContext& server, std::vector<std::shared_ptr<const PlacedLink>>* links);
  bool is_placed() const { return sealed_.load(std::memory_order_acquire); }
  // True for the first caller of an InPlan that is not placed.
  bool BeginPlacing() { return !is_placed() && !sealing_.exchange(true); }
  // A step of the graph runs, of which `clock` counts those of all graphs. True for one caller if the plan rested and
  // is to be offered again, because it is used so often that it would not rest soon.
  bool Use(int64_t step_id, std::atomic<uint64_t>* clock);
  // The plan is placed at this time of the clock.
  void BeginAt(uint64_t now) { last_use_.store(now, std::memory_order_relaxed); }
  // Withdraws the places of a plan that is to rest, which must be placed. `patience` is kPatience, or less.
  void RestIfIdle(uint64_t now, uint64_t patience);
  bool rests() const { return rests_.load(std::memory_order_acquire); }
  // The planner's result, also before any channel exists.
  std::vector<std::shared_ptr<const PlacedLink>> Links();
  // Adds or removes the link of an edge that was promoted.
  void AddLink(std::shared_ptr<const PlacedLink> link);
  void RemoveLink(const PlacedLink* link);
  // The offers made over this channel have ended, and may be made again.
  void ForgetOffers(const std::shared_ptr<OfferedPlaces>& places);
  // Offers the places of `link`, once for each channel. nullptr if there is no memory for them, or the plan rests.
  // Blocks.
  std::shared_ptr<Slots> MakeOffer(const std::shared_ptr<const PlacedLink>& link,
                                   const std::shared_ptr<OfferedPlaces>& places);

 private:
  std::vector<std::shared_ptr<const PlacedLink>> PlaceLocked(const ServerContext& server);
  // Returns true once for each link and channel.
  bool MayOffer(const std::shared_ptr<const PlacedLink>& link,
                const std::shared_ptr<OfferedPlaces>& places);
  // Remembers who holds places, to withdraw them. False if the plan rests meanwhile.
  bool AddSlots(std::weak_ptr<Slots> slots);

  const int64_t graph_;
  const std::string task_;
  const int expected_;
  std::mutex mutex_;
  std::atomic<bool> sealed_{false}, sealing_{false}, rests_{false};
  std::atomic<int64_t> last_step_{-1};
  std::atomic<uint64_t> uses_{0}, last_use_{0};
  std::vector<std::shared_ptr<const EdgeDefinition>> edges_;
  // As planned first, then those of promoted edges.
  std::vector<std::shared_ptr<const PlacedLink>> links_;
  size_t planned_links_ = 0;
  std::vector<std::weak_ptr<Slots>> slots_;
  std::vector<std::pair<std::weak_ptr<const PlacedLink>, std::weak_ptr<OfferedPlaces>>> offered_;
};

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_RECEIVE_IN_PLAN_H_
