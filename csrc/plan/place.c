/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays out a link's memory: rings of slots, one after the other. The groups' rings come first, so
 * that group i has ring i, then those of tensors that travel alone, largest first.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

/* Lifetimes become sets of bits, so that one operation tells whether two overlap. A bit stands
 * for one of the link's distinct values of `first`, in ascending order. If there are more than
 * 64, it stands for several neighbouring ones, and some lifetimes overlap needlessly. */

#define LIFE_BITS 64u
#define WHOLE_STEP UINT64_MAX
/* The number of rings tried for each tensor. More would make large links quadratic. */
#define OPEN_RINGS_TRIED 256u

static bool in_loop(const plan_entry *entry) { return entry->edge->flags & RDT_EDGE_LOOP; }

static int by_number(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* Returns how many of the ascending `values` are <= `value`. */
static size_t count_up_to(const int32_t *values, size_t count, int32_t value) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (values[middle] <= value)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static size_t unique(int32_t *values, size_t count) {
  size_t kept = 0;
  qsort(values, count, sizeof(*values), by_number);
  for (size_t i = 0; i < count; i++)
    if (kept == 0 || values[kept - 1] != values[i]) values[kept++] = values[i];
  return kept;
}

/* Returns the bits from that of `order->first` to the last one that begins by `order->last`. */
static uint64_t life_of(const rdt_plan_order *order, const int32_t *firsts, size_t count) {
  size_t from = count_up_to(firsts, count, order->first) - 1;
  size_t to = order->last > order->first ? count_up_to(firsts, count, order->last) - 1 : from;
  if (from == 0 && to == count - 1) return WHOLE_STEP; /* nobody can share with it */
  if (count > LIFE_BITS) {
    from = from * LIFE_BITS / count;
    to = to * LIFE_BITS / count;
  }
  return WHOLE_STEP << from & WHOLE_STEP >> (LIFE_BITS - 1 - to);
}

static rdt_status find_lives(plan_link *link) {
  int32_t *firsts = malloc((link->sized_count + 1) * sizeof(*firsts));
  if (!firsts) return RDT_ERR_NO_MEMORY;
  size_t count = 0;
  for (size_t i = 0; i < link->sized_count; i++)
    if (!in_loop(link->sized[i])) firsts[count++] = link->sized[i]->edge->order.first;
  count = unique(firsts, count);
  for (size_t i = 0; i < link->sized_count; i++) {
    plan_entry *entry = link->sized[i];
    entry->life = in_loop(entry) ? WHOLE_STEP : life_of(&entry->edge->order, firsts, count);
  }
  free(firsts);
  return RDT_OK;
}

/* Entries of a link lie in one array, ordered by name. */
static int by_position(const plan_entry *a, const plan_entry *b) { return (a > b) - (a < b); }

static int by_readiness(const void *a, const void *b) {
  const plan_entry *x = *(plan_entry *const *)a, *y = *(plan_entry *const *)b;
  if (x->edge->order.ready != y->edge->order.ready)
    return x->edge->order.ready < y->edge->order.ready ? -1 : 1;
  return by_position(x, y);
}

static int by_size(const void *a, const void *b) {
  const plan_entry *x = *(plan_entry *const *)a, *y = *(plan_entry *const *)b;
  if (x->stride != y->stride) return x->stride > y->stride ? -1 : 1;
  return by_position(x, y);
}

static bool is_fusable(const plan_entry *entry, const rdt_plan_options *options) {
  return entry->place.plan_class == RDT_PLAN_STATIC && entry->place.bytes <= options->fuse_bytes &&
         entry->stride <= options->fuse_group_bytes && !in_loop(entry) &&
         entry->edge->order.ready >= 0;
}

rdt_status plan_prepare_link(plan_link *link, const rdt_plan_options *options) {
  for (size_t i = 0; i < link->entry_count; i++) {
    plan_entry *entry = &link->entries[i];
    if (entry->stride) link->sized[link->sized_count++] = entry;
    if (entry->stride && is_fusable(entry, options)) link->fusable[link->fusable_count++] = entry;
  }
  qsort(link->sized, link->sized_count, sizeof(link->sized[0]), by_size);
  qsort(link->fusable, link->fusable_count, sizeof(link->fusable[0]), by_readiness);
  return find_lives(link);
}

static uint32_t add_ring(plan_link *link, uint32_t slots) {
  uint32_t number = link->summary.ring_count++;
  link->rings[number] = (rdt_plan_ring){.slots = slots};
  return number;
}

/* A group of entries that travel as one. An open group still takes members. */
typedef struct group {
  plan_entry *members[PLAN_GROUP_MEMBERS];
  uint32_t count;
  uint64_t bytes;
} group;

/* A group of one has nothing to gain: it may share a ring instead. */
static void close_group(plan_link *link, uint32_t slots, group *open) {
  if (open->count > 1) {
    uint32_t ring = add_ring(link, slots);
    link->rings[ring].stride = open->bytes;
    link->rings[ring].members = open->count;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < open->count; i++) {
      rdt_plan_place *place = &open->members[i]->place;
      place->ring = place->group = (int32_t)ring;
      place->offset = offset;
      offset += open->members[i]->stride;
    }
  }
  open->count = 0;
  open->bytes = 0;
}

static void make_groups(plan_link *link, const rdt_plan_options *options, uint32_t cut) {
  group open = {.count = 0};
  for (size_t i = 0; i < link->fusable_count; i++) {
    plan_entry *entry = link->fusable[i];
    if (entry->rank >= cut) continue;
    if (open.count && (open.members[0]->edge->order.ready != entry->edge->order.ready ||
                       open.count == PLAN_GROUP_MEMBERS ||
                       plan_add(open.bytes, entry->stride) > options->fuse_group_bytes))
      close_group(link, options->slots, &open);
    open.members[open.count++] = entry;
    open.bytes += entry->stride;
  }
  close_group(link, options->slots, &open);
  link->summary.group_count = link->summary.ring_count;
}

/* Finds a ring with room for the life of `entry`. Returns false if none of those tried has.
 * Entries come largest first, so joining a ring costs no memory. */
static bool join_ring(plan_link *link, plan_entry *entry, size_t *open_count) {
  size_t tried = *open_count < OPEN_RINGS_TRIED ? *open_count : OPEN_RINGS_TRIED;
  for (size_t i = *open_count; i-- > *open_count - tried;) {
    uint32_t number = link->open[i];
    if (link->lives[number] & entry->life) continue;
    link->lives[number] |= entry->life;
    link->rings[number].members++;
    entry->place.ring = (int32_t)number;
    if (link->lives[number] == WHOLE_STEP) {
      --*open_count;
      memmove(&link->open[i], &link->open[i + 1], (*open_count - i) * sizeof(link->open[0]));
    }
    return true;
  }
  return false;
}

static void make_rings(plan_link *link, const rdt_plan_options *options, uint32_t cut) {
  size_t open_count = 0;
  for (size_t i = 0; i < link->sized_count; i++) {
    plan_entry *entry = link->sized[i];
    if (entry->rank >= cut || entry->place.group >= 0) continue;
    if (entry->life != WHOLE_STEP && join_ring(link, entry, &open_count)) continue;
    uint32_t number = add_ring(link, in_loop(entry) ? options->loop_slots : options->slots);
    link->rings[number].stride = entry->stride;
    link->rings[number].members = 1;
    link->lives[number] = entry->life;
    entry->place.ring = (int32_t)number;
    if (entry->life != WHOLE_STEP) link->open[open_count++] = number;
  }
}

void plan_place(plan_link *link, const rdt_plan_options *options, uint32_t cut) {
  for (size_t i = 0; i < link->sized_count; i++) {
    rdt_plan_place *place = &link->sized[i]->place;
    place->ring = place->group = -1;
    place->offset = 0;
  }
  link->summary.ring_count = 0;
  make_groups(link, options, cut);
  make_rings(link, options, cut);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < link->summary.ring_count; i++) {
    rdt_plan_ring *ring = &link->rings[i];
    ring->offset = bytes;
    bytes = plan_add(bytes, plan_multiply(ring->stride, ring->slots));
  }
  link->summary.bytes = bytes;
}
