// SPDX-License-Identifier: Apache-2.0
#include "receive/in_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/same_owner.h"
#include "base/seldom.h"
#include "channel/budget.h"
#include "stats/path_stats.h"

namespace rdmatensor {
namespace {

rdt_plan_options OptionsOf(const Settings& settings) {
  rdt_plan_options options{};
  options.struct_size = sizeof options;
  options.slots = static_cast<uint32_t>(settings.plan_slots);
  options.loop_slots = static_cast<uint32_t>(settings.plan_loop_slots);
  options.batch = settings.batch_size;
  options.fuse_bytes = settings.fuse_bytes;
  options.fuse_group_bytes = kGroupBytes;
  return options;
}

// The planner's input. Tasks are numbered in the order of their names; the destination comes last.
struct PlannerInput {
  std::vector<std::string> sources;
  std::vector<std::vector<int64_t>> dims;
  std::vector<rdt_plan_edge> edges;

  explicit PlannerInput(const std::vector<std::shared_ptr<const EdgeDefinition>>& definitions)
      : dims(definitions.size()) {
    for (const auto& each : definitions) sources.push_back(each->source);
    std::sort(sources.begin(), sources.end());
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    for (size_t i = 0; i < definitions.size(); ++i) {
      rdt_plan_edge edge = Describe(*definitions[i], &dims[i]);
      edge.source = static_cast<uint32_t>(
          std::lower_bound(sources.begin(), sources.end(), definitions[i]->source) -
          sources.begin());
      edge.destination = static_cast<uint32_t>(sources.size());
      edges.push_back(edge);
    }
  }
};

void AddEdge(PlacedLink* link, std::shared_ptr<const EdgeDefinition> definition,
             const rdt_plan_edge& edge, const rdt_plan_place& place) {
  PlacedEdge placed;
  placed.hash = rdt_plan_edge_hash(&edge);
  placed.place = place;
  placed.has_static_shape = definition->shape.AsTensorShape(&placed.shape);
  placed.definition = std::move(definition);
  if (place.plan_class != RDT_PLAN_STATIC && place.plan_class != RDT_PLAN_BOUNDED) {
    link->others.push_back(std::move(placed));
    return;
  }
  if (place.group >= 0) {
    const size_t group = static_cast<size_t>(place.group);
    if (link->groups.size() <= group) link->groups.resize(group + 1);
    link->groups[group].push_back(static_cast<uint32_t>(link->edges.size()));
  }
  link->edges.push_back(std::move(placed));
}

void LogBudget(const PlacedLink& link, uint64_t budget) {
  uint64_t edges = 0, bytes = 0;
  for (const PlacedEdge& edge : link.others) {
    if (edge.place.reason != RDT_PLAN_BECAUSE_BUDGET) continue;
    ++edges;
    bytes += edge.place.bytes;
  }
  if (edges == 0) return;
  CountPlan(PlanEvent::kOverBudget, edges);
  static Seldom seldom;
  seldom.Warn(absl::StrCat(
      "tensorflow: ", edges, " tensors (", bytes, " bytes in each step) from ", link.source,
      " get no place and take the dynamic path: their places would exceed the ", budget,
      " bytes left of RDMATENSOR_PLAN_LIMIT (0: RDMATENSOR_ARENA_LIMIT) and of "
      "the system's limit of locked memory (ulimit -l)"));
}

}  // namespace

bool InPlan::Use(int64_t step_id, std::atomic<uint64_t>* clock) {
  if (last_step_.load(std::memory_order_relaxed) == step_id) return false;
  if (last_step_.exchange(step_id, std::memory_order_relaxed) == step_id) return false;
  const uint64_t now = clock->fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t uses = uses_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint64_t before = last_use_.exchange(now, std::memory_order_relaxed);
  return rests() && now - before <= uses * kPatience && rests_.exchange(false);
}

void InPlan::RestIfIdle(uint64_t now, uint64_t patience) {
  const uint64_t uses = std::max<uint64_t>(1, uses_.load(std::memory_order_relaxed));
  if (now <= last_use_.load(std::memory_order_relaxed) + uses * patience) return;
  std::vector<std::weak_ptr<Slots>> withdrawn;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (rests_.exchange(true)) return;
    withdrawn.swap(slots_);
    offered_.clear();
    links_.resize(planned_links_);
  }
  for (const std::weak_ptr<Slots>& each : withdrawn) {
    if (const std::shared_ptr<Slots> slots = each.lock()) slots->Withdraw();
  }
}

InPlan::~InPlan() {
  for (const std::weak_ptr<Slots>& each : slots_) {
    if (const std::shared_ptr<Slots> slots = each.lock()) slots->Withdraw();
  }
}

bool InPlan::Add(std::shared_ptr<const EdgeDefinition> edge) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sealed_) return false;
  edges_.push_back(std::move(edge));
  return edges_.size() >= static_cast<size_t>(expected_);
}

bool InPlan::Place(const ServerContext& server,
                   std::vector<std::shared_ptr<const PlacedLink>>* links) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (sealed_) return false;
  *links = links_ = PlaceLocked(server);
  planned_links_ = links_.size();
  sealed_.store(true, std::memory_order_release);
  return true;
}

std::vector<std::shared_ptr<const PlacedLink>> InPlan::PlaceLocked(const ServerContext& server) {
  const PlannerInput input(edges_);
  rdt_plan_options options = OptionsOf(server.settings);
  const uint64_t budget = BudgetOf(server);
  std::vector<uint64_t> budgets(input.sources.size() + 1, budget);
  options.budgets = budgets.data();
  rdt_plan* plan = nullptr;
  if (rdt_plan_make(input.edges.data(), input.edges.size(), budgets.size(), &options, &plan) !=
      RDT_OK) {
    static Seldom seldom;
    seldom.Warn(
        absl::StrCat("tensorflow: a graph is not planned, its tensors take the dynamic path: ",
                     rdt_last_error()));
    return {};
  }
  std::vector<std::shared_ptr<const PlacedLink>> links;
  for (size_t at = 0; at < rdt_plan_link_count(plan); ++at) {
    rdt_plan_link summary{};
    (void)rdt_plan_get_link(plan, at, &summary);
    auto link = std::make_shared<PlacedLink>();
    link->graph = graph_;
    link->source = input.sources[summary.source];
    link->destination = task_;
    link->bytes = summary.bytes;
    link->hash = summary.hash;
    for (uint32_t number = 0; number < summary.ring_count; ++number) {
      rdt_plan_ring ring{};
      (void)rdt_plan_get_ring(plan, at, number, &ring);
      link->rings.push_back({ring.offset, ring.stride, ring.slots});
    }
    for (size_t i = 0; i < input.edges.size(); ++i) {
      if (input.edges[i].source != summary.source) continue;
      rdt_plan_place place{};
      (void)rdt_plan_get_place(plan, i, &place);
      AddEdge(link.get(), edges_[i], input.edges[i], place);
    }
    LogBudget(*link, budget);
    links.push_back(std::move(link));
  }
  rdt_plan_free(plan);
  return links;
}

std::vector<std::shared_ptr<const PlacedLink>> InPlan::Links() {
  std::lock_guard<std::mutex> lock(mutex_);
  return links_;
}

void InPlan::AddLink(std::shared_ptr<const PlacedLink> link) {
  std::lock_guard<std::mutex> lock(mutex_);
  links_.push_back(std::move(link));
}

void InPlan::RemoveLink(const PlacedLink* link) {
  std::lock_guard<std::mutex> lock(mutex_);
  links_.erase(std::remove_if(links_.begin(), links_.end(),
                              [link](const auto& each) { return each.get() == link; }),
               links_.end());
}

bool InPlan::MayOffer(const std::shared_ptr<const PlacedLink>& link,
                      const std::shared_ptr<OfferedPlaces>& places) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (rests()) return false;
  offered_.erase(std::remove_if(offered_.begin(), offered_.end(),
                                [](const auto& each) {
                                  return each.first.expired() || each.second.expired();
                                }),
                 offered_.end());
  for (const auto& [known_link, known_places] : offered_) {
    if (SameOwner(known_link, link) && SameOwner(known_places, places)) return false;
  }
  offered_.emplace_back(link, places);
  return true;
}

void InPlan::ForgetOffers(const std::shared_ptr<OfferedPlaces>& places) {
  std::lock_guard<std::mutex> lock(mutex_);
  offered_.erase(
      std::remove_if(offered_.begin(), offered_.end(),
                     [&places](const auto& each) { return SameOwner(each.second, places); }),
      offered_.end());
}

bool InPlan::AddSlots(std::weak_ptr<Slots> slots) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (rests()) return false;
  slots_.erase(
      std::remove_if(slots_.begin(), slots_.end(), [](const auto& each) { return each.expired(); }),
      slots_.end());
  slots_.push_back(std::move(slots));
  return true;
}

std::shared_ptr<Slots> InPlan::MakeOffer(const std::shared_ptr<const PlacedLink>& link,
                                         const std::shared_ptr<OfferedPlaces>& places) {
  if (link->rings.empty() || !MayOffer(link, places)) return nullptr;
  absl::StatusOr<std::shared_ptr<Slots>> slots = places->MakeOffer(link);
  if (slots.ok()) {
    if (!AddSlots(*slots)) {
      (*slots)->Withdraw();
      return nullptr;
    }
    rdt_log_line(RDT_LOG_DEBUG,
                 absl::StrCat("plan: ", link->edges.size(), " tensors from ", link->source,
                              " get places, of ", link->bytes, " bytes")
                     .c_str());
    return *slots;
  }
  if (absl::IsResourceExhausted(slots.status())) {
    static Seldom seldom;
    seldom.Warn(absl::StrCat("tensorflow: ", link->edges.size(), " planned tensors from ",
                             link->source, " take the dynamic path, their places need ",
                             link->bytes, " bytes: ", slots.status().message()));
  }
  return nullptr;
}

}  // namespace rdmatensor
