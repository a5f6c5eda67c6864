/* SPDX-License-Identifier: Apache-2.0
 *
 * Fits a task's places into its budget. A place saves about the same time for every tensor that is
 * sent, whatever its size, so the edges that are worth least are those whose places take most
 * bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

/* The number of sends in a step that is assumed for a tensor inside a loop. */
#define LOOP_SENDS 8u

/* An entry of any link into the task. */
typedef struct candidate {
  plan_entry *entry;
  uint64_t cost; /* bytes of its slots for every eight sends */
} candidate;

/* Links into one task. */
typedef struct receiver {
  plan_link *const *links;
  size_t link_count;
  uint64_t limit;
} receiver;

static int by_cost(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  return strcmp(x->entry->edge->name, y->entry->edge->name);
}

static uint64_t cost_of(const plan_entry *entry, const rdt_plan_options *options) {
  if (entry->edge->flags & RDT_EDGE_LOOP) return plan_multiply(entry->stride, options->loop_slots);
  return plan_multiply(plan_multiply(entry->stride, options->slots), LOOP_SENDS);
}

static uint64_t place_all(const receiver *task, const rdt_plan_options *options, uint32_t cut) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < task->link_count; i++) {
    plan_place(task->links[i], options, cut);
    bytes = plan_add(bytes, task->links[i]->summary.bytes);
  }
  return bytes;
}

/* Ranks the entries, cheapest first, and returns the number of ranks. Entries with the same cost
 * and name share a rank, so that the numbers of tasks decide nothing. Ranks count from 1; rank 0
 * is always kept. */
static uint32_t rank_entries(const receiver *task, const rdt_plan_options *options,
                             candidate *candidates) {
  size_t count = 0;
  for (size_t i = 0; i < task->link_count; i++)
    for (size_t j = 0; j < task->links[i]->sized_count; j++) {
      plan_entry *entry = task->links[i]->sized[j];
      candidates[count++] = (candidate){.entry = entry, .cost = cost_of(entry, options)};
    }
  qsort(candidates, count, sizeof(candidates[0]), by_cost);
  uint32_t rank = 0;
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || by_cost(&candidates[i - 1], &candidates[i]) != 0) rank++;
    candidates[i].entry->rank = rank;
  }
  return rank;
}

static void drop(plan_entry *entry) {
  entry->place.plan_class = RDT_PLAN_DYNAMIC;
  entry->place.reason = RDT_PLAN_BECAUSE_BUDGET;
}

/* Keeps as many ranks as fit, by bisection over layouts. Sharing makes sizes not quite
 * monotonic, so a larger cut might fit as well; the chosen one always does. */
static rdt_status fit(const receiver *task, const rdt_plan_options *options) {
  size_t count = 0;
  for (size_t i = 0; i < task->link_count; i++) count += task->links[i]->sized_count;
  candidate *candidates = malloc((count + 1) * sizeof(*candidates));
  if (!candidates) return RDT_ERR_NO_MEMORY;
  uint32_t fits = 1, exceeds = rank_entries(task, options, candidates) + 1;
  while (exceeds - fits > 1) {
    uint32_t cut = fits + (exceeds - fits) / 2;
    if (place_all(task, options, cut) <= task->limit)
      fits = cut;
    else
      exceeds = cut;
  }
  place_all(task, options, fits);
  for (size_t i = 0; i < count; i++)
    if (candidates[i].entry->rank >= fits) drop(candidates[i].entry);
  free(candidates);
  return RDT_OK;
}

rdt_status plan_within_budgets(plan_link *const *links, size_t link_count,
                               const rdt_plan_options *options) {
  rdt_status status = RDT_OK;
  for (size_t i = 0; status == RDT_OK && i < link_count;) {
    uint32_t destination = links[i]->summary.destination;
    receiver task = {.links = &links[i], .limit = PLAN_MOST_BYTES};
    while (i < link_count && links[i]->summary.destination == destination) i++;
    task.link_count = (size_t)(&links[i] - task.links);
    if (options->budgets && options->budgets[destination] < task.limit)
      task.limit = options->budgets[destination];
    if (place_all(&task, options, UINT32_MAX) > task.limit) status = fit(&task, options);
  }
  return status;
}
