// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_book.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "peer/endpoint.h"
#include "plan/budget.h"
#include "stats/path_stats.h"
#include "wire/channel.h"
#include "xla/tsl/platform/env.h"

namespace rdmatensor {
namespace {

using tensorflow::TensorShape;

template <typename T>
bool SameOwner(const std::weak_ptr<T>& a, const std::shared_ptr<T>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

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

// The planner's input. Tasks are numbered in the order of their names, the destination comes last.
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
  rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: ", edges, " tensors (", bytes,
                                          " bytes in each step) from ", link.source,
                                          " get no place and take the dynamic path: their places "
                                          "would exceed the ",
                                          budget,
                                          " bytes left of RDMATENSOR_PLAN_LIMIT (0: "
                                          "RDMATENSOR_ARENA_LIMIT) and of the system's limit "
                                          "of locked memory (ulimit -l)")
                                 .c_str());
}

}  // namespace

InPlan::~InPlan() {
  for (const std::weak_ptr<Slots>& each : slots_) {
    if (const std::shared_ptr<Slots> slots = each.lock()) slots->Withdraw();
  }
}

void InPlan::Add(std::shared_ptr<const EdgeDefinition> edge) {
  bool complete = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (sealed_) return;
    edges_.push_back(std::move(edge));
    complete = edges_.size() >= static_cast<size_t>(expected_);
  }
  if (complete) Seal();
}

void InPlan::Seal() {
  if (sealed_.load(std::memory_order_acquire)) return;
  Endpoint* const endpoint = PlanBook::Get()->EndpointOf(task_);
  if (endpoint == nullptr || !endpoint->settings().plan) return;
  std::vector<std::shared_ptr<const PlacedLink>> links;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (sealed_) return;
    links_ = links = Place(endpoint);
    sealed_.store(true, std::memory_order_release);
  }
  PlanBook* const book = PlanBook::Get();
  for (const auto& link : links) {
    for (const PlacedEdge& edge : link->others) {
      if (edge.place.plan_class == RDT_PLAN_DYNAMIC &&
          edge.place.reason != RDT_PLAN_BECAUSE_BUDGET) {
        book->WatchEdge(shared_from_this(), edge.definition);
      }
    }
    for (const std::shared_ptr<Channel>& channel : endpoint->peers().ChannelsFrom(link->source)) {
      book->MakeOffer(shared_from_this(), link, channel);
    }
  }
}

void InPlan::SealSoon() {
  if (sealed_.load(std::memory_order_acquire) || sealing_.exchange(true)) return;
  tsl::Env::Default()->SchedClosure([self = shared_from_this()] { self->Seal(); });
}

std::vector<std::shared_ptr<const PlacedLink>> InPlan::Place(Endpoint* endpoint) {
  const PlannerInput input(edges_);
  rdt_plan_options options = OptionsOf(endpoint->settings());
  const uint64_t budget = BudgetOf(*endpoint);
  std::vector<uint64_t> budgets(input.sources.size() + 1, budget);
  options.budgets = budgets.data();
  rdt_plan* plan = nullptr;
  if (rdt_plan_make(input.edges.data(), input.edges.size(), budgets.size(), &options, &plan) !=
      RDT_OK) {
    rdt_log_line(RDT_LOG_WARN, absl::StrCat("tensorflow: a graph is not planned, its tensors take "
                                            "the dynamic path: ",
                                            rdt_last_error())
                                   .c_str());
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
                      const std::shared_ptr<Channel>& channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  offered_.erase(std::remove_if(offered_.begin(), offered_.end(),
                                [](const auto& each) {
                                  return each.first.expired() || each.second.expired();
                                }),
                 offered_.end());
  for (const auto& [known_link, known_channel] : offered_) {
    if (SameOwner(known_link, link) && SameOwner(known_channel, channel)) return false;
  }
  offered_.emplace_back(link, channel);
  return true;
}

void InPlan::AddSlots(std::weak_ptr<Slots> slots) {
  std::lock_guard<std::mutex> lock(mutex_);
  slots_.erase(
      std::remove_if(slots_.begin(), slots_.end(), [](const auto& each) { return each.expired(); }),
      slots_.end());
  slots_.push_back(std::move(slots));
}

PlanBook* PlanBook::Get() {
  static PlanBook* book = new PlanBook;
  return book;
}

PlanBook::LinkName PlanBook::NameOf(int64_t graph, const std::string& source,
                                    const std::string& destination) {
  return absl::StrCat(graph, ";", source, ";", destination);
}

void PlanBook::AddEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mutex_);
  endpoints_[endpoint->task()] = endpoint;
}

void PlanBook::RemoveEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = endpoints_.find(endpoint->task());
  if (found != endpoints_.end() && found->second == endpoint) endpoints_.erase(found);
}

Endpoint* PlanBook::EndpointOf(const std::string& task) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = endpoints_.find(task);
  return found == endpoints_.end() ? nullptr : found->second;
}

Endpoint* PlanBook::OnlyEndpoint() {
  std::lock_guard<std::mutex> lock(mutex_);
  return endpoints_.size() == 1 ? endpoints_.begin()->second : nullptr;
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
  edge->plan->Add(edge->definition);
  return edge;
}

std::shared_ptr<OutEdge> PlanBook::AddSend(EdgeDefinition definition) {
  const LinkName link = NameOf(definition.graph, definition.source, definition.destination);
  std::shared_ptr<OutEdge> edge;
  std::vector<std::weak_ptr<Routes>> offers;
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
  for (const std::weak_ptr<Routes>& each : offers) {
    if (const std::shared_ptr<Routes> routes = each.lock()) routes->Bind(edge);
  }
  return edge;
}

void PlanBook::Bind(Endpoint* endpoint, const std::shared_ptr<Routes>& routes) {
  if (!endpoint->settings().plan) return;
  std::vector<std::shared_ptr<OutEdge>> edges;
  for (const std::shared_ptr<DestinationLink>& destination : routes->channel()->Destinations()) {
    const LinkName link = NameOf(routes->offer().graph, endpoint->task(), destination->task());
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::weak_ptr<Routes>>& offers = offers_[link];
    offers.erase(std::remove_if(offers.begin(), offers.end(),
                                [&routes](const auto& each) {
                                  return each.expired() || SameOwner(each, routes);
                                }),
                 offers.end());
    offers.push_back(routes);
    for (const auto& entry : sends_[link]) {
      if (std::shared_ptr<OutEdge> edge = entry.second.lock()) edges.push_back(std::move(edge));
    }
  }
  for (const std::shared_ptr<OutEdge>& edge : edges) routes->Bind(edge);
}

std::vector<std::shared_ptr<InPlan>> PlanBook::AllPlans(const std::string& task) {
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
  absl::erase_if(watched_, [](const auto& entry) { return entry.second.plan.expired(); });
  absl::erase_if(sends_, [&gone](auto& entry) {
    absl::erase_if(entry.second, gone);
    return entry.second.empty();
  });
  absl::erase_if(offers_, [](const auto& entry) {
    return std::all_of(entry.second.begin(), entry.second.end(),
                       [](const auto& routes) { return routes.expired(); });
  });
  sweep_at_ = std::max(size_t{1024}, 2 * size());
}

void PlanBook::OfferAll(Endpoint* endpoint, const std::string& source,
                        const std::shared_ptr<Channel>& channel) {
  for (const std::shared_ptr<InPlan>& plan : AllPlans(endpoint->task())) {
    for (const std::shared_ptr<const PlacedLink>& link : plan->Links()) {
      if (link->source == source) MakeOffer(plan, link, channel);
    }
  }
}

std::shared_ptr<Slots> PlanBook::MakeOffer(const std::shared_ptr<InPlan>& plan,
                                           const std::shared_ptr<const PlacedLink>& link,
                                           const std::shared_ptr<Channel>& channel) {
  if (link->rings.empty() || !plan->MayOffer(link, channel)) return nullptr;
  absl::StatusOr<std::shared_ptr<Slots>> slots = channel->plan().MakeOffer(link);
  if (slots.ok()) {
    plan->AddSlots(*slots);
    rdt_log_line(RDT_LOG_DEBUG,
                 absl::StrCat("plan: ", link->edges.size(), " tensors from ", link->source,
                              " get places, of ", link->bytes, " bytes")
                     .c_str());
    return *slots;
  }
  if (absl::IsResourceExhausted(slots.status())) {
    rdt_log_line(RDT_LOG_WARN,
                 absl::StrCat("tensorflow: ", link->edges.size(), " planned tensors from ",
                              link->source, " take the dynamic path, their places need ",
                              link->bytes, " bytes: ", slots.status().message())
                     .c_str());
  }
  return nullptr;
}

}  // namespace rdmatensor
