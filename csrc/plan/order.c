/* SPDX-License-Identifier: Apache-2.0
 *
 * Derives from a placed graph in what order its tensors become ready. The *level* of a node is the
 * largest number of arcs between tasks on any path to it. Tensors travel as a group only if their
 * producers have one level, and none of these is, or depends on, a loop or a node that waits for
 * more than its inputs. No such group waits for itself: its members need the arrival of tensors of
 * lower levels only, which in turn travel alone or in groups of their own, lower level; by
 * induction over levels, every group gets complete. The *depth* is not needed for that: it keeps
 * tensors apart that become ready at different times, so that the first need not wait long for the
 * last.
 */
#include "plan/order.h"

#include <stdlib.h>

#include "base/status.h"

static rdt_status no_memory(void) {
  return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left to put the graph in order");
}

static rdt_status check_use(const rdt_plan_node *nodes, size_t node_count, const rdt_plan_use *use,
                            size_t index) {
  if (use->producer >= node_count || use->consumer_count == 0 || !use->consumers)
    return rdt_fail(RDT_ERR_INVALID, "tensor %zu has producer %u of %zu nodes, and %zu consumers",
                    index, use->producer, node_count, use->consumer_count);
  for (size_t i = 0; i < use->consumer_count; i++) {
    uint32_t consumer = use->consumers[i];
    if (consumer >= node_count)
      return rdt_fail(RDT_ERR_INVALID, "tensor %zu has consumer %u of %zu nodes", index, consumer,
                      node_count);
    if (nodes[consumer].task != nodes[use->consumers[0]].task)
      return rdt_fail(RDT_ERR_INVALID, "tensor %zu has consumers in tasks %u and %u", index,
                      nodes[use->consumers[0]].task, nodes[consumer].task);
  }
  return RDT_OK;
}

static rdt_status check_arguments(const rdt_plan_node *nodes, size_t node_count,
                                  const rdt_plan_arc *arcs, size_t arc_count,
                                  const rdt_plan_use *uses, size_t use_count,
                                  const rdt_plan_order *orders) {
  if ((node_count && !nodes) || (arc_count && !arcs) || (use_count && (!uses || !orders)))
    return rdt_fail(RDT_ERR_INVALID, "no nodes, arcs, tensors or place for their order");
  if (node_count > INT32_MAX)
    return rdt_fail(RDT_ERR_INVALID, "%zu nodes are too many for one plan", node_count);
  for (size_t i = 0; i < arc_count; i++)
    if (arcs[i].from >= node_count || arcs[i].to >= node_count)
      return rdt_fail(RDT_ERR_INVALID, "arc %zu goes from node %u to node %u, of %zu", i,
                      arcs[i].from, arcs[i].to, node_count);
  for (size_t i = 0; i < use_count; i++) {
    rdt_status status = check_use(nodes, node_count, &uses[i], i);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static void free_graph(plan_graph *graph) {
  free(graph->starts);
  free(graph->next);
  free(graph->sorted);
  free(graph->level);
  free(graph->depth);
  free(graph->marks);
}

static rdt_status init_graph(plan_graph *graph) {
  size_t room = graph->node_count + 1;
  graph->starts = calloc(room + 1, sizeof(graph->starts[0]));
  graph->next = calloc(graph->arc_count + 1, sizeof(graph->next[0]));
  graph->sorted = calloc(room, sizeof(graph->sorted[0]));
  graph->level = calloc(room, sizeof(graph->level[0]));
  graph->depth = calloc(room, sizeof(graph->depth[0]));
  graph->marks = calloc(room, sizeof(graph->marks[0]));
  if (!graph->starts || !graph->next || !graph->sorted || !graph->level || !graph->depth ||
      !graph->marks)
    return no_memory();
  return RDT_OK;
}

static void link_nodes(plan_graph *graph, const rdt_plan_arc *arcs) {
  /* Shifted by one: filling moves every start to its successor's place. */
  for (size_t i = 0; i < graph->arc_count; i++) graph->starts[arcs[i].from + 2]++;
  for (size_t n = 2; n <= graph->node_count; n++) graph->starts[n] += graph->starts[n - 1];
  for (size_t i = 0; i < graph->arc_count; i++)
    graph->next[graph->starts[arcs[i].from + 1]++] = arcs[i].to;
}

static int32_t takes_time(const rdt_plan_node *node) { return !(node->flags & RDT_NODE_FREE); }

/* Updates `to` with what it inherits from its predecessor `from`. */
static void inherit(plan_graph *graph, uint32_t from, uint32_t to) {
  int32_t level = graph->level[from] + (graph->nodes[from].task != graph->nodes[to].task);
  int32_t depth = graph->depth[from] + takes_time(&graph->nodes[to]);
  if (level > graph->level[to]) graph->level[to] = level;
  if (depth > graph->depth[to]) graph->depth[to] = depth;
  graph->marks[to] |= graph->marks[from] & (PLAN_WAITS | PLAN_DIES);
}

/* Sorts by Kahn's algorithm. `waiting` has the number of predecessors that are not sorted yet. */
static void sort_nodes(plan_graph *graph, uint32_t *waiting) {
  for (size_t i = 0; i < graph->arc_count; i++) waiting[graph->next[i]]++;
  for (size_t n = 0; n < graph->node_count; n++) {
    uint32_t flags = graph->nodes[n].flags;
    graph->depth[n] = takes_time(&graph->nodes[n]);
    if (flags & RDT_NODE_LOOP) graph->marks[n] |= PLAN_LOOP | PLAN_WAITS;
    if (flags & RDT_NODE_BLOCKS) graph->marks[n] |= PLAN_WAITS;
    if (flags & RDT_NODE_BRANCH) graph->marks[n] |= PLAN_DIES;
    if (waiting[n] == 0) graph->sorted[graph->sorted_count++] = (uint32_t)n;
  }
  for (size_t i = 0; i < graph->sorted_count; i++) {
    uint32_t from = graph->sorted[i];
    for (size_t j = graph->starts[from]; j < graph->starts[from + 1]; j++) {
      uint32_t to = graph->next[j];
      inherit(graph, from, to);
      if (--waiting[to] == 0) graph->sorted[graph->sorted_count++] = to;
    }
  }
  for (size_t n = 0; n < graph->node_count; n++)
    if (waiting[n]) graph->marks[n] = PLAN_LOOP | PLAN_WAITS | PLAN_DIES;
}

static rdt_status build_graph(plan_graph *graph, const rdt_plan_arc *arcs) {
  rdt_status status = init_graph(graph);
  if (status != RDT_OK) return status;
  uint32_t *waiting = calloc(graph->node_count + 1, sizeof(*waiting));
  if (!waiting) return no_memory();
  link_nodes(graph, arcs);
  sort_nodes(graph, waiting);
  free(waiting);
  return RDT_OK;
}

/* Level above depth: as numbers they sort as pairs do. */
static uint64_t moment_of(const plan_graph *graph, uint32_t node) {
  return (uint64_t)(uint32_t)graph->level[node] << 32 | (uint32_t)graph->depth[node];
}

static int by_moment(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Returns the index of `moment`, which is one of the ascending `moments`. */
static int32_t moment_number(const uint64_t *moments, size_t count, uint64_t moment) {
  const uint64_t *found = bsearch(&moment, moments, count, sizeof(*moments), by_moment);
  return (int32_t)(found - moments);
}

/* Numbers the different moments in ascending order: small numbers, whatever the nodes' are. */
static rdt_status find_ready(const plan_graph *graph, const rdt_plan_use *uses, size_t use_count,
                             rdt_plan_order *orders) {
  uint64_t *moments = malloc((use_count + 1) * sizeof(*moments));
  if (!moments) return no_memory();
  size_t count = 0, kept = 0;
  for (size_t i = 0; i < use_count; i++)
    if (!(graph->marks[uses[i].producer] & PLAN_WAITS))
      moments[count++] = moment_of(graph, uses[i].producer);
  qsort(moments, count, sizeof(*moments), by_moment);
  for (size_t i = 0; i < count; i++)
    if (kept == 0 || moments[kept - 1] != moments[i]) moments[kept++] = moments[i];
  for (size_t i = 0; i < use_count; i++) {
    bool known = !(graph->marks[uses[i].producer] & PLAN_WAITS);
    orders[i].ready = known ? moment_number(moments, kept, moment_of(graph, uses[i].producer)) : -1;
  }
  free(moments);
  return RDT_OK;
}

static void find_first_and_death(const plan_graph *graph, const rdt_plan_use *uses,
                                 size_t use_count, rdt_plan_order *orders) {
  for (size_t i = 0; i < use_count; i++) {
    uint8_t marks = graph->marks[uses[i].producer];
    orders[i].first = marks & PLAN_LOOP ? 0 : graph->level[uses[i].producer];
    orders[i].may_die = (marks & PLAN_DIES) != 0;
  }
}

rdt_status rdt_plan_find_order(const rdt_plan_node *nodes, size_t node_count,
                               const rdt_plan_arc *arcs, size_t arc_count, const rdt_plan_use *uses,
                               size_t use_count, rdt_plan_order *orders) {
  rdt_status status = check_arguments(nodes, node_count, arcs, arc_count, uses, use_count, orders);
  if (status != RDT_OK) return status;
  plan_graph graph = {.nodes = nodes, .node_count = node_count, .arc_count = arc_count};
  status = build_graph(&graph, arcs);
  if (status == RDT_OK) status = find_ready(&graph, uses, use_count, orders);
  if (status == RDT_OK) find_first_and_death(&graph, uses, use_count, orders);
  if (status == RDT_OK && plan_find_last(&graph, uses, use_count, orders) != RDT_OK)
    status = no_memory();
  free_graph(&graph);
  return status;
}
