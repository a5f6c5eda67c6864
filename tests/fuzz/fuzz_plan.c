/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner's input, as graphs and plan files bring it: it is refused, or every tensor has a place inside of
 * its ring, every ring one inside of its link's memory, beside the others, and no budget is exceeded.
 */
#include "fuzz.h"
#include "rdmatensor.h"

#define EDGES 24u
#define DIMS 6u
#define TASKS 4u
#define NODES 32u

typedef struct request {
  rdt_plan_edge edges[EDGES];
  int64_t dims[EDGES][DIMS];
  char names[EDGES][8];
  uint64_t budgets[TASKS];
  rdt_plan_options options;
  size_t count;
} request;

/* Small ones mostly, and those at the ends of the range. */
static uint64_t any_number(fuzz_input *input) {
  uint8_t how = fuzz_u8(input);
  if (how < 200) return how;
  return how < 230 ? fuzz_number(input, 4) : fuzz_number(input, 8);
}

static void read_edge(request *r, uint32_t i, fuzz_input *input) {
  rdt_plan_edge *edge = &r->edges[i];
  snprintf(r->names[i], sizeof(r->names[i]), "e%u", fuzz_u8(input) % (EDGES + 8));
  *edge = (rdt_plan_edge){.name = r->names[i]};
  edge->source = fuzz_u8(input) % (TASKS + 1);
  edge->destination = fuzz_u8(input) % TASKS;
  edge->dtype = fuzz_u8(input);
  edge->element_size = (uint32_t)any_number(input);
  edge->rank = (int32_t)fuzz_below(input, DIMS + 3) - 2;
  edge->flags = fuzz_u8(input);
  edge->dims = r->dims[i];
  if (edge->rank > (int32_t)DIMS) edge->rank = DIMS;
  for (int32_t d = 0; d < edge->rank; d++) r->dims[i][d] = (int64_t)(any_number(input) - 1);
  edge->order.ready = (int32_t)(any_number(input) - 1);
  edge->order.first = (int32_t)any_number(input);
  edge->order.last = fuzz_u8(input) & 1 ? INT32_MAX : (int32_t)any_number(input);
}

static void read_request(request *r, fuzz_input *input) {
  r->options = (rdt_plan_options){.struct_size = sizeof(rdt_plan_options)};
  r->options.slots = fuzz_u8(input) % 70;
  r->options.loop_slots = fuzz_u8(input) % 70;
  r->options.batch = any_number(input);
  r->options.fuse_bytes = any_number(input);
  r->options.fuse_group_bytes = any_number(input);
  if (fuzz_u8(input) & 1) r->options.budgets = r->budgets;
  for (uint32_t i = 0; i < TASKS; i++) r->budgets[i] = any_number(input) << (fuzz_u8(input) % 40);
  r->count = fuzz_u8(input) % (EDGES + 1);
  for (uint32_t i = 0; i < r->count; i++) read_edge(r, i, input);
}

static size_t find_link(const rdt_plan *plan, const rdt_plan_edge *edge, rdt_plan_link *link) {
  for (size_t i = 0; i < rdt_plan_link_count(plan); i++) {
    FUZZ_EXPECT(rdt_plan_get_link(plan, i, link) == RDT_OK);
    if (link->source == edge->source && link->destination == edge->destination) return i;
  }
  FUZZ_EXPECT(!"an edge has no link");
  return 0;
}

static void check_place(const rdt_plan *plan, const rdt_plan_edge *edge, size_t index) {
  rdt_plan_place place;
  rdt_plan_link link;
  rdt_plan_ring ring;
  FUZZ_EXPECT(rdt_plan_get_place(plan, index, &place) == RDT_OK);
  size_t number = find_link(plan, edge, &link);
  if (place.ring < 0) {
    FUZZ_EXPECT(place.group < 0);
    return;
  }
  FUZZ_EXPECT((uint32_t)place.ring < link.ring_count);
  FUZZ_EXPECT(place.group < 0 || (uint32_t)place.group < link.group_count);
  FUZZ_EXPECT(rdt_plan_get_ring(plan, number, (uint32_t)place.ring, &ring) == RDT_OK);
  FUZZ_EXPECT(place.offset <= ring.stride && place.bytes <= ring.stride - place.offset);
}

static void check_link(const rdt_plan *plan, size_t number, uint64_t *held) {
  rdt_plan_link link;
  uint64_t end = 0;
  FUZZ_EXPECT(rdt_plan_get_link(plan, number, &link) == RDT_OK);
  for (uint32_t i = 0; i < link.ring_count; i++) {
    rdt_plan_ring ring;
    FUZZ_EXPECT(rdt_plan_get_ring(plan, number, i, &ring) == RDT_OK);
    FUZZ_EXPECT(ring.slots > 0 && ring.offset >= end && ring.offset <= link.bytes);
    FUZZ_EXPECT(ring.stride <= (link.bytes - ring.offset) / ring.slots);
    end = ring.offset + ring.stride * ring.slots;
  }
  if (__builtin_add_overflow(held[link.destination], link.bytes, &held[link.destination]))
    held[link.destination] = UINT64_MAX;
}

static void check_plan(const request *r, const rdt_plan *plan) {
  uint64_t held[TASKS] = {0};
  for (size_t i = 0; i < r->count; i++) check_place(plan, &r->edges[i], i);
  for (size_t i = 0; i < rdt_plan_link_count(plan); i++) check_link(plan, i, held);
  for (uint32_t i = 0; i < TASKS && r->options.budgets; i++) FUZZ_EXPECT(held[i] <= r->budgets[i]);
}

static void make_plan(fuzz_input *input) {
  static request r;
  rdt_plan *plan;
  read_request(&r, input);
  if (rdt_plan_make(r.edges, r.count, TASKS, &r.options, &plan) != RDT_OK) return;
  check_plan(&r, plan);
  for (size_t i = 0; i < r.count; i++) rdt_plan_edge_hash(&r.edges[i]);
  rdt_plan_free(plan);
  rdt_plan_fusion fusions[sizeof(r.edges) / sizeof(r.edges[0])];
  FUZZ_EXPECT(rdt_plan_fuse(r.edges, r.count, &r.options, fusions) == RDT_OK);
  for (size_t i = 0; i < r.count; i++)
    FUZZ_EXPECT((fusions[i].operation < 0) == (fusions[i].alone != RDT_PLAN_ALONE_NOT));
}

/* Graphs with cycles, and indices out of range. */
static void find_order(fuzz_input *input) {
  rdt_plan_node nodes[NODES];
  rdt_plan_arc arcs[4 * NODES];
  rdt_plan_use uses[NODES];
  rdt_plan_order orders[NODES];
  uint32_t consumers[NODES][3];
  memset(nodes, 0, sizeof(nodes));
  memset(uses, 0, sizeof(uses));
  size_t node_count = fuzz_below(input, NODES + 1), arc_count = fuzz_below(input, 4 * NODES + 1);
  size_t use_count = fuzz_below(input, NODES + 1);
  uint32_t beyond = (uint32_t)node_count + (fuzz_u8(input) == 255);
  for (size_t i = 0; i < node_count; i++) {
    nodes[i].task = fuzz_u8(input) % TASKS;
    nodes[i].flags = fuzz_u8(input);
  }
  for (size_t i = 0; i < arc_count; i++) {
    arcs[i].from = (uint32_t)fuzz_below(input, beyond + !beyond);
    arcs[i].to = (uint32_t)fuzz_below(input, beyond + !beyond);
  }
  for (size_t i = 0; i < use_count; i++) {
    uses[i].producer = (uint32_t)fuzz_below(input, beyond + !beyond);
    uses[i].consumer_count = fuzz_u8(input) % 4;
    uses[i].consumers = consumers[i];
    for (size_t c = 0; c < uses[i].consumer_count; c++)
      consumers[i][c] = (uint32_t)fuzz_below(input, beyond + !beyond);
  }
  if (rdt_plan_find_order(nodes, node_count, arcs, arc_count, uses, use_count, orders) != RDT_OK)
    return;
  for (size_t i = 0; i < use_count; i++)
    FUZZ_EXPECT(orders[i].ready >= -1 && orders[i].first >= 0 && orders[i].last >= orders[i].first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  if (fuzz_u8(&input) & 1)
    find_order(&input);
  else
    make_plan(&input);
  return 0;
}

static void put_edge(fuzz_output *out, uint8_t name, uint8_t flags, uint8_t rows) {
  const uint8_t edge[] = {name, 0, 1, 1, 4, 4, flags, rows, 10, 1, name, 1};
  fuzz_put(out, edge, sizeof(edge));
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  if (number > 2) return 0;
  if (number == 2) {
    static const uint8_t chain[] = {1, 4, 3, 1, 0, 0, 0, 1, 0, 1, 0,
                                    0, 0, 0, 1, 1, 2, 2, 3, 0, 1, 1};
    fuzz_put(&out, chain, sizeof(chain));
    return out.size;
  }
  const uint8_t options[] = {0, 2, 4, 0, 100, 199, (uint8_t)number, 10, 8, 10, 8, 10, 8, 10, 8, 4};
  fuzz_put(&out, options, sizeof(options));
  put_edge(&out, 1, 0, 11);
  put_edge(&out, 2, 0, 3);
  put_edge(&out, 3, 1, 101);
  put_edge(&out, 4, 0, 0);
  return out.size;
}
