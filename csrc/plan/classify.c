/* SPDX-License-Identifier: Apache-2.0
 *
 * How an edge can travel, from its type, its shape and where it lives.
 */
#include "plan/plan.h"

/* Computes the size of an edge; dimensions that are -1 count as `unknown`. Returns false if it
 * exceeds 64 bits. */
static bool size_of(const rdt_plan_edge *edge, uint64_t unknown, uint64_t *bytes) {
  bool fits = true;
  uint64_t size = edge->element_size;
  for (int32_t i = 0; i < edge->rank; i++) {
    uint64_t dim = edge->dims[i] < 0 ? unknown : (uint64_t)edge->dims[i];
    if (dim == 0) {
      /* An empty dimension makes the tensor empty, whatever the other dimensions are. */
      *bytes = 0;
      return true;
    }
    fits = fits && !__builtin_mul_overflow(size, dim, &size);
  }
  if (fits) *bytes = size;
  return fits;
}

static bool only_first_unknown(const rdt_plan_edge *edge) {
  for (int32_t i = 1; i < edge->rank; i++)
    if (edge->dims[i] < 0) return false;
  return edge->rank > 0 && edge->dims[0] < 0;
}

static bool all_known(const rdt_plan_edge *edge) {
  for (int32_t i = 0; i < edge->rank; i++)
    if (edge->dims[i] < 0) return false;
  return edge->rank >= 0;
}

/* Classifies an edge by its shape alone. */
static void classify_shape(const rdt_plan_edge *edge, uint64_t batch, rdt_plan_place *place) {
  bool known = all_known(edge);
  if (edge->rank < 0) {
    place->reason = RDT_PLAN_BECAUSE_RANK;
  } else if (!known && (batch == 0 || !only_first_unknown(edge))) {
    place->reason = RDT_PLAN_BECAUSE_DIMENSION;
  } else if (!size_of(edge, batch, &place->bytes)) {
    place->reason = RDT_PLAN_BECAUSE_SIZE;
  } else {
    place->plan_class = known ? RDT_PLAN_STATIC : RDT_PLAN_BOUNDED;
    place->reason = known ? RDT_PLAN_BECAUSE_NONE : RDT_PLAN_BECAUSE_BATCH;
  }
}

void plan_classify(plan_entry *entry, const rdt_plan_options *options) {
  const rdt_plan_edge *edge = entry->edge;
  rdt_plan_place *place = &entry->place;
  *place = (rdt_plan_place){.plan_class = RDT_PLAN_DYNAMIC, .ring = -1, .group = -1};
  if (edge->element_size) classify_shape(edge, options->batch, place);
  if (!edge->element_size) {
    place->plan_class = RDT_PLAN_RPC;
    place->reason = RDT_PLAN_BECAUSE_TYPE;
    return;
  }
  if (place->plan_class == RDT_PLAN_DYNAMIC) return;
  if (place->bytes > PLAN_MOST_BYTES) {
    /* Rounding up a larger size could overflow, and no task can hold it. */
    place->plan_class = RDT_PLAN_DYNAMIC;
    place->reason = RDT_PLAN_BECAUSE_BUDGET;
    return;
  }
  entry->stride = (place->bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}
