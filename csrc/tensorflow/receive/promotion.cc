// SPDX-License-Identifier: Apache-2.0
#include "receive/promotion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/budget.h"
#include "stats/path_stats.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

uint64_t BytesOf(const EdgeDefinition& edge, const tensorflow::TensorShape& shape) {
  return static_cast<uint64_t>(shape.num_elements()) *
         static_cast<uint64_t>(tensorflow::DataTypeSize(edge.dtype));
}

// Makes a link of this one edge.
std::shared_ptr<const PlacedLink> LinkOf(std::shared_ptr<const EdgeDefinition> definition,
                                         uint64_t bytes, const Settings& settings) {
  constexpr uint64_t kAlignment = EIGEN_MAX_ALIGN_BYTES;
  auto link = std::make_shared<PlacedLink>();
  const uint64_t slots = definition->in_loop ? settings.plan_loop_slots : settings.plan_slots;
  const uint64_t stride = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  PlacedEdge edge;
  std::vector<int64_t> dims;
  const rdt_plan_edge described = Describe(*definition, &dims);
  edge.hash = rdt_plan_edge_hash(&described);
  edge.place.plan_class = RDT_PLAN_BOUNDED;
  edge.place.reason =
      definition->shape.unknown_rank() ? RDT_PLAN_BECAUSE_RANK : RDT_PLAN_BECAUSE_DIMENSION;
  edge.place.bytes = bytes;
  edge.place.ring = 0;
  edge.place.group = -1;
  link->graph = definition->graph;
  link->source = definition->source;
  link->destination = definition->destination;
  link->rings.push_back({0, stride, static_cast<uint32_t>(slots)});
  link->bytes = stride * slots;
  edge.definition = std::move(definition);
  link->edges.push_back(std::move(edge));
  return link;
}

void LogEdge(const PlacedEdge& edge, const char* what) {
  rdt_log_line(RDT_LOG_DEBUG, absl::StrCat("plan: ", edge.definition->name, " from ",
                                           edge.definition->source, " ", what)
                                  .c_str());
}

}  // namespace

void Promotion::Watch(const std::shared_ptr<InPlan>& plan,
                      std::shared_ptr<const EdgeDefinition> definition) {
  std::lock_guard<std::mutex> lock(mutex_);
  Watched& watch = watched_[definition->key];
  watch = Watched();
  watch.plan = plan;
  watch.definition = std::move(definition);
  any_watched_.store(true, std::memory_order_release);
}

void Promotion::Observe(const ServerContext& server, absl::string_view key,
                        const tensorflow::TensorShape& shape,
                        const std::shared_ptr<OfferedPlaces>& places) {
  if (!any_watched_.load(std::memory_order_acquire) || server.settings.promote_after == 0) {
    return;
  }
  const KeyId id = KeyId::OfPrefix(key.substr(0, key.rfind(';')));
  std::shared_ptr<Slots> demoted;
  std::shared_ptr<InPlan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = watched_.find(id);
    if (found == watched_.end()) return;
    Watched& watch = found->second;
    plan = watch.plan.lock();
    if (plan == nullptr) {
      watched_.erase(found);
      return;
    }
    if (watch.promoting) return;
    demoted = watch.slots.lock();
    // The tensor fits its place, which was busy or is not known to the sender yet.
    if (demoted != nullptr && BytesOf(*watch.definition, shape) <= watch.capacity) return;
    watch.slots.reset();
    watch.times = watch.shape == shape ? watch.times + 1 : 1;
    watch.shape = shape;
    watch.promoting =
        watch.times >= server.settings.promote_after && BytesOf(*watch.definition, shape) != 0;
    if (watch.promoting) {
      tsl::Env::Default()->SchedClosure(
          [this, &server, id, places] { Promote(server, id, places); });
    }
  }
  if (demoted == nullptr) return;
  CountPlan(PlanEvent::kDemoted);
  LogEdge(demoted->link().edges.front(), "loses its place: a tensor did not fit");
  plan->RemoveLink(&demoted->link());
  demoted->Withdraw();
}

void Promotion::Sweep() {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::erase_if(watched_, [](const auto& entry) { return entry.second.plan.expired(); });
}

void Promotion::Promote(const ServerContext& server, KeyId key,
                        const std::shared_ptr<OfferedPlaces>& places) {
  std::shared_ptr<InPlan> plan;
  std::shared_ptr<const PlacedLink> link;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = watched_.find(key);
    if (found == watched_.end() || (plan = found->second.plan.lock()) == nullptr) return;
    Watched& watch = found->second;
    watch.capacity = BytesOf(*watch.definition, watch.shape);
    link = LinkOf(watch.definition, watch.capacity, server.settings);
  }
  std::shared_ptr<Slots> slots;
  if (link->bytes <= BudgetOf(server)) slots = plan->MakeOffer(link, places);
  if (slots != nullptr) {
    CountPlan(PlanEvent::kPromoted);
    LogEdge(link->edges.front(), "gets a place, because of the sizes seen");
    plan->AddLink(link);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = watched_.find(key);
  if (found == watched_.end()) return;
  found->second.promoting = false;
  found->second.slots = slots;
  // If it got no place, the next attempt follows after as many tensors as before.
  found->second.times = 0;
}

}  // namespace rdmatensor
