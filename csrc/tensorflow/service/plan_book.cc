// SPDX-License-Identifier: Apache-2.0
#include "service/plan_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/same_owner.h"
#include "receive/budget.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {

PlanBook* PlanBook::Get() {
  static PlanBook* book = new PlanBook;
  return book;
}

PlanBook::LinkName PlanBook::NameOf(int64_t graph, const std::string& source,
                                    const std::string& destination) {
  return absl::StrCat(graph, ";", source, ";", destination);
}

void PlanBook::AddHost(const Host* host, PlannedFrom planned_from) {
  std::lock_guard<std::mutex> lock(mutex_);
  servers_[host->task] = {host, std::move(planned_from)};
}

void PlanBook::RemoveHost(const Host* host) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = servers_.find(host->task);
  if (found != servers_.end() && found->second.host == host) servers_.erase(found);
}

const Host* PlanBook::HostOf(const std::string& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = servers_.find(task);
  return found == servers_.end() ? nullptr : found->second.host;
}

const Host* PlanBook::OnlyHost() {
  std::lock_guard<std::mutex> lock(mutex_);
  return servers_.size() == 1 ? servers_.begin()->second.host : nullptr;
}

void PlanBook::ForEachHost(absl::FunctionRef<void(const Host&)> visit) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : servers_) visit(*entry.second.host);
}

std::shared_ptr<InEdge> PlanBook::AddReceive(EdgeDefinition definition) {
  std::shared_ptr<InEdge> edge;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SweepLocked();
    std::weak_ptr<InEdge>& known =
        receives_[absl::StrCat(definition.graph, ";", definition.key_prefix)];
    if ((edge = known.lock()) != nullptr) return edge;
    std::weak_ptr<InPlan>& found = plans_[NameOf(definition.graph, "", definition.destination)];
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

std::shared_ptr<OutEdge> PlanBook::AddSend(EdgeDefinition definition) {
  const LinkName link = NameOf(definition.graph, definition.source, definition.destination);
  std::shared_ptr<OutEdge> edge;
  std::vector<Offered> offers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    SweepLocked();
    std::weak_ptr<OutEdge>& known = sends_[link][definition.name];
    if ((edge = known.lock()) != nullptr) return edge;
    edge = std::make_shared<OutEdge>();
    std::vector<int64_t> dims;
    const rdt_plan_edge described = Describe(definition, &dims);
    edge->hash = rdt_plan_edge_hash(&described);
    edge->definition = std::make_shared<const EdgeDefinition>(std::move(definition));
    known = edge;
    auto found = offers_.find(link);
    if (found != offers_.end()) offers = found->second;
  }
  for (const Offered& each : offers) {
    if (const std::shared_ptr<AcceptedOffer> accepted = each.accepted.lock())
      accepted->Bind(edge, each.gate);
  }
  return edge;
}

void PlanBook::Bind(const Host& host, const std::string& destination,
                    const std::shared_ptr<PushGate>& gate,
                    const std::shared_ptr<AcceptedOffer>& accepted) {
  if (!host.settings.plan) return;
  const LinkName link = NameOf(accepted->offer().graph, host.task, destination);
  std::vector<std::shared_ptr<OutEdge>> edges;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Offered>& offers = offers_[link];
    offers.erase(std::remove_if(offers.begin(), offers.end(),
                                [&accepted](const Offered& each) {
                                  return each.accepted.expired() ||
                                         SameOwner(each.accepted, accepted);
                                }),
                 offers.end());
    offers.push_back({accepted, gate});
    for (const auto& entry : sends_[link]) {
      if (std::shared_ptr<OutEdge> edge = entry.second.lock()) edges.push_back(std::move(edge));
    }
  }
  for (const std::shared_ptr<OutEdge>& edge : edges) accepted->Bind(edge, gate);
}

std::vector<std::shared_ptr<InPlan>> PlanBook::PlansOf(const std::string& task) {
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

void PlanBook::SweepLocked() {
  const auto size = [this] { return receives_.size() + sends_.size() + offers_.size(); };
  if (size() < sweep_at_) return;
  const auto gone = [](const auto& entry) { return entry.second.expired(); };
  absl::erase_if(receives_, gone);
  absl::erase_if(plans_, gone);
  promotion_.Sweep();
  absl::erase_if(sends_, [&gone](auto& entry) {
    absl::erase_if(entry.second, gone);
    return entry.second.empty();
  });
  absl::erase_if(offers_, [](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(),
                       [](const Offered& each) { return each.accepted.expired(); });
  });
  sweep_at_ = std::max(size_t{1024}, 2 * size());
}

void PlanBook::OfferAll(const Host& host, const std::string& source,
                        const std::shared_ptr<PlannedTensors>& planned) {
  for (const std::shared_ptr<InPlan>& plan : PlansOf(host.task)) {
    for (const std::shared_ptr<const PlacedLink>& link : plan->Links()) {
      if (link->source == source) plan->MakeOffer(link, planned);
    }
  }
}

void PlanBook::OfferAllAgain(const Host& host, const std::string& source,
                             const std::shared_ptr<PlannedTensors>& planned) {
  for (const std::shared_ptr<InPlan>& plan : PlansOf(host.task)) plan->ForgetOffers(planned);
  OfferAll(host, source, planned);
}

bool PlanBook::FindServer(const std::string& task, Server* server) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = servers_.find(task);
  if (found != servers_.end()) *server = found->second;
  return found != servers_.end();
}

void PlanBook::Seal(const std::shared_ptr<InPlan>& plan) {
  Server server;
  std::vector<std::shared_ptr<const PlacedLink>> links;
  if (plan->is_placed() || !FindServer(plan->task(), &server) || !server.host->settings.plan ||
      !plan->Place(*server.host, &links)) {
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

void PlanBook::Offer(const std::shared_ptr<InPlan>& plan) {
  Server server;
  if (!FindServer(plan->task(), &server)) return;
  for (const auto& link : plan->Links()) {
    for (const auto& planned : server.planned_from(link->source)) plan->MakeOffer(link, planned);
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
  const uint64_t patience = BudgetOf(*server.host) < PlaceBytes() ? 1 : kPatience;
  const uint64_t now = clock_.load(std::memory_order_relaxed);
  for (const std::shared_ptr<InPlan>& each : others) (void)each->RestIfIdle(now, patience);
}

void PlanBook::Use(const std::shared_ptr<InPlan>& plan, int64_t step_id) {
  const bool again = plan->Use(step_id, &clock_);
  if (!again && !plan->BeginPlacing()) return;
  tsl::Env::Default()->SchedClosure([this, plan, again] { again ? Offer(plan) : Seal(plan); });
}

}  // namespace rdmatensor
