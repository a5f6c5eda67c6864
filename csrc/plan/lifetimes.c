/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds when a tensor's place is free again, as far as the graph proves it: a tensor made only
 * after all consumers of another ran may use the other's place. For the tensors of one link, each
 * consumer gets a bit, and the bits of a node are those of the consumers it runs after. One pass
 * over the graph finds them, with bounded effort: lifetimes of a link that would need more stay
 * unknown, which costs memory, never correctness.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/order.h"

#define NEVER INT32_MAX
#define NO_COLUMN UINT32_MAX
/* Operations on 64 bits (each about a nanosecond) for all links of a graph. Each link's share
 * depends on their number alone, so that their order decides nothing. */
#define MOST_EFFORT ((uint64_t)1 << 28)
#define MOST_ROW_BYTES ((uint64_t)64 << 20)

/* A tensor, with the fields that sort tensors by link and, within a link, the last ones first. */
typedef struct plan_use {
  const rdt_plan_use *use;
  rdt_plan_order *order;
  uint32_t source, destination;
} plan_use;

typedef struct search {
  const plan_graph *graph;
  plan_use *uses; /* of all links */
  size_t use_count;
  uint32_t *column; /* per node: the bit of this consumer, or NO_COLUMN */
  uint64_t effort;  /* that each link may take */
} search;

/* The tensors of one link. */
typedef struct slice {
  plan_use *uses;
  size_t count;
} slice;

static int by_link(const plan_use *x, const plan_use *y) {
  if (x->source != y->source) return x->source < y->source ? -1 : 1;
  if (x->destination != y->destination) return x->destination < y->destination ? -1 : 1;
  return 0;
}

static int by_link_then_last_first(const void *a, const void *b) {
  const plan_use *x = a, *y = b;
  int order = by_link(x, y);
  return order ? order : (x->order->first < y->order->first) - (x->order->first > y->order->first);
}

/* Finds the link that begins at `at`. */
static slice next_link(const search *self, size_t at) {
  slice link = {.uses = self->uses + at};
  while (at + link.count < self->use_count && by_link(link.uses, link.uses + link.count) == 0)
    link.count++;
  return link;
}

static int32_t highest_first(const slice *link) { return link->uses[0].order->first; }

static bool runs_in_loop(const plan_graph *graph, const rdt_plan_use *use) {
  bool loop = graph->marks[use->producer] & PLAN_LOOP;
  for (size_t i = 0; !loop && i < use->consumer_count; i++)
    loop = graph->marks[use->consumers[i]] & PLAN_LOOP;
  return loop;
}

/* Handles what needs no search: the ends of loops are unknown, and nothing comes after the
 * tensors of the highest level. Returns true if others are left, and sets their `last` to never. */
static bool settle_simple(const search *self, const slice *link) {
  bool left = false;
  for (size_t i = 0; i < link->count; i++) {
    rdt_plan_order *order = link->uses[i].order;
    order->last = NEVER;
    if (runs_in_loop(self->graph, link->uses[i].use)) continue;
    if (order->first == highest_first(link))
      order->last = order->first;
    else
      left = true;
  }
  return left;
}

/* Returns true if the search has to find the end of this tensor. */
static bool is_sought(const search *self, const slice *link, const plan_use *each) {
  return each->order->first < highest_first(link) && !runs_in_loop(self->graph, each->use);
}

/* Gives each consumer of a sought tensor a column. Returns the number of columns, and in *pairs
 * the number of comparisons with the tensors' producers. */
static size_t number_columns(search *self, const slice *link, uint64_t *pairs) {
  size_t columns = 0;
  *pairs = 0;
  for (size_t i = 0; i < link->count; i++) {
    if (!is_sought(self, link, &link->uses[i])) continue;
    const rdt_plan_use *use = link->uses[i].use;
    *pairs += (uint64_t)link->count * use->consumer_count;
    for (size_t j = 0; j < use->consumer_count; j++)
      if (self->column[use->consumers[j]] == NO_COLUMN)
        self->column[use->consumers[j]] = (uint32_t)columns++;
  }
  return columns;
}

static void forget_columns(search *self, const slice *link) {
  for (size_t i = 0; i < link->count; i++)
    for (size_t j = 0; j < link->uses[i].use->consumer_count; j++)
      self->column[link->uses[i].use->consumers[j]] = NO_COLUMN;
}

/* A node that any one predecessor starts is certain to run only after what all of them run
 * after. */
static void prepare_any(const plan_graph *graph, uint64_t *rows, size_t words) {
  for (size_t i = 0; i < graph->sorted_count; i++)
    for (size_t j = graph->starts[graph->sorted[i]]; j < graph->starts[graph->sorted[i] + 1]; j++)
      if (graph->nodes[graph->next[j]].flags & RDT_NODE_ANY)
        memset(rows + graph->next[j] * words, 0xff, words * sizeof(*rows));
}

/* Passes each node's bits on to its successors. */
static void fill_rows(const search *self, uint64_t *rows, size_t words) {
  const plan_graph *graph = self->graph;
  prepare_any(graph, rows, words);
  for (size_t i = 0; i < graph->sorted_count; i++) {
    uint32_t node = graph->sorted[i], column = self->column[node];
    const uint64_t *mine = rows + node * words;
    if (column != NO_COLUMN) rows[node * words + column / 64] |= (uint64_t)1 << column % 64;
    for (size_t j = graph->starts[node]; j < graph->starts[node + 1]; j++) {
      uint64_t *theirs = rows + graph->next[j] * words;
      if (graph->nodes[graph->next[j]].flags & RDT_NODE_ANY)
        for (size_t k = 0; k < words; k++) theirs[k] &= mine[k];
      else
        for (size_t k = 0; k < words; k++) theirs[k] |= mine[k];
    }
  }
}

static bool runs_after_all(const search *self, const uint64_t *row, const rdt_plan_use *use) {
  for (size_t i = 0; i < use->consumer_count; i++) {
    uint32_t column = self->column[use->consumers[i]];
    if (!(row[column / 64] >> column % 64 & 1)) return false;
  }
  return true;
}

/* Returns the highest level at which something of the link is not certain to come later. */
static int32_t find_end(const search *self, const slice *link, const plan_use *sought,
                        const uint64_t *rows, size_t words) {
  int32_t first = sought->order->first;
  for (size_t i = 0; i < link->count && link->uses[i].order->first > first; i++)
    if (!runs_after_all(self, rows + link->uses[i].use->producer * words, sought->use))
      return link->uses[i].order->first;
  return first;
}

static rdt_status search_link(search *self, const slice *link) {
  const plan_graph *graph = self->graph;
  uint64_t pairs;
  size_t words = (number_columns(self, link, &pairs) + 63) / 64;
  uint64_t row_words = (uint64_t)words * graph->node_count;
  uint64_t effort = row_words + (uint64_t)words * graph->arc_count + pairs;
  rdt_status status = RDT_OK;
  if (words && effort <= self->effort && row_words <= MOST_ROW_BYTES / sizeof(uint64_t)) {
    uint64_t *rows = calloc(row_words, sizeof(*rows));
    if (rows) {
      fill_rows(self, rows, words);
      for (size_t i = 0; i < link->count; i++)
        if (is_sought(self, link, &link->uses[i]))
          link->uses[i].order->last = find_end(self, link, &link->uses[i], rows, words);
    } else {
      status = RDT_ERR_NO_MEMORY;
    }
    free(rows);
  }
  forget_columns(self, link);
  return status;
}

static rdt_status search_links(search *self) {
  uint64_t left = 0;
  for (size_t at = 0; at < self->use_count;) {
    slice link = next_link(self, at);
    left += settle_simple(self, &link);
    at += link.count;
  }
  if (left == 0) return RDT_OK;
  self->effort = MOST_EFFORT / left;
  rdt_status status = RDT_OK;
  for (size_t at = 0; status == RDT_OK && at < self->use_count;) {
    slice link = next_link(self, at);
    status = search_link(self, &link);
    at += link.count;
  }
  return status;
}

rdt_status plan_find_last(const plan_graph *graph, const rdt_plan_use *uses, size_t use_count,
                          rdt_plan_order *orders) {
  search self = {.graph = graph, .use_count = use_count};
  self.uses = malloc((use_count + 1) * sizeof(*self.uses));
  self.column = malloc((graph->node_count + 1) * sizeof(*self.column));
  rdt_status status = self.uses && self.column ? RDT_OK : RDT_ERR_NO_MEMORY;
  if (status == RDT_OK) {
    for (size_t i = 0; i < use_count; i++)
      self.uses[i] = (plan_use){.use = &uses[i],
                                .order = &orders[i],
                                .source = graph->nodes[uses[i].producer].task,
                                .destination = graph->nodes[uses[i].consumers[0]].task};
    for (size_t n = 0; n < graph->node_count; n++) self.column[n] = NO_COLUMN;
    qsort(self.uses, use_count, sizeof(*self.uses), by_link_then_last_first);
    status = search_links(&self);
  }
  free(self.uses);
  free(self.column);
  return status;
}
