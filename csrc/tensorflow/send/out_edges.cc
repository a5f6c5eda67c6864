// SPDX-License-Identifier: Apache-2.0
#include "send/out_edges.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/same_owner.h"

namespace rdmatensor {

OutEdges* OutEdges::Get() {
  static OutEdges* edges = new OutEdges;
  return edges;
}

OutEdges::Link& OutEdges::LinkLocked(int64_t graph, const std::string& source,
                                     const std::string& destination) {
  // Forgets graphs that are gone, whenever there are twice as many links as were left last time.
  if (links_.size() >= sweep_at_) {
    absl::erase_if(links_, [](auto& entry) {
      Link& link = entry.second;
      absl::erase_if(link.edges, [](const auto& edge) { return edge.second.expired(); });
      return link.edges.empty() &&
             std::all_of(link.offers.begin(), link.offers.end(),
                         [](const Offered& each) { return each.accepted.expired(); });
    });
    sweep_at_ = std::max(size_t{1024}, 2 * links_.size());
  }
  return links_[absl::StrCat(graph, ";", source, ";", destination)];
}

std::shared_ptr<OutEdge> OutEdges::Add(EdgeDefinition definition) {
  std::shared_ptr<OutEdge> edge;
  std::vector<Offered> offers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = LinkLocked(definition.graph, definition.source, definition.destination);
    std::weak_ptr<OutEdge>& known = link.edges[definition.name];
    if ((edge = known.lock()) != nullptr) return edge;
    edge = std::make_shared<OutEdge>();
    std::vector<int64_t> dims;
    const rdt_plan_edge described = Describe(definition, &dims);
    edge->hash = rdt_plan_edge_hash(&described);
    edge->definition = std::make_shared<const EdgeDefinition>(std::move(definition));
    known = edge;
    offers = link.offers;
  }
  for (const Offered& each : offers) {
    if (const std::shared_ptr<AcceptedOffer> accepted = each.accepted.lock())
      accepted->Bind(edge, each.gate);
  }
  return edge;
}

void OutEdges::Bind(const ServerContext& server, const std::string& destination,
                    const std::shared_ptr<PushGate>& gate,
                    const std::shared_ptr<AcceptedOffer>& accepted) {
  if (!server.settings.plan) return;
  std::vector<std::shared_ptr<OutEdge>> edges;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Link& link = LinkLocked(accepted->offer().graph, server.task, destination);
    std::vector<Offered>& offers = link.offers;
    offers.erase(std::remove_if(offers.begin(), offers.end(),
                                [&accepted](const Offered& each) {
                                  return each.accepted.expired() ||
                                         SameOwner(each.accepted, accepted);
                                }),
                 offers.end());
    offers.push_back({accepted, gate});
    for (const auto& entry : link.edges) {
      if (std::shared_ptr<OutEdge> edge = entry.second.lock()) edges.push_back(std::move(edge));
    }
  }
  for (const std::shared_ptr<OutEdge>& edge : edges) accepted->Bind(edge, gate);
}

}  // namespace rdmatensor
