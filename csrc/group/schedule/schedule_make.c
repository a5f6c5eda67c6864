/* SPDX-License-Identifier: Apache-2.0 */
#include "group/schedule/schedule_make.h"

#include <stdlib.h>

#include "base/status.h"
#include "group/schedule/schedule_algorithms.h"
#include "group/schedule/trees.h"

/* Enough lanes for transfers to overlap with reductions. Each lane costs messages. */
#define LANES_MOST 4u

static bool first_of_host(const uint32_t *hosts, uint32_t rank) {
  for (uint32_t earlier = 0; earlier < rank; earlier++) {
    if (hosts[earlier] == hosts[rank]) return false;
  }
  return true;
}

/* Appends the members on `rank`'s host, from `rank` on, to the order. */
static void add_host(rdt_schedule_topology *t, const rdt_schedule_request *request, uint32_t rank) {
  const uint32_t begin = t->starts[t->hosts];
  uint32_t end = begin;
  for (uint32_t other = rank; other < request->size; other++) {
    if (request->hosts[other] != request->hosts[rank]) continue;
    if (other == request->root) {
      t->origin_host = t->hosts;
      t->origin = end;
    }
    if (other == request->rank) {
      t->host = t->hosts;
      t->local = end - begin;
      t->position = end;
    }
    t->order[end++] = other;
  }
  if (end - begin < t->least) t->least = end - begin;
  t->starts[++t->hosts] = end;
}

static rdt_status make_topology(const rdt_schedule_request *request, rdt_schedule_topology *t) {
  *t = (rdt_schedule_topology){.least = request->size};
  t->order = calloc(2 * (size_t)request->size + 1, sizeof *t->order);
  if (t->order == NULL) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a schedule");
  t->starts = t->order + request->size;
  for (uint32_t rank = 0; rank < request->size; rank++) {
    if (first_of_host(request->hosts, rank)) add_host(t, request, rank);
  }
  return RDT_OK;
}

/* How elements are split into lanes: not at all; by chunks of all elements; by chunks of one
 * member's part of them; or each lane takes its own of all. */
typedef enum split { SPLIT_NONE, SPLIT_WHOLE, SPLIT_PARTS, SPLIT_TREES } split;

typedef struct plan {
  rdt_schedule_lane_fn list;
  split split;
} plan;

#define FLAT(kind) {rdt_schedule_flat_##kind, SPLIT_NONE}
#define RING(kind) {rdt_schedule_ring_##kind, SPLIT_WHOLE}
#define TREES(kind) {rdt_schedule_trees_##kind, SPLIT_TREES}

/* If an algorithm has no schedule for a kind, the most similar algorithm serves. */
static const plan plans[RDT_BARRIER][RDT_ALGORITHM_COUNT] = {
    [RDT_ALL_REDUCE] = {[RDT_ALGORITHM_FLAT] = FLAT(all_reduce),
                        [RDT_ALGORITHM_HALVING] = {rdt_schedule_halving_all_reduce, SPLIT_WHOLE},
                        [RDT_ALGORITHM_RING] = {rdt_schedule_ring_all_reduce, SPLIT_PARTS},
                        [RDT_ALGORITHM_DIRECT] = {rdt_schedule_direct_all_reduce, SPLIT_PARTS},
                        [RDT_ALGORITHM_HIERARCHICAL] = {rdt_schedule_hierarchical_all_reduce,
                                                        SPLIT_PARTS},
                        [RDT_ALGORITHM_TREES] = TREES(all_reduce)},
    [RDT_REDUCE_SCATTER] = {[RDT_ALGORITHM_FLAT] = FLAT(reduce_scatter),
                            [RDT_ALGORITHM_HALVING] = FLAT(reduce_scatter),
                            [RDT_ALGORITHM_RING] = RING(reduce_scatter),
                            [RDT_ALGORITHM_DIRECT] = FLAT(reduce_scatter),
                            [RDT_ALGORITHM_HIERARCHICAL] = RING(reduce_scatter),
                            [RDT_ALGORITHM_TREES] = TREES(reduce_scatter)},
    [RDT_ALL_GATHER] = {[RDT_ALGORITHM_FLAT] = FLAT(all_gather),
                        [RDT_ALGORITHM_HALVING] = {rdt_schedule_halving_all_gather, SPLIT_NONE},
                        [RDT_ALGORITHM_RING] = RING(all_gather),
                        [RDT_ALGORITHM_DIRECT] = FLAT(all_gather),
                        [RDT_ALGORITHM_HIERARCHICAL] = RING(all_gather),
                        [RDT_ALGORITHM_TREES] = TREES(all_gather)},
    [RDT_BROADCAST] = {[RDT_ALGORITHM_FLAT] = FLAT(broadcast),
                       [RDT_ALGORITHM_HALVING] = {rdt_schedule_halving_broadcast, SPLIT_WHOLE},
                       [RDT_ALGORITHM_RING] = RING(broadcast),
                       [RDT_ALGORITHM_DIRECT] = {rdt_schedule_direct_broadcast, SPLIT_PARTS},
                       [RDT_ALGORITHM_HIERARCHICAL] = {rdt_schedule_hierarchical_broadcast,
                                                       SPLIT_PARTS},
                       [RDT_ALGORITHM_TREES] = TREES(broadcast)},
    [RDT_ALL_TO_ALL] = {[RDT_ALGORITHM_FLAT] = FLAT(all_to_all),
                        [RDT_ALGORITHM_HALVING] = FLAT(all_to_all),
                        [RDT_ALGORITHM_RING] = RING(all_to_all),
                        [RDT_ALGORITHM_DIRECT] = FLAT(all_to_all),
                        [RDT_ALGORITHM_HIERARCHICAL] = FLAT(all_to_all),
                        [RDT_ALGORITHM_TREES] = RING(all_to_all)},
    [RDT_GATHER] = {[RDT_ALGORITHM_FLAT] = FLAT(gather),
                    [RDT_ALGORITHM_HALVING] = FLAT(gather),
                    [RDT_ALGORITHM_RING] = FLAT(gather),
                    [RDT_ALGORITHM_DIRECT] = FLAT(gather),
                    [RDT_ALGORITHM_HIERARCHICAL] = FLAT(gather),
                    [RDT_ALGORITHM_TREES] = FLAT(gather)},
    [RDT_SCATTER] = {[RDT_ALGORITHM_FLAT] = FLAT(scatter),
                     [RDT_ALGORITHM_HALVING] = FLAT(scatter),
                     [RDT_ALGORITHM_RING] = FLAT(scatter),
                     [RDT_ALGORITHM_DIRECT] = FLAT(scatter),
                     [RDT_ALGORITHM_HIERARCHICAL] = FLAT(scatter),
                     [RDT_ALGORITHM_TREES] = FLAT(scatter)},
    [RDT_REDUCE] = {[RDT_ALGORITHM_FLAT] = FLAT(reduce),
                    [RDT_ALGORITHM_HALVING] = FLAT(reduce),
                    [RDT_ALGORITHM_RING] = {rdt_schedule_direct_reduce, SPLIT_PARTS},
                    [RDT_ALGORITHM_DIRECT] = {rdt_schedule_direct_reduce, SPLIT_PARTS},
                    [RDT_ALGORITHM_HIERARCHICAL] = {rdt_schedule_direct_reduce, SPLIT_PARTS},
                    [RDT_ALGORITHM_TREES] = {rdt_schedule_direct_reduce, SPLIT_PARTS}},
};

/* A group of one: the result is the input. */
static void list_alone(rdt_schedule_builder *b, rdt_schedule_range range) {
  rdt_schedule_copy_input(b, range);
}

static plan choose_plan(const rdt_schedule_builder *b) {
  const rdt_schedule_request *request = b->request;
  const rdt_schedule_topology *t = &b->topology;
  const plan *of_kind = plans[request->kind];
  if (request->size == 1) return (plan){list_alone, SPLIT_NONE};
  if (request->offsets) return of_kind[RDT_ALGORITHM_FLAT];
  /* Without two levels, DIRECT is the same or better. */
  if (request->algorithm == RDT_ALGORITHM_HIERARCHICAL &&
      (t->hosts == 1 || t->hosts == request->size))
    return of_kind[RDT_ALGORITHM_DIRECT];
  if (request->algorithm == RDT_ALGORITHM_TREES &&
      !rdt_trees_serve(request->trees, request->kind, request->root))
    return of_kind[RDT_ALGORITHM_RING];
  return of_kind[request->algorithm];
}

/* Returns the number of elements that lanes share. */
static uint64_t shared_count(const rdt_schedule_request *request) {
  const bool parts = request->kind == RDT_REDUCE_SCATTER || request->kind == RDT_ALL_TO_ALL ||
                     request->kind == RDT_SCATTER;
  return parts ? request->count / request->size : request->count;
}

static void list_lanes(rdt_schedule_builder *b) {
  const plan chosen = choose_plan(b);
  const rdt_schedule_range all = {0, shared_count(b->request)};
  const uint32_t parts = chosen.split == SPLIT_PARTS ? b->request->size : 1;
  const uint64_t message = rdt_schedule_part(all, parts, 0).count;
  const bool trees = chosen.split == SPLIT_TREES;
  const uint32_t lanes = trees                        ? rdt_schedule_trees_lanes(b->request)
                         : chosen.split == SPLIT_NONE ? 1
                                                      : rdt_schedule_chunks(b, message, LANES_MOST);
  b->schedule->lanes = lanes;
  for (b->lane = 0; b->lane < lanes; b->lane++) {
    b->round = 0;
    chosen.list(b, trees ? all : rdt_schedule_part(all, lanes, b->lane));
  }
}

static bool possible(const rdt_schedule_request *request) {
  return request->kind >= RDT_ALL_REDUCE && request->kind < RDT_BARRIER &&
         request->algorithm > RDT_ALGORITHM_AUTO && request->algorithm < RDT_ALGORITHM_COUNT;
}

rdt_status rdt_schedule_make(const rdt_schedule_request *request, rdt_schedule **schedule) {
  *schedule = NULL;
  if (!possible(request))
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "there is no schedule for collective kind %d, algorithm %d", (int)request->kind,
                    (int)request->algorithm);
  rdt_schedule_builder builder = {.request = request};
  builder.status = make_topology(request, &builder.topology);
  builder.schedule = calloc(1, sizeof *builder.schedule);
  if (builder.schedule == NULL)
    builder.status = rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a schedule");
  if (builder.status == RDT_OK) list_lanes(&builder);
  free(builder.topology.order);
  if (builder.status == RDT_OK) {
    *schedule = builder.schedule;
  } else {
    rdt_schedule_free(builder.schedule);
  }
  return builder.status;
}
