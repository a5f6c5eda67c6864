/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner on plans small enough to be known, and on arguments that make none. What holds of every
 * plan is in test_plan.py, of every order in test_plan_order.py.
 */
#include <string.h>

#include "unit.h"

/* OPTIONS and EDGE have defaults, which their uses override. */
#pragma GCC diagnostic ignored "-Woverride-init"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define NEVER INT32_MAX
#define OPTIONS(...)                                                                          \
  (rdt_plan_options) {                                                                        \
    .struct_size = sizeof(rdt_plan_options), .slots = 2, .loop_slots = 4, .fuse_bytes = 4096, \
    .fuse_group_bytes = 65536, __VA_ARGS__                                                    \
  }
/* A tensor of bytes from task 0 to task 1. */
#define EDGE(text, shape, ...) \
  {.name = text,               \
   .destination = 1,           \
   .element_size = 1,          \
   .rank = COUNT(shape),       \
   .dims = shape,              \
   .order = {-1, 0, NEVER},    \
   __VA_ARGS__}

static rdt_plan *make(const rdt_plan_edge *edges, size_t count, rdt_plan_options options) {
  rdt_plan *plan;
  EXPECT_STATUS(RDT_OK, rdt_plan_make(edges, count, 2, &options, &plan));
  return plan;
}

static rdt_plan_place place_of(const rdt_plan *plan, size_t index) {
  rdt_plan_place place;
  EXPECT_STATUS(RDT_OK, rdt_plan_get_place(plan, index, &place));
  return place;
}

static rdt_plan_link link_of(const rdt_plan *plan, size_t index) {
  rdt_plan_link link;
  EXPECT_STATUS(RDT_OK, rdt_plan_get_link(plan, index, &link));
  return link;
}

static rdt_plan_ring ring_of(const rdt_plan *plan, size_t index, int32_t number) {
  rdt_plan_ring ring;
  EXPECT_STATUS(RDT_OK, rdt_plan_get_ring(plan, index, (uint32_t)number, &ring));
  return ring;
}

/* ---- Classes ------------------------------------------------------------------------------------ */

static const int64_t known[] = {10, 20}, no_batch[] = {-1, 20}, no_width[] = {10, -1},
                     neither[] = {-1, -1}, hollow[] = {INT64_MAX, INT64_MAX, 0},
                     hollow_batch[] = {-1, 0}, huge[] = {INT64_MAX, 4}, large[] = {INT64_MAX, 2};

static void expect_class(rdt_plan_edge edge, rdt_plan_class plan_class, rdt_plan_reason reason,
                         uint64_t bytes, uint64_t batch) {
  rdt_plan *plan = make(&edge, 1, OPTIONS(.batch = batch));
  rdt_plan_place place = place_of(plan, 0);
  EXPECT(place.plan_class == plan_class);
  EXPECT(place.reason == reason);
  EXPECT(place.bytes == bytes);
  EXPECT((place.ring >= 0) ==
         (bytes > 0 && (plan_class == RDT_PLAN_STATIC || plan_class == RDT_PLAN_BOUNDED)));
  rdt_plan_free(plan);
}

static void test_classes(void) {
  const rdt_plan_class fixed = RDT_PLAN_STATIC, bounded = RDT_PLAN_BOUNDED,
                       dynamic = RDT_PLAN_DYNAMIC, rpc = RDT_PLAN_RPC;
  expect_class((rdt_plan_edge)EDGE("e", known), fixed, RDT_PLAN_BECAUSE_NONE, 200, 0);
  expect_class((rdt_plan_edge)EDGE("e", known, .element_size = 4), fixed, RDT_PLAN_BECAUSE_NONE,
               800, 7);
  expect_class((rdt_plan_edge)EDGE("e", known, .rank = 0), fixed, RDT_PLAN_BECAUSE_NONE, 1, 0);
  expect_class((rdt_plan_edge)EDGE("e", hollow), fixed, RDT_PLAN_BECAUSE_NONE, 0, 0);
  expect_class((rdt_plan_edge)EDGE("e", no_batch), dynamic, RDT_PLAN_BECAUSE_DIMENSION, 0, 0);
  expect_class((rdt_plan_edge)EDGE("e", no_batch), bounded, RDT_PLAN_BECAUSE_BATCH, 140, 7);
  expect_class((rdt_plan_edge)EDGE("e", hollow_batch), bounded, RDT_PLAN_BECAUSE_BATCH, 0, 7);
  expect_class((rdt_plan_edge)EDGE("e", no_width), dynamic, RDT_PLAN_BECAUSE_DIMENSION, 0, 7);
  expect_class((rdt_plan_edge)EDGE("e", neither), dynamic, RDT_PLAN_BECAUSE_DIMENSION, 0, 7);
  expect_class((rdt_plan_edge)EDGE("e", known, .rank = -1), dynamic, RDT_PLAN_BECAUSE_RANK, 0, 7);
  expect_class((rdt_plan_edge)EDGE("e", huge), dynamic, RDT_PLAN_BECAUSE_SIZE, 0, 0);
  expect_class((rdt_plan_edge)EDGE("e", no_batch), dynamic, RDT_PLAN_BECAUSE_SIZE, 0, UINT64_MAX);
  /* 64 bits hold the size, but no task holds the tensor. */
  expect_class((rdt_plan_edge)EDGE("e", large), dynamic, RDT_PLAN_BECAUSE_BUDGET, UINT64_MAX - 1,
               0);
  expect_class((rdt_plan_edge)EDGE("e", large, .rank = 1), dynamic, RDT_PLAN_BECAUSE_BUDGET,
               INT64_MAX, 0);
  expect_class((rdt_plan_edge)EDGE("e", known, .element_size = 0), rpc, RDT_PLAN_BECAUSE_TYPE, 0,
               0);
  expect_class((rdt_plan_edge)EDGE("e", known, .flags = RDT_EDGE_DEVICE_MEMORY), RDT_PLAN_STATIC,
               RDT_PLAN_BECAUSE_NONE, 200, 0);
}

static void test_words(void) {
  EXPECT(strcmp(rdt_plan_class_name(RDT_PLAN_STATIC), "static") == 0);
  EXPECT(strcmp(rdt_plan_class_name(RDT_PLAN_RPC), "rpc") == 0);
  EXPECT(strcmp(rdt_plan_class_name((rdt_plan_class)4), "") == 0);
  EXPECT(strcmp(rdt_plan_class_name((rdt_plan_class)-1), "") == 0);
  EXPECT(strcmp(rdt_plan_reason_text(RDT_PLAN_BECAUSE_NONE), "") == 0);
  EXPECT(strcmp(rdt_plan_reason_text((rdt_plan_reason)8), "") == 0);
  for (int reason = RDT_PLAN_BECAUSE_TYPE; reason <= RDT_PLAN_BECAUSE_SIZE; reason++)
    EXPECT(rdt_plan_reason_text((rdt_plan_reason)reason)[0]);
}

/* ---- Layout ------------------------------------------------------------------------------------- */

static const int64_t b100[] = {100}, b300[] = {300}, b5000[] = {5000}, b6000[] = {6000};

/* Two small tensors as a group, one in a loop, two of known order in one ring. */
static void test_layout(void) {
  const rdt_plan_edge edges[] = {EDGE("late", b5000, .order = {1, 1, 1}),
                                 EDGE("loop", b100, .flags = RDT_EDGE_LOOP, .order = {0, 0, 0}),
                                 EDGE("small/2", b300, .order = {0, 0, 0}),
                                 EDGE("early", b6000, .order = {0, 0, 0}),
                                 EDGE("small/1", b100, .order = {0, 0, 0})};
  rdt_plan *plan = make(edges, COUNT(edges), OPTIONS(.batch = 0));
  EXPECT(rdt_plan_link_count(plan) == 1);
  rdt_plan_link link = link_of(plan, 0);
  EXPECT(link.source == 0 && link.destination == 1);
  EXPECT(link.group_count == 1 && link.ring_count == 3);

  rdt_plan_place first = place_of(plan, 4), second = place_of(plan, 2);
  EXPECT(first.group == 0 && second.group == 0 && first.ring == second.ring);
  EXPECT(first.offset == 0 && second.offset == 128);
  rdt_plan_ring group = ring_of(plan, 0, first.ring);
  EXPECT(group.stride == 128 + 320 && group.slots == 2 && group.members == 2);

  rdt_plan_place late = place_of(plan, 0), early = place_of(plan, 3);
  EXPECT(late.ring == early.ring && late.group == -1 && early.group == -1);
  rdt_plan_ring shared = ring_of(plan, 0, late.ring);
  EXPECT(shared.stride == 6016 && shared.slots == 2 && shared.members == 2);

  rdt_plan_ring loop = ring_of(plan, 0, place_of(plan, 1).ring);
  EXPECT(loop.stride == 128 && loop.slots == 4 && loop.members == 1);
  EXPECT(link.bytes == 2 * 448 + 2 * 6016 + 4 * 128);
  EXPECT(group.offset == 0 && shared.offset == 2 * 448 && loop.offset == 2 * 448 + 2 * 6016);
  rdt_plan_free(plan);
}

/* A group holds no more members, and no more bytes, than it may; what is over travels alone or next. */
static void test_large_groups(void) {
  rdt_plan_edge edges[130];
  char names[COUNT(edges)][8];
  for (size_t i = 0; i < COUNT(edges); i++) {
    snprintf(names[i], sizeof(names[i]), "%03zu", i);
    edges[i] = (rdt_plan_edge)EDGE(names[i], b100, .order = {0, 0, 0});
  }
  rdt_plan *plan = make(edges, 129, OPTIONS(.batch = 0));
  EXPECT(link_of(plan, 0).group_count == 2);
  EXPECT(place_of(plan, 63).group == 0 && place_of(plan, 64).group == 1);
  EXPECT(place_of(plan, 127).group == 1 && place_of(plan, 128).group == -1);
  rdt_plan_free(plan);
  plan = make(edges, 130, OPTIONS(.fuse_group_bytes = 10 * 128 + 127));
  EXPECT(link_of(plan, 0).group_count == 13);
  EXPECT(place_of(plan, 9).group == 0 && place_of(plan, 10).group == 1);
  rdt_plan_free(plan);
  plan = make(edges, 130, OPTIONS(.fuse_bytes = 99));
  EXPECT(link_of(plan, 0).group_count == 0 && link_of(plan, 0).ring_count == 130);
  rdt_plan_free(plan);
}

static void test_budget(void) {
  const rdt_plan_edge edges[] = {EDGE("a", b6000), EDGE("b", b5000), EDGE("c", b5000),
                                 EDGE("d", b5000, .flags = RDT_EDGE_LOOP)};
  uint64_t budgets[] = {0, 4 * 5056 + 2 * 5056};
  rdt_plan *plan = make(edges, COUNT(edges), OPTIONS(.budgets = budgets));
  /* d saves most, being sent many times; of b and c, alike, the first by name. */
  EXPECT(place_of(plan, 0).reason == RDT_PLAN_BECAUSE_BUDGET && place_of(plan, 0).bytes == 6000);
  EXPECT(place_of(plan, 1).plan_class == RDT_PLAN_STATIC);
  EXPECT(place_of(plan, 2).plan_class == RDT_PLAN_DYNAMIC && place_of(plan, 2).ring == -1);
  EXPECT(place_of(plan, 3).plan_class == RDT_PLAN_STATIC);
  EXPECT(link_of(plan, 0).bytes == budgets[1]);
  rdt_plan_free(plan);
  budgets[1] = 4 * 5056 - 1;
  plan = make(edges, COUNT(edges), OPTIONS(.budgets = budgets));
  EXPECT(link_of(plan, 0).bytes == 0 && link_of(plan, 0).ring_count == 0);
  rdt_plan_free(plan);
}

/* Sums that would overflow are over every budget. */
static void test_enormous(void) {
  static const int64_t half[] = {INT64_MAX / 4};
  const rdt_plan_edge edges[] = {EDGE("a", half), EDGE("b", half), EDGE("c", b100)};
  rdt_plan *plan = make(edges, COUNT(edges), OPTIONS(.slots = 1));
  EXPECT(place_of(plan, 0).plan_class == RDT_PLAN_STATIC);
  EXPECT(place_of(plan, 1).plan_class == RDT_PLAN_STATIC);
  rdt_plan_free(plan);
  plan = make(edges, COUNT(edges), OPTIONS(.slots = 64));
  EXPECT(place_of(plan, 0).reason == RDT_PLAN_BECAUSE_BUDGET);
  EXPECT(place_of(plan, 1).reason == RDT_PLAN_BECAUSE_BUDGET);
  EXPECT(place_of(plan, 2).plan_class == RDT_PLAN_STATIC);
  EXPECT(link_of(plan, 0).bytes == 64 * 128);
  rdt_plan_free(plan);
}

/* ---- Hashes ------------------------------------------------------------------------------------- */

static void test_hashes(void) {
  const rdt_plan_edge edge = EDGE("e", known);
  const rdt_plan_edge others[] = {EDGE("f", known),
                                  EDGE("e", no_batch),
                                  EDGE("e", known, .rank = 1),
                                  EDGE("e", known, .rank = -1),
                                  EDGE("e", known, .dtype = 1),
                                  EDGE("e", known, .element_size = 2),
                                  EDGE("e", known, .flags = RDT_EDGE_LOOP)};
  for (size_t i = 0; i < COUNT(others); i++)
    EXPECT(rdt_plan_edge_hash(&others[i]) != rdt_plan_edge_hash(&edge));
  rdt_plan_edge moved = edge;
  moved.source = 1;
  moved.destination = 0;
  moved.order.first = 3;
  EXPECT(rdt_plan_edge_hash(&moved) == rdt_plan_edge_hash(&edge));
  EXPECT(rdt_plan_edge_hash(NULL) == 0);

  /* The ends number tasks differently; what they agree on has one hash, and other slots another. */
  rdt_plan *here = make(&edge, 1, OPTIONS(.batch = 0)),
           *there = make(&moved, 1, OPTIONS(.batch = 1)),
           *larger = make(&edge, 1, OPTIONS(.slots = 3));
  EXPECT(link_of(here, 0).hash == link_of(there, 0).hash);
  EXPECT(link_of(here, 0).hash != link_of(larger, 0).hash);
  rdt_plan_free(here);
  rdt_plan_free(there);
  rdt_plan_free(larger);
}

/* ---- Order of a graph --------------------------------------------------------------------------- */

/* Task 0 reads a and b, task 1 computes c of both, task 0 d of that, and a queue fills q. */
static void test_order(void) {
  const rdt_plan_node nodes[] = {
      {0, RDT_NODE_FREE}, {0, RDT_NODE_FREE}, {1, 0}, {0, 0}, {0, RDT_NODE_BLOCKS}, {1, 0}};
  const rdt_plan_arc arcs[] = {{0, 2}, {1, 2}, {2, 3}, {3, 5}, {4, 5}};
  const uint32_t c[] = {2}, d[] = {3}, end[] = {5};
  const rdt_plan_use uses[] = {{0, c, 1}, {1, c, 1}, {2, d, 1}, {3, end, 1}, {4, end, 1}};
  rdt_plan_order orders[COUNT(uses)];
  EXPECT_STATUS(RDT_OK, rdt_plan_find_order(nodes, COUNT(nodes), arcs, COUNT(arcs), uses,
                                            COUNT(uses), orders));
  EXPECT(orders[0].ready == 0 && orders[1].ready == 0 && orders[2].ready == 1);
  EXPECT(orders[3].ready == 2 && orders[4].ready == -1);
  EXPECT(orders[0].first == 0 && orders[2].first == 1 && orders[3].first == 2);
  /* d's tensor is made after a's and b's were used; nothing comes surely after q's. */
  EXPECT(orders[0].last == 0 && orders[1].last == 0 && orders[3].last == 2);
  EXPECT(orders[4].first == 0 && orders[4].last == 2);
}

/* A branch leaves what comes after it without a value, in whatever task. */
static void test_branches(void) {
  const rdt_plan_node nodes[] = {{0, 0}, {0, RDT_NODE_BRANCH}, {1, 0}, {1, RDT_NODE_ANY}, {0, 0}};
  const rdt_plan_arc arcs[] = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {3, 4}};
  const uint32_t there[] = {4}, here[] = {2};
  const rdt_plan_use uses[] = {{0, here, 1}, {1, here, 1}, {2, there, 1}, {3, there, 1}};
  rdt_plan_order orders[COUNT(uses)];
  EXPECT_STATUS(RDT_OK, rdt_plan_find_order(nodes, COUNT(nodes), arcs, COUNT(arcs), uses,
                                            COUNT(uses), orders));
  EXPECT(!orders[0].may_die);
  for (size_t i = 1; i < COUNT(uses); i++) EXPECT(orders[i].may_die && orders[i].ready >= 0);
}

/* ---- Operations --------------------------------------------------------------------------------- */

static void test_operations(void) {
  static const int64_t small[] = {100}, most[] = {16384}, large[] = {16385}, unknown[] = {-1},
                       none[] = {0};
  const rdt_plan_order order = {.ready = 3, .last = INT32_MAX};
  const rdt_plan_edge like = {
      .destination = 1, .element_size = 4, .rank = 1, .dims = small, .order = order};
  rdt_plan_edge edges[16];
  for (size_t i = 0; i < COUNT(edges); i++) edges[i] = like;
  const char *names[] = {"c", "a", "b", "d", "e", "f", "g", "h",
                         "i", "j", "k", "l", "m", "n", "o", "p"};
  for (size_t i = 0; i < COUNT(edges); i++) edges[i].name = names[i];
  edges[1].dims = most;
  edges[2].destination = 2; /* another device: alone there */
  edges[3].order.ready = 4;
  edges[4].order.ready = -1;
  edges[5].order.may_die = 1;
  edges[6].flags = RDT_EDGE_LOOP;
  edges[7].dims = large;
  edges[8].dims = unknown;
  edges[9].dims = none;
  edges[10].element_size = 0;
  edges[11].order.ready = 4;
  edges[12].source = 3;
  edges[13].source = 3;
  edges[14].flags = RDT_EDGE_DEVICE_MEMORY;
  const rdt_plan_options options = OPTIONS(.fuse_bytes = 1);
  rdt_plan_fusion fusions[COUNT(edges)];
  EXPECT_STATUS(RDT_OK, rdt_plan_fuse(edges, COUNT(edges), &options, fusions));
  const int32_t operations[] = {0, 0, -1, 1, -1, -1, -1, -1, -1, -1, -1, 1, 2, 2, -1, 0};
  const rdt_plan_alone alone[] = {
      RDT_PLAN_ALONE_NOT,   RDT_PLAN_ALONE_NOT,    RDT_PLAN_ALONE_LAST,   RDT_PLAN_ALONE_NOT,
      RDT_PLAN_ALONE_WAITS, RDT_PLAN_ALONE_BRANCH, RDT_PLAN_ALONE_LOOP,   RDT_PLAN_ALONE_SIZE,
      RDT_PLAN_ALONE_SIZE,  RDT_PLAN_ALONE_SIZE,   RDT_PLAN_ALONE_SIZE,   RDT_PLAN_ALONE_NOT,
      RDT_PLAN_ALONE_NOT,   RDT_PLAN_ALONE_NOT,    RDT_PLAN_ALONE_DEVICE, RDT_PLAN_ALONE_NOT};
  for (size_t i = 0; i < COUNT(edges); i++)
    EXPECT(fusions[i].operation == operations[i] && fusions[i].alone == alone[i]);
  EXPECT_STATUS(RDT_OK, rdt_plan_fuse(edges, COUNT(edges), &OPTIONS(.fuse_bytes = 0), fusions));
  for (size_t i = 0; i < COUNT(edges); i++)
    EXPECT(fusions[i].operation == -1 && fusions[i].alone == RDT_PLAN_ALONE_OFF);
  EXPECT(strcmp(rdt_plan_alone_text((rdt_plan_alone)99), "") == 0);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_fuse(NULL, 1, &options, fusions));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_fuse(edges, 1, NULL, fusions));
}

/* One operation carries 1 MiB at most. */
static void test_long_operations(void) {
  enum { COUNT_OF = 40 };
  static const int64_t most[] = {16384};
  char names[COUNT_OF][4];
  rdt_plan_edge edges[COUNT_OF];
  rdt_plan_fusion fusions[COUNT_OF];
  for (size_t i = 0; i < COUNT_OF; i++) {
    snprintf(names[i], sizeof(names[i]), "%02zu", i);
    edges[i] = (rdt_plan_edge){.name = names[i], .element_size = 4, .rank = 1, .dims = most};
  }
  EXPECT_STATUS(RDT_OK, rdt_plan_fuse(edges, COUNT_OF, &OPTIONS(.fuse_bytes = 1), fusions));
  for (int32_t i = 0; i < COUNT_OF; i++) EXPECT(fusions[i].operation == i / 16);
}

static void test_loops(void) {
  /* 1 and 2 form a cycle, 3 is behind it, 4 says itself that it is in a loop, 5 is behind that. */
  const rdt_plan_node nodes[] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, RDT_NODE_LOOP},
                                 {0, 0}, {1, 0}};
  const rdt_plan_arc arcs[] = {{0, 1}, {1, 2}, {2, 1}, {2, 3}, {4, 5}, {6, 5}};
  const uint32_t there[] = {6};
  rdt_plan_use uses[6];
  rdt_plan_order orders[COUNT(uses)];
  for (uint32_t i = 0; i < COUNT(uses); i++) uses[i] = (rdt_plan_use){i, there, 1};
  EXPECT_STATUS(RDT_OK, rdt_plan_find_order(nodes, COUNT(nodes), arcs, COUNT(arcs), uses,
                                            COUNT(uses), orders));
  EXPECT(orders[0].ready == 0);
  for (size_t i = 1; i < COUNT(uses); i++) EXPECT(orders[i].ready == -1);
  for (size_t i = 1; i < 5; i++) EXPECT(orders[i].first == 0 && orders[i].last == NEVER);
  EXPECT(orders[5].first == 1 && orders[5].last == 1);
}

/* A link of more tensors than may be compared: unknown, and quickly so. */
static void test_bounded_effort(void) {
  enum { LENGTH = 40000 };
  rdt_plan_node *nodes = calloc(LENGTH, sizeof(*nodes));
  rdt_plan_arc *arcs = calloc(LENGTH, sizeof(*arcs));
  rdt_plan_use *uses = calloc(LENGTH, sizeof(*uses));
  uint32_t *consumers = calloc(LENGTH, sizeof(*consumers));
  rdt_plan_order *orders = calloc(LENGTH, sizeof(*orders));
  for (uint32_t i = 0; i < LENGTH - 1; i++) {
    nodes[i + 1].task = (i + 1) % 2;
    arcs[i] = (rdt_plan_arc){i, i + 1};
    consumers[i] = i + 1;
    uses[i] = (rdt_plan_use){i, &consumers[i], 1};
  }
  EXPECT_STATUS(RDT_OK, rdt_plan_find_order(nodes, 1000, arcs, 999, uses, 999, orders));
  for (int32_t i = 0; i < 999; i++) EXPECT(orders[i].first == i && orders[i].last == i);
  EXPECT_STATUS(RDT_OK,
                rdt_plan_find_order(nodes, LENGTH, arcs, LENGTH - 1, uses, LENGTH - 1, orders));
  EXPECT(orders[0].first == 0 && orders[0].last == NEVER);
  free(nodes);
  free(arcs);
  free(uses);
  free(consumers);
  free(orders);
}

/* ---- Bad arguments ------------------------------------------------------------------------------ */

static void expect_refusal(const char *part, const rdt_plan_edge *edges, size_t count,
                           const rdt_plan_options *options) {
  rdt_plan *plan = NULL;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_make(edges, count, 2, options, &plan));
  EXPECT(strstr(rdt_last_error(), part) && plan == NULL);
}

static void test_bad_edges(void) {
  static const int64_t negative[] = {-2};
  const rdt_plan_options options = OPTIONS(.batch = 0);
  const rdt_plan_edge twins[] = {EDGE("twin", known), EDGE("x", known), EDGE("twin", b100)};
  expect_refusal("task 0 to task 1 are named twin", twins, 3, &options);
  expect_refusal("task 2", &(rdt_plan_edge)EDGE("e", known, .destination = 2), 1, &options);
  expect_refusal("task 9", &(rdt_plan_edge)EDGE("e", known, .source = 9), 1, &options);
  expect_refusal("no name", &(rdt_plan_edge)EDGE(NULL, known), 1, &options);
  expect_refusal("is -2", &(rdt_plan_edge)EDGE("e", negative), 1, &options);
  expect_refusal("rank -2", &(rdt_plan_edge)EDGE("e", known, .rank = -2), 1, &options);
  expect_refusal("no dim", &(rdt_plan_edge)EDGE("e", known, .dims = NULL), 1, &options);
  expect_refusal("no edges", NULL, 1, &options);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_make(twins, 1, 2, &options, NULL));
}

static void test_bad_options(void) {
  const rdt_plan_edge edge = EDGE("e", known);
  expect_refusal("struct_size", &edge, 1, NULL);
  expect_refusal("struct_size", &edge, 1, &OPTIONS(.struct_size = 8));
  expect_refusal("slots", &edge, 1, &OPTIONS(.slots = 0));
  expect_refusal("slots", &edge, 1, &OPTIONS(.slots = 65));
  expect_refusal("loop_slots", &edge, 1, &OPTIONS(.loop_slots = 0));
  expect_refusal("loop_slots", &edge, 1, &OPTIONS(.loop_slots = 65));
}

static void test_bad_graphs(void) {
  const rdt_plan_node nodes[] = {{0, 0}, {1, 0}, {2, 0}};
  const rdt_plan_arc bad_from = {3, 0}, bad_to = {0, 3};
  const uint32_t consumers[] = {1, 2}, missing[] = {3};
  const rdt_plan_use bad[] = {
      {3, consumers, 1}, {0, missing, 1}, {0, consumers, 2}, {0, consumers, 0}, {0, NULL, 1}};
  rdt_plan_order order;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, &bad_from, 1, NULL, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, &bad_to, 1, NULL, 0, NULL));
  for (size_t i = 0; i < COUNT(bad); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, NULL, 0, &bad[i], 1, &order));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(NULL, 3, NULL, 0, NULL, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, NULL, 1, NULL, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, NULL, 0, NULL, 1, &order));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_find_order(nodes, 3, NULL, 0, bad, 1, NULL));
  EXPECT_STATUS(RDT_OK, rdt_plan_find_order(NULL, 0, NULL, 0, NULL, 0, NULL));
}

static void test_bad_reads(void) {
  const rdt_plan_edge edge = EDGE("e", known);
  rdt_plan_place place;
  rdt_plan_link link;
  rdt_plan_ring ring;
  rdt_plan *plan = make(&edge, 1, OPTIONS(.batch = 0)), *empty = make(NULL, 0, OPTIONS(.batch = 0));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_place(plan, 1, &place));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_place(plan, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_place(NULL, 0, &place));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_link(plan, 1, &link));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_link(plan, 0, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_ring(plan, 0, 1, &ring));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_ring(plan, 1, 0, &ring));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_ring(plan, 0, 0, NULL));
  EXPECT(rdt_plan_link_count(empty) == 0 && rdt_plan_link_count(NULL) == 0);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_plan_get_link(empty, 0, &link));
  rdt_plan_free(plan);
  rdt_plan_free(empty);
  rdt_plan_free(NULL);
}

int main(void) {
  test_classes();
  test_words();
  test_layout();
  test_large_groups();
  test_budget();
  test_enormous();
  test_hashes();
  test_order();
  test_branches();
  test_operations();
  test_long_operations();
  test_loops();
  test_bounded_effort();
  test_bad_edges();
  test_bad_options();
  test_bad_graphs();
  test_bad_reads();
  return 0;
}
