/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of the algorithm: possible, the cheapest, stable in size, and what one would expect where
 * there is no doubt.
 */
#include <stdbool.h>
#include <stddef.h>

#include "group/schedule/costs.h"
#include "group/schedule/schedule_make.h"
#include "unit.h"

#define MEMBERS_MOST 64u
#define IMPOSSIBLE 1e200

typedef struct setting {
  uint32_t size;
  uint32_t hosts[MEMBERS_MOST];
  rdt_group_costs costs;
} setting;

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static double between(double low, double high) {
  return low + (high - low) * (double)(next_random() % 1000) / 999;
}

/* `members` on each host. */
static setting make_setting(uint32_t size, uint32_t members) {
  setting s = {.size = size};
  for (uint32_t rank = 0; rank < size; rank++) s.hosts[rank] = rank / members;
  s.costs = (rdt_group_costs){{600, 3000}, {0.12, 0.09}, 0.15};
  return s;
}

/* Numbers hosts in the order in which they appear. */
static void number_hosts(setting *s) {
  uint32_t numbers[MEMBERS_MOST], known = 0;
  for (uint32_t rank = 0; rank < s->size; rank++) {
    uint32_t host = 0;
    while (host < known && numbers[host] != s->hosts[rank]) host++;
    if (host == known) numbers[known++] = s->hosts[rank];
    s->hosts[rank] = host;
  }
}

static setting random_setting(void) {
  setting s = make_setting(1 + (uint32_t)(next_random() % MEMBERS_MOST), 1);
  const uint32_t hosts = 1 + (uint32_t)(next_random() % 9);
  for (uint32_t rank = 0; rank < s.size; rank++) s.hosts[rank] = (uint32_t)(next_random() % hosts);
  number_hosts(&s);
  s.costs = (rdt_group_costs){{between(100, 5000), between(1000, 50000)},
                              {between(0.02, 0.5), between(0.02, 2)},
                              between(0.02, 0.5)};
  return s;
}

static double predict(const setting *s, rdt_collective_kind kind, rdt_algorithm algorithm,
                      uint64_t bytes) {
  return rdt_group_costs_predict(&s->costs, kind, algorithm, bytes, s->size, s->hosts);
}

static rdt_algorithm choose(const setting *s, rdt_collective_kind kind, uint64_t bytes) {
  return rdt_group_costs_choose(&s->costs, kind, bytes, s->size, s->hosts);
}

/* ---- What holds anywhere ------------------------------------------------------------------------------ */

static void check_possible(const setting *s, rdt_collective_kind kind, rdt_algorithm algorithm) {
  EXPECT(algorithm > RDT_ALGORITHM_AUTO && algorithm < RDT_ALGORITHM_COUNT);
  EXPECT(predict(s, kind, algorithm, 1000) < IMPOSSIBLE);
  if (kind == RDT_BARRIER) return;
  rdt_schedule_request request = {.kind = kind, .algorithm = algorithm, .size = s->size};
  request.hosts = s->hosts;
  request.count = 2 * s->size;
  rdt_schedule *schedule = NULL;
  EXPECT_STATUS(RDT_OK, rdt_schedule_make(&request, &schedule));
  rdt_schedule_free(schedule);
}

/* Costs grow with size; the choice is the cheapest, and does not come back once it was left. Not so for
 * BROADCAST, where the cost of a chain bends. */
static void check_choices(const setting *s, rdt_collective_kind kind) {
  bool left[RDT_ALGORITHM_COUNT] = {false};
  double costs[RDT_ALGORITHM_COUNT] = {0};
  rdt_algorithm last = RDT_ALGORITHM_AUTO;
  for (uint64_t bytes = 4; bytes < UINT64_C(1) << 32; bytes += bytes / 3 + 1) {
    const rdt_algorithm best = choose(s, kind, bytes);
    EXPECT(best == choose(s, kind, bytes));
    if (best != last) {
      check_possible(s, kind, best);
      left[last] = true;
      EXPECT(kind == RDT_BROADCAST || !left[best]);
      last = best;
    }
    for (rdt_algorithm a = RDT_ALGORITHM_FLAT; a < RDT_ALGORITHM_COUNT; a++) {
      const double cost = predict(s, kind, a, bytes);
      EXPECT(cost >= costs[a] && cost >= predict(s, kind, best, bytes) * (1 - 1e-9));
      costs[a] = cost;
    }
  }
}

static void test_anywhere(void) {
  for (int i = 0; i < 150; i++) {
    const setting s = random_setting();
    for (rdt_collective_kind kind = RDT_ALL_REDUCE; kind <= RDT_BARRIER; kind++)
      check_choices(&s, kind);
  }
}

/* ---- Where there is no doubt --------------------------------------------------------------------------- */

static void test_two_members(void) {
  const setting s = make_setting(2, 2);
  EXPECT(choose(&s, RDT_ALL_REDUCE, 1024) == RDT_ALGORITHM_FLAT);
  EXPECT(choose(&s, RDT_ALL_REDUCE, 64 << 20) == RDT_ALGORITHM_DIRECT);
  for (rdt_collective_kind kind = RDT_REDUCE_SCATTER; kind <= RDT_BARRIER; kind++)
    EXPECT(choose(&s, kind, 64 << 20) ==
           (kind == RDT_REDUCE ? RDT_ALGORITHM_DIRECT : RDT_ALGORITHM_FLAT));
  /* With two members these do what FLAT or DIRECT do. */
  EXPECT(predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_RING, 1024) > IMPOSSIBLE);
  EXPECT(predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_HIERARCHICAL, 1024) > IMPOSSIBLE);
}

static void test_one_member(void) {
  const setting s = make_setting(1, 1);
  for (rdt_collective_kind kind = RDT_ALL_REDUCE; kind <= RDT_BARRIER; kind++) {
    EXPECT(choose(&s, kind, 64 << 20) == RDT_ALGORITHM_FLAT);
    EXPECT(predict(&s, kind, RDT_ALGORITHM_FLAT, 0) == 0);
  }
}

/* Where many would send to one at once, large data takes ways on which one does. */
static void test_senders_that_meet(void) {
  setting s = make_setting(4, 1);
  s.costs.byte_ns[RDT_PAIR_REMOTE] = 1; /* slower than reductions */
  EXPECT(choose(&s, RDT_REDUCE_SCATTER, 1024) == RDT_ALGORITHM_FLAT);
  EXPECT(choose(&s, RDT_REDUCE_SCATTER, 64 << 20) == RDT_ALGORITHM_RING);
  EXPECT(choose(&s, RDT_ALL_GATHER, 64 << 20) == RDT_ALGORITHM_HALVING);
  EXPECT(choose(&s, RDT_ALL_REDUCE, 64 << 20) == RDT_ALGORITHM_HALVING);
  const setting near = make_setting(4, 4);
  EXPECT(choose(&near, RDT_ALL_GATHER, 64 << 20) == RDT_ALGORITHM_FLAT);
}

/* Many members: small data wants few rounds and few messages, large data few bytes. */
static void test_many_members(void) {
  const setting s = make_setting(64, 1);
  EXPECT(choose(&s, RDT_ALL_REDUCE, 1024) == RDT_ALGORITHM_HALVING);
  EXPECT(choose(&s, RDT_ALL_GATHER, 64) == RDT_ALGORITHM_HALVING);
  EXPECT(choose(&s, RDT_BROADCAST, 1024) == RDT_ALGORITHM_HALVING);
  const double halving = predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_HALVING, 1 << 30);
  EXPECT(predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_FLAT, 1 << 30) > 20 * halving);
}

/* A slow network between hosts of five members (pairs of HALVING would not stay inside): the data should
 * cross it once. */
static void test_hosts(void) {
  setting s = make_setting(15, 5);
  s.costs.byte_ns[RDT_PAIR_REMOTE] = 10;
  s.costs.latency_ns[RDT_PAIR_REMOTE] = 50000;
  const double best = predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_HIERARCHICAL, 1 << 20);
  EXPECT(choose(&s, RDT_ALL_REDUCE, 1 << 20) == RDT_ALGORITHM_HIERARCHICAL);
  EXPECT(predict(&s, RDT_ALL_REDUCE, RDT_ALGORITHM_DIRECT, 1 << 20) > 4 * best);
  EXPECT(choose(&s, RDT_BROADCAST, 1 << 14) == RDT_ALGORITHM_HIERARCHICAL);
}

int main(void) {
  test_anywhere();
  test_two_members();
  test_one_member();
  test_senders_that_meet();
  test_many_members();
  test_hosts();
  return 0;
}
