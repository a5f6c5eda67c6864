/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's parts. classify.c decides how each edge can travel, place.c lays a link's memory
 * out, budget.c decides which edges keep their places if a task cannot hold them all, and plan.c
 * has the public functions. fuse.c decides which edges share operations. order.c and lifetimes.c first derive what the graph proves about the
 * order of tensors.
 */
#ifndef RDT_PLAN_PLAN_H
#define RDT_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* It suits cache lines and DMA, and TensorFlow's tensors (Eigen) require it. */
#define PLAN_ALIGNMENT 64u
/* The sender of a group keeps one bit per member. */
#define PLAN_GROUP_MEMBERS 64u
/* An operation sends and receives no more than this at once, because the first tensor waits for the
 * last: 1 MiB takes a network of 100 Gbit/s 80 us, which is less than sixteen operations cost. */
#define PLAN_OPERATION_BYTES ((uint64_t)1 << 20)
#define PLAN_OPERATION_MEMBER_BYTES ((uint64_t)64 << 10)
/* No task holds more than this, whatever its budget: sums stay far from overflow. */
#define PLAN_MOST_BYTES ((uint64_t)INT64_MAX)

/* Multiplies and adds, and returns UINT64_MAX if the result would exceed it. */
static inline uint64_t plan_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static inline uint64_t plan_multiply(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* An edge that is being planned. */
typedef struct plan_entry {
  const rdt_plan_edge *edge; /* the caller's */
  rdt_plan_place place;
  uint64_t stride; /* bytes rounded up to the alignment; 0: it needs no place */
  uint64_t life;   /* stretches of the step in which it is alive, as bits: see place.c */
  uint32_t rank;   /* by what it costs its receiver: only entries below the cut keep their places */
} plan_entry;

/* The edges of one (source, destination), and their layout. Arrays are slices of the plan's. */
typedef struct plan_link {
  rdt_plan_link summary;
  plan_entry *entries; /* ordered by name */
  size_t entry_count;
  plan_entry **fusable; /* small enough for groups: by readiness, then name */
  size_t fusable_count;
  plan_entry **sized; /* all that need a place: by size, largest first, then name */
  size_t sized_count;
  /* Each has room for sized_count. */
  rdt_plan_ring *rings;
  uint64_t *lives; /* of a ring: those of all its members */
  uint32_t *open;  /* numbers of rings that others may still join */
} plan_link;

/* Sets class, reason, bytes and stride of a checked edge, without ring and group. */
void plan_classify(plan_entry *entry, const rdt_plan_options *options);

/* Checks the arguments of public functions. RDT_ERR_INVALID. */
rdt_status plan_check_options(const rdt_plan_options *options);
rdt_status plan_check_edge(const rdt_plan_edge *edge, size_t index);

/* Prepares a link for plan_place: orders what it will need, and finds lifetimes. RDT_ERR_NO_MEMORY. */
rdt_status plan_prepare_link(plan_link *link, const rdt_plan_options *options);
/* Lays the link out anew with the entries whose rank is below `cut`; the others get no place. Sets
 * summary.bytes, at most UINT64_MAX, and the numbers of rings and groups. */
void plan_place(plan_link *link, const rdt_plan_options *options, uint32_t cut);

/* Lays out all links, which are ordered by destination, so that no task exceeds its budget; entries
 * without room become dynamic. RDT_ERR_NO_MEMORY. */
rdt_status plan_within_budgets(plan_link *const *links, size_t link_count,
                               const rdt_plan_options *options);

#endif
