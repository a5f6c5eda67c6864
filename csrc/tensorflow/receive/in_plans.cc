// SPDX-License-Identifier: Apache-2.0
#include "receive/in_plans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel/budget.h"
#include "channel/peers.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

InPlans* InPlans::Get() {
  static InPlans* plans = new InPlans;
  return plans;
}

std::shared_ptr<InEdge> InPlans::Add(EdgeDefinition definition) {
  std::shared_ptr<InEdge> edge;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SweepLocked();
    std::weak_ptr<InEdge>& known =
        edges_[absl::StrCat(definition.graph, ";", definition.key_prefix)];
    if ((edge = known.lock()) != nullptr) return edge;
    std::weak_ptr<InPlan>& found =
        plans_[absl::StrCat(definition.graph, ";", definition.destination)];
    edge = std::make_shared<InEdge>();
    edge->plan = found.lock();
    if (edge->plan == nullptr) {
      edge->plan =
          std::make_shared<InPlan>(definition.graph, definition.destination, definition.count);
      found = edge->plan;
    }
    edge->waits = WaitsOf(definition.source, definition.destination, definition.name);
    edge->definition = std::make_shared<const EdgeDefinition>(std::move(definition));
    known = edge;
  }
  if (edge->plan->Add(edge->definition)) Seal(edge->plan);
  return edge;
}

std::vector<std::shared_ptr<InPlan>> InPlans::Of(const std::string& task) {
  std::vector<std::shared_ptr<InPlan>> plans;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& entry : plans_) {
      // A last reference must not go under the lock.
      if (std::shared_ptr<InPlan> plan = entry.second.lock()) plans.push_back(std::move(plan));
    }
  }
  plans.erase(std::remove_if(plans.begin(), plans.end(),
                             [&task](const auto& plan) { return plan->task() != task; }),
              plans.end());
  return plans;
}

void InPlans::SweepLocked() {
  if (edges_.size() < sweep_at_) return;
  const auto gone = [](const auto& entry) { return entry.second.expired(); };
  absl::erase_if(edges_, gone);
  absl::erase_if(plans_, gone);
  promotion_.Sweep();
  sweep_at_ = std::max(size_t{1024}, 2 * edges_.size());
}

void InPlans::OfferAll(const ServerContext& server, const std::string& source,
                       const std::shared_ptr<OfferedPlaces>& places) {
  for (const std::shared_ptr<InPlan>& plan : Of(server.task)) {
    for (const std::shared_ptr<const PlacedLink>& link : plan->Links()) {
      if (link->source == source) plan->MakeOffer(link, places);
    }
  }
}

void InPlans::OfferAllAgain(const ServerContext& server, const std::string& source,
                            const std::shared_ptr<OfferedPlaces>& places) {
  for (const std::shared_ptr<InPlan>& plan : Of(server.task)) plan->ForgetOffers(places);
  OfferAll(server, source, places);
}

void InPlans::Seal(const std::shared_ptr<InPlan>& plan) {
  const ServerContext* const server = ServerContexts::Get()->Of(plan->task());
  std::vector<std::shared_ptr<const PlacedLink>> links;
  if (plan->is_placed() || server == nullptr || !server->settings.plan ||
      !plan->Place(*server, &links)) {
    return;
  }
  plan->BeginAt(clock_.load(std::memory_order_relaxed));
  for (const auto& link : links) {
    for (const PlacedEdge& edge : link->others) {
      if (edge.place.plan_class == RDT_PLAN_DYNAMIC &&
          edge.place.reason != RDT_PLAN_BECAUSE_BUDGET) {
        promotion_.Watch(plan, edge.definition);
      }
    }
  }
  Offer(plan);
}

void InPlans::Offer(const std::shared_ptr<InPlan>& plan) {
  const ServerContext* const server = ServerContexts::Get()->Of(plan->task());
  if (server == nullptr) return;
  for (const auto& link : plan->Links()) {
    for (const auto& places : server->peers->PlacesFrom(link->source))
      plan->MakeOffer(link, places);
  }
  std::vector<std::shared_ptr<InPlan>> others;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto leaves = [&](const std::weak_ptr<InPlan>& each) {
      // A last reference must not go under the lock.
      if (std::shared_ptr<InPlan> held = each.lock()) others.push_back(std::move(held));
      return each.expired() || others.back() == plan || others.back()->rests();
    };
    placed_.erase(std::remove_if(placed_.begin(), placed_.end(), leaves), placed_.end());
    placed_.push_back(plan);
  }
  // The less is left, the sooner.
  const uint64_t patience = BudgetOf(*server) < PlaceBytes() ? 1 : kPatience;
  const uint64_t now = clock_.load(std::memory_order_relaxed);
  for (const std::shared_ptr<InPlan>& each : others) (void)each->RestIfIdle(now, patience);
}

void InPlans::Use(const std::shared_ptr<InPlan>& plan, int64_t step_id) {
  const bool again = plan->Use(step_id, &clock_);
  if (!again && !plan->BeginPlacing()) return;
  tsl::Env::Default()->SchedClosure([this, plan, again] { again ? Offer(plan) : Seal(plan); });
}

}  // namespace rdmatensor
