/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's public functions: checks of arguments, sorting that makes plans independent of the
 * caller's order, and hashes.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define MOST_SLOTS 64u

struct rdt_plan {
  size_t edge_count, link_count;
  rdt_plan_place *places; /* in the caller's order */
  rdt_plan_link *links;
  size_t *first_ring; /* of each link in `rings` */
  rdt_plan_ring *rings;
};

/* Needed only while a plan is made; freed by free_work. */
typedef struct work {
  size_t edge_count, link_count;
  plan_entry *entries; /* ordered by source, destination, name */
  plan_link *links;    /* ordered by source, destination */
  plan_link **by_destination;
  plan_entry **fusable, **sized;
  rdt_plan_ring *rings;
  uint64_t *lives;
  uint32_t *open;
} work;

static rdt_status no_memory(void) {
  return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left for the transfer plan");
}

const char *rdt_plan_class_name(rdt_plan_class plan_class) {
  static const char *const names[] = {"static", "bounded", "dynamic", "rpc"};
  size_t row = (size_t)plan_class;
  return row < sizeof(names) / sizeof(names[0]) ? names[row] : "";
}

const char *rdt_plan_reason_text(rdt_plan_reason reason) {
  static const char *const texts[] = {
      [RDT_PLAN_BECAUSE_NONE] = "",
      [RDT_PLAN_BECAUSE_TYPE] = "its elements are no plain bytes",
      [RDT_PLAN_BECAUSE_RANK] = "the rank is unknown",
      [RDT_PLAN_BECAUSE_DIMENSION] = "a dimension is unknown, and nothing bounds it",
      [RDT_PLAN_BECAUSE_BATCH] = "only the first dimension is unknown; the batch bounds it",
      [RDT_PLAN_BECAUSE_BUDGET] = "its places would exceed the receiver's budget",
      [RDT_PLAN_BECAUSE_SIZE] = "its size exceeds 64 bits",
  };
  size_t row = (size_t)reason;
  return row < sizeof(texts) / sizeof(texts[0]) ? texts[row] : "";
}

rdt_status plan_check_options(const rdt_plan_options *options) {
  if (!options || options->struct_size != sizeof(*options))
    return rdt_fail(
        RDT_ERR_INVALID,
        "rdt_plan_options has %zu bytes: set struct_size, and use the header this library "
        "was built with",
        options ? options->struct_size : 0);
  if (options->slots < 1 || options->slots > MOST_SLOTS || options->loop_slots < 1 ||
      options->loop_slots > MOST_SLOTS)
    return rdt_fail(RDT_ERR_INVALID, "slots and loop_slots must be 1..%u, got %u and %u",
                    MOST_SLOTS, options->slots, options->loop_slots);
  return RDT_OK;
}

rdt_status plan_check_edge(const rdt_plan_edge *edge, size_t index) {
  if (!edge->name) return rdt_fail(RDT_ERR_INVALID, "edge %zu has no name", index);
  if (edge->rank < -1 || (edge->rank > 0 && !edge->dims))
    return rdt_fail(RDT_ERR_INVALID, "edge %s has rank %d%s", edge->name, edge->rank,
                    edge->rank > 0 ? " and no dimensions" : "");
  for (int32_t i = 0; i < edge->rank; i++)
    if (edge->dims[i] < -1)
      return rdt_fail(RDT_ERR_INVALID, "edge %s: dimension %d is %lld", edge->name, i,
                      (long long)edge->dims[i]);
  return RDT_OK;
}

static rdt_status check_arguments(const rdt_plan_edge *edges, size_t edge_count, size_t task_count,
                                  const rdt_plan_options *options, rdt_plan **plan) {
  if (!plan || (edge_count && !edges))
    return rdt_fail(RDT_ERR_INVALID, "no %s", plan ? "edges" : "place for the plan");
  if (edge_count > INT32_MAX)
    return rdt_fail(RDT_ERR_INVALID, "%zu edges are too many for one plan", edge_count);
  rdt_status status = plan_check_options(options);
  for (size_t i = 0; status == RDT_OK && i < edge_count; i++) {
    const rdt_plan_edge *edge = &edges[i];
    status = plan_check_edge(edge, i);
    if (status == RDT_OK && (edge->source >= task_count || edge->destination >= task_count))
      status = rdt_fail(RDT_ERR_INVALID, "edge %s goes from task %u to task %u, of %zu", edge->name,
                        edge->source, edge->destination, task_count);
  }
  return status;
}

static int by_link(const rdt_plan_edge *x, const rdt_plan_edge *y) {
  if (x->source != y->source) return x->source < y->source ? -1 : 1;
  if (x->destination != y->destination) return x->destination < y->destination ? -1 : 1;
  return 0;
}

static int by_link_and_name(const void *a, const void *b) {
  const rdt_plan_edge *x = ((const plan_entry *)a)->edge, *y = ((const plan_entry *)b)->edge;
  int order = by_link(x, y);
  return order ? order : strcmp(x->name, y->name);
}

static int by_destination(const void *a, const void *b) {
  const rdt_plan_link *x = &(*(plan_link *const *)a)->summary;
  const rdt_plan_link *y = &(*(plan_link *const *)b)->summary;
  if (x->destination != y->destination) return x->destination < y->destination ? -1 : 1;
  return (x->source > y->source) - (x->source < y->source);
}

static rdt_status sort_entries(work *self, const rdt_plan_edge *edges,
                               const rdt_plan_options *options) {
  for (size_t i = 0; i < self->edge_count; i++) self->entries[i].edge = &edges[i];
  qsort(self->entries, self->edge_count, sizeof(self->entries[0]), by_link_and_name);
  for (size_t i = 0; i < self->edge_count; i++) {
    const rdt_plan_edge *edge = self->entries[i].edge;
    if (i && by_link_and_name(&self->entries[i - 1], &self->entries[i]) == 0)
      return rdt_fail(RDT_ERR_INVALID, "two edges from task %u to task %u are named %s",
                      edge->source, edge->destination, edge->name);
    plan_classify(&self->entries[i], options);
  }
  return RDT_OK;
}

/* Entry `at` begins a link, which has the same slice in every array. */
static void begin_link(work *self, size_t at) {
  plan_link *link = &self->links[self->link_count];
  const rdt_plan_edge *edge = self->entries[at].edge;
  self->by_destination[self->link_count++] = link;
  link->summary.source = edge->source;
  link->summary.destination = edge->destination;
  link->entries = self->entries + at;
  link->fusable = self->fusable + at;
  link->sized = self->sized + at;
  link->rings = self->rings + at;
  link->lives = self->lives + at;
  link->open = self->open + at;
}

static rdt_status find_links(work *self, const rdt_plan_options *options) {
  for (size_t i = 0; i < self->edge_count; i++) {
    if (i == 0 || by_link(self->entries[i - 1].edge, self->entries[i].edge) != 0)
      begin_link(self, i);
    self->links[self->link_count - 1].entry_count++;
  }
  qsort(self->by_destination, self->link_count, sizeof(self->by_destination[0]), by_destination);
  for (size_t i = 0; i < self->link_count; i++)
    if (plan_prepare_link(&self->links[i], options) != RDT_OK) return no_memory();
  return RDT_OK;
}

#define HASH_START 0xcbf29ce484222325ull
#define HASH_PRIME 0x100000001b3ull

static uint64_t hash_byte(uint64_t hash, uint8_t byte) { return (hash ^ byte) * HASH_PRIME; }

/* The hash is the same on machines of either byte order. */
static uint64_t hash_number(uint64_t hash, uint64_t number) {
  for (int i = 0; i < 8; i++) hash = hash_byte(hash, (uint8_t)(number >> (8 * i)));
  return hash;
}

uint64_t rdt_plan_edge_hash(const rdt_plan_edge *edge) {
  uint64_t hash = HASH_START;
  if (!edge || !edge->name || (edge->rank > 0 && !edge->dims)) return 0;
  for (const char *at = edge->name; *at; at++) hash = hash_byte(hash, (uint8_t)*at);
  hash = hash_byte(hash, 0);
  hash = hash_number(hash, edge->dtype);
  hash = hash_number(hash, edge->element_size);
  hash = hash_number(hash, edge->flags);
  hash = hash_number(hash, (uint64_t)edge->rank);
  for (int32_t i = 0; i < edge->rank; i++) hash = hash_number(hash, (uint64_t)edge->dims[i]);
  return hash;
}

/* Leaves tasks out, because the two ends number them differently. */
static uint64_t hash_link(const plan_link *link) {
  uint64_t hash = HASH_START;
  for (size_t i = 0; i < link->entry_count; i++) {
    const plan_entry *entry = &link->entries[i];
    hash = hash_number(hash, rdt_plan_edge_hash(entry->edge));
    hash = hash_number(hash, entry->place.plan_class);
    hash = hash_number(hash, entry->place.bytes);
    hash = hash_number(hash, (uint64_t)entry->place.ring);
    hash = hash_number(hash, (uint64_t)entry->place.group);
    hash = hash_number(hash, entry->place.offset);
  }
  for (uint32_t i = 0; i < link->summary.ring_count; i++) {
    hash = hash_number(hash, link->rings[i].offset);
    hash = hash_number(hash, link->rings[i].stride);
    hash = hash_number(hash, link->rings[i].slots);
  }
  return hash;
}

static void free_work(work *self) {
  free(self->entries);
  free(self->links);
  free(self->by_destination);
  free(self->fusable);
  free(self->sized);
  free(self->rings);
  free(self->lives);
  free(self->open);
}

static rdt_status init_work(work *self, size_t edge_count) {
  size_t room = edge_count + 1; /* an empty plan is no failure */
  self->edge_count = edge_count;
  self->entries = calloc(room, sizeof(self->entries[0]));
  self->links = calloc(room, sizeof(self->links[0]));
  self->by_destination = calloc(room, sizeof(self->by_destination[0]));
  self->fusable = calloc(room, sizeof(self->fusable[0]));
  self->sized = calloc(room, sizeof(self->sized[0]));
  self->rings = calloc(room, sizeof(self->rings[0]));
  self->lives = calloc(room, sizeof(self->lives[0]));
  self->open = calloc(room, sizeof(self->open[0]));
  if (!self->entries || !self->links || !self->by_destination || !self->fusable || !self->sized ||
      !self->rings || !self->lives || !self->open)
    return no_memory();
  return RDT_OK;
}

static rdt_plan *new_plan(const work *self) {
  rdt_plan *plan = calloc(1, sizeof(*plan));
  size_t ring_count = 0;
  for (size_t i = 0; i < self->link_count; i++) ring_count += self->links[i].summary.ring_count;
  if (!plan) return NULL;
  plan->edge_count = self->edge_count;
  plan->link_count = self->link_count;
  plan->places = calloc(self->edge_count + 1, sizeof(plan->places[0]));
  plan->links = calloc(self->link_count + 1, sizeof(plan->links[0]));
  plan->first_ring = calloc(self->link_count + 1, sizeof(plan->first_ring[0]));
  plan->rings = calloc(ring_count + 1, sizeof(plan->rings[0]));
  if (plan->places && plan->links && plan->first_ring && plan->rings) return plan;
  rdt_plan_free(plan);
  return NULL;
}

static rdt_status extract_plan(const work *self, const rdt_plan_edge *edges, rdt_plan **out) {
  rdt_plan *plan = new_plan(self);
  if (!plan) return no_memory();
  for (size_t i = 0; i < self->edge_count; i++)
    plan->places[self->entries[i].edge - edges] = self->entries[i].place;
  size_t rings = 0;
  for (size_t i = 0; i < self->link_count; i++) {
    const plan_link *link = &self->links[i];
    plan->links[i] = link->summary;
    plan->links[i].hash = hash_link(link);
    plan->first_ring[i] = rings;
    memcpy(plan->rings + rings, link->rings, link->summary.ring_count * sizeof(rdt_plan_ring));
    rings += link->summary.ring_count;
  }
  *out = plan;
  return RDT_OK;
}

rdt_status rdt_plan_make(const rdt_plan_edge *edges, size_t edge_count, size_t task_count,
                         const rdt_plan_options *options, rdt_plan **plan) {
  work self = {0};
  rdt_status status = check_arguments(edges, edge_count, task_count, options, plan);
  if (status != RDT_OK) return status;
  status = init_work(&self, edge_count);
  if (status == RDT_OK) status = sort_entries(&self, edges, options);
  if (status == RDT_OK) status = find_links(&self, options);
  if (status == RDT_OK &&
      plan_within_budgets(self.by_destination, self.link_count, options) != RDT_OK)
    status = no_memory();
  if (status == RDT_OK) status = extract_plan(&self, edges, plan);
  free_work(&self);
  return status;
}

void rdt_plan_free(rdt_plan *plan) {
  if (!plan) return;
  free(plan->places);
  free(plan->links);
  free(plan->first_ring);
  free(plan->rings);
  free(plan);
}

rdt_status rdt_plan_get_place(const rdt_plan *plan, size_t index, rdt_plan_place *place) {
  if (!plan || !place || index >= plan->edge_count)
    return rdt_fail(RDT_ERR_INVALID, "the plan has %zu edges, and no edge %zu",
                    plan ? plan->edge_count : 0, index);
  *place = plan->places[index];
  return RDT_OK;
}

size_t rdt_plan_link_count(const rdt_plan *plan) { return plan ? plan->link_count : 0; }

rdt_status rdt_plan_get_link(const rdt_plan *plan, size_t index, rdt_plan_link *link) {
  if (!plan || !link || index >= plan->link_count)
    return rdt_fail(RDT_ERR_INVALID, "the plan has %zu links, and no link %zu",
                    plan ? plan->link_count : 0, index);
  *link = plan->links[index];
  return RDT_OK;
}

rdt_status rdt_plan_get_ring(const rdt_plan *plan, size_t index, uint32_t ring,
                             rdt_plan_ring *out) {
  rdt_plan_link link = {0};
  rdt_status status = rdt_plan_get_link(plan, index, &link);
  if (status != RDT_OK) return status;
  if (!out || ring >= link.ring_count)
    return rdt_fail(RDT_ERR_INVALID, "link %zu of the plan has %u rings, and no ring %u", index,
                    link.ring_count, ring);
  *out = plan->rings[plan->first_ring[index] + ring];
  return RDT_OK;
}
