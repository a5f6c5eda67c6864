/* SPDX-License-Identifier: Apache-2.0
 *
 * Collective operations: every kind, by every algorithm and way in which messages travel, many at a time.
 */
#include "group_trials.h"

static void test_kinds(void) {
  member members[MEMBERS];
  for (uint32_t size = is_slow() ? 3 : 1; size <= (is_slow() ? 3 : MEMBERS); size++) {
    open_group(members, size, "kinds");
    check_kinds(members, size, size % 2 ? PLAIN : REGISTERED, RDT_ALGORITHM_AUTO,
                is_slow() ? RDT_ALGORITHM_FLAT : RDT_ALGORITHM_HIERARCHICAL);
    for (uint32_t i = 0; i < size; i++) members[i].group->reads = false;
    if (size == 3 && !is_slow())
      check_kinds(members, size, PLAIN, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_DIRECT);
    close_group(members, size);
  }
}

static void test_copies(void) {
  member members[2];
  rdt_group_info info;
  open_group(members, 2, "copies");
  trial t = {RDT_ALL_REDUCE, RDT_ALGORITHM_DIRECT, 400000, false, REGISTERED};
  check_trial(members, 2, &t);
  EXPECT_STATUS(RDT_OK, rdt_group_get_info(members[1].group, &info));
  EXPECT(info.copies == 0);
  EXPECT(info.operations[RDT_ALGORITHM_DIRECT] == 1);
  EXPECT(info.bytes[RDT_ALGORITHM_DIRECT] == 400000 * sizeof(int32_t));
  EXPECT(info.rank == 1 && info.size == 2 && info.hosts == 1 && info.latency_ns[0] > 0 &&
         info.byte_ns[0] > 0 && info.byte_ns[1] == 0 && info.reduce_byte_ns > 0);
  /* What lies in no region is read where it is, if the system permits that, or else staged; where memory
   * cannot be mapped, it is the receiver that copies. */
  const bool maps = members[1].group->links[0].maps, reads = members[1].group->reads;
  const uint64_t staged = (maps ? 400000 : 200000) * sizeof(int32_t);
  t.memory = PLAIN;
  check_trial(members, 2, &t);
  EXPECT_STATUS(RDT_OK, rdt_group_get_info(members[1].group, &info));
  EXPECT(info.copies == (maps && reads ? 0 : staged));
  const uint64_t before = info.copies;
  for (int i = 0; i < 2; i++) members[i].group->reads = false;
  check_trial(members, 2, &t);
  EXPECT_STATUS(RDT_OK, rdt_group_get_info(members[1].group, &info));
  EXPECT(info.copies - before == staged);
  close_group(members, 2);
}

/* Messages are written into the receiver's memory, as over verbs. */
static void test_pushed(void) {
  member members[MEMBERS];
  for (uint32_t size = 2; size <= 3; size++) {
    rdt_config_set("GROUP_CHUNK_BYTES", size == 2 ? "0" : "100000");
    open_group(members, size, "pushed");
    forbid_mapping(members, size);
    check_kinds(members, size, PLAIN, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_DIRECT);
    check_kinds(members, size, REGISTERED, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_DIRECT);
    close_group(members, size);
  }
  rdt_config_set("GROUP_CHUNK_BYTES", "0");
}

/* Nothing travels in notifications, and those are short. */
static void test_small_rings(void) {
  member members[MEMBERS];
  rdt_config_set("RING_BYTES", "4096");
  open_group(members, 3, "small rings");
  check_kinds(members, 3, PLAIN, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_FLAT);
  close_group(members, 3);
  rdt_config_set("GROUP_EAGER_BYTES", "0");
  open_group(members, 3, "no eager messages");
  check_kinds(members, 3, REGISTERED, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_FLAT);
  forbid_mapping(members, 3);
  check_kinds(members, 3, PLAIN, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_FLAT);
  close_group(members, 3);
  rdt_config_set("GROUP_EAGER_BYTES", "16K");
  rdt_config_set("RING_BYTES", "4M");
}

/* ---- many at a time ---------------------------------------------------------------------------------- */

#define MANY 600

static uint32_t order_of(uint32_t rank, uint32_t i) {
  return rank % 2 ? MANY - 1 - i : (i * 7 + rank) % MANY; /* 7 and MANY have no common divisor */
}

typedef struct {
  atomic_int done, failed;
} tally;

static void count_done(void *context, rdt_status status) {
  tally *t = context;
  if (status != RDT_OK) {
    fprintf(stderr, "%s: %s\n", rdt_status_name(status), rdt_last_error());
    atomic_fetch_add(&t->failed, 1);
  }
  atomic_fetch_add(&t->done, 1);
}

/* Short and long operations that each member drives by itself for a while, or leaves at once. */
static void test_try(void) {
  enum { ROUNDS = 100, LONGEST_TRIED = 20000 };
  static int32_t numbers[3][ROUNDS][LONGEST_TRIED];
  member members[MEMBERS];
  tally tallies[MEMBERS] = {0};
  open_group(members, 3, "try");
  for (uint32_t round = 0; round < ROUNDS; round++)
    for (uint32_t i = 0; i < 3; i++) {
      uint64_t count = round % 10 ? 1 + round : LONGEST_TRIED;
      int32_t *mine = numbers[i][round];
      for (uint64_t j = 0; j < count; j++) mine[j] = (int32_t)(j + round + i);
      rdt_collective call = sum_call(round + 1, mine, count);
      /* The last member to start finds the others waiting, and may be done at once. */
      rdt_status status =
          rdt_group_try(members[i].group, &call, i == 2 ? 100 : 0, count_done, &tallies[i]);
      EXPECT(status == RDT_IN_PROGRESS || (i == 2 && status == RDT_OK));
      if (status == RDT_OK) atomic_fetch_add(&tallies[i].done, 1);
    }
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT(becomes(&tallies[i].done, ROUNDS));
    EXPECT(atomic_load(&tallies[i].failed) == 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
      uint64_t count = round % 10 ? 1 + round : LONGEST_TRIED;
      for (uint64_t j = 0; j < count; j++)
        EXPECT(numbers[i][round][j] == (int32_t)(3 * (j + round) + 3));
    }
  }
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_try(members[0].group, NULL, 0, count_done, tallies));
  close_group(members, 3);
}

/* By every algorithm, and whom a member waited for. */
static void check_means(uint32_t size) {
  enum { COUNT = 5000, MOST = 4 };
  static float numbers[MOST][COUNT];
  member members[MEMBERS];
  tally tallies[MEMBERS] = {0};
  rdt_collective_report reports[MOST];
  open_group(members, size, "means");
  for (int algorithm = 0; algorithm < RDT_ALGORITHM_COUNT; algorithm++) {
    for (uint32_t i = 0; i < size; i++) {
      for (uint32_t j = 0; j < COUNT; j++) numbers[i][j] = (float)(j + i);
      rdt_collective call = {.struct_size = sizeof(call),
                             .kind = RDT_ALL_REDUCE,
                             .dtype = RDT_FLOAT32,
                             .op = RDT_MEAN,
                             .algorithm = (rdt_algorithm)algorithm,
                             .input = numbers[i],
                             .output = numbers[i],
                             .count = COUNT,
                             .timeout_ms = PATIENCE_MS,
                             .report = &reports[i]};
      if (i == size - 1) usleep(1000);
      EXPECT_STATUS(RDT_IN_PROGRESS,
                    rdt_group_start(members[i].group, &call, count_done, &tallies[i]));
    }
    for (uint32_t i = 0; i < size; i++) {
      EXPECT(becomes(&tallies[i].done, algorithm + 1));
      EXPECT(atomic_load(&tallies[i].failed) == 0);
      for (uint32_t j = 0; j < COUNT; j++)
        EXPECT(numbers[i][j] == (float)j + (float)(size - 1) / 2);
      EXPECT(reports[i].last < size && (reports[i].last == i) == (reports[i].waited_ns == 0));
    }
    if (size == 2) EXPECT(reports[0].last == 1 && reports[0].waited_ns >= 1000000);
  }
  close_group(members, size);
}

static void test_means(void) {
  check_means(2);
  check_means(4);
}

/* Far more than there is credit for, short and long ones, in a different order at each member. */
static void check_many(member *members, uint32_t size, uint64_t longest) {
  static int32_t *numbers[MEMBERS][MANY];
  tally tallies[MEMBERS] = {0};
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t k = 0; k < MANY; k++) {
      uint32_t which = order_of(i, k);
      uint64_t count = which % 50 ? 1 + which * 4 : longest;
      int32_t *mine = numbers[i][which] = malloc(count * sizeof(int32_t));
      for (uint64_t j = 0; j < count; j++) mine[j] = (int32_t)(j + which + i);
      rdt_collective call = sum_call(which + 1, mine, count);
      EXPECT_STATUS(RDT_IN_PROGRESS,
                    rdt_group_start(members[i].group, &call, count_done, &tallies[i]));
    }
  for (uint32_t i = 0; i < size; i++) {
    EXPECT(becomes(&tallies[i].done, MANY));
    EXPECT(atomic_load(&tallies[i].failed) == 0);
    for (uint32_t which = 0; which < MANY; which++) {
      uint64_t count = which % 50 ? 1 + which * 4 : longest;
      for (uint64_t j = 0; j < count; j++)
        EXPECT(numbers[i][which][j] == (int32_t)(size * (j + which) + size * (size - 1) / 2));
      free(numbers[i][which]);
    }
  }
}

static void test_many(void) {
  member members[MEMBERS];
  open_group(members, 3, "many");
  check_many(members, 3, 100000);
  forbid_mapping(members, 3);
  check_many(members, 3, 100000);
  close_group(members, 3);
}

/* Threads of one member run operations of their own at the same time, between started ones. */
static void test_threads(void) {
  enum { THREADS = 6 };
  const uint64_t rounds = is_slow() ? 5 : 30;
  member members[MEMBERS];
  task tasks[3 * THREADS];
  static int32_t numbers[3 * THREADS][5000];
  open_group(members, 3, "threads");
  for (uint64_t round = 0; round < rounds; round++) {
    for (uint32_t i = 0; i < 3 * THREADS; i++) {
      uint64_t which = i / 3;
      for (uint64_t j = 0; j < 5000; j++) numbers[i][j] = (int32_t)(j + which);
      tasks[i].member = &members[i % 3];
      tasks[i].call = which == 0 ? barrier_call(round + 1)
                                 : sum_call(round * THREADS + which, numbers[i], 900 * which);
    }
    run_tasks(tasks, 3 * THREADS);
    for (uint32_t i = 0; i < 3 * THREADS; i++) {
      uint64_t which = i / 3;
      EXPECT_STATUS(RDT_OK, tasks[i].status);
      for (uint64_t j = 0; j < 900 * which; j++) EXPECT(numbers[i][j] == 3 * (int32_t)(j + which));
    }
  }
  close_group(members, 3);
}

/* Calls without tags are matched by their number; groups of the same devices share channels. */
static void test_two_groups(void) {
  member members[MEMBERS], others[MEMBERS];
  open_group(members, 3, "one");
  for (uint32_t i = 0; i < 3; i++) others[i] = members[(i + 1) % 3];
  prepare(others, 3, "other");
  create_groups(others, 3);
  for (uint32_t i = 0; i < 3; i++) EXPECT_STATUS(RDT_OK, others[i].status);
  trial t = {RDT_ALL_REDUCE, RDT_ALGORITHM_AUTO, 1000, false, PLAIN};
  for (int round = 0; round < 20; round++) {
    check_trial(members, 3, &t);
    check_trial(others, 3, &t);
  }
  rdt_stats stats;
  EXPECT_STATUS(RDT_OK, rdt_device_stats(members[0].device, &stats));
  EXPECT(stats.channels_opened == 2);
  for (uint32_t i = 0; i < 3; i++) rdt_group_close(others[i].group);
  check_trial(members, 3, &t);
  close_group(members, 3);
}

int main(void) {
  test_kinds();
  test_copies();
  if (!is_slow()) test_pushed();
  if (!is_slow()) test_small_rings();
  test_many();
  test_try();
  test_means();
  test_threads();
  test_two_groups();
  return 0;
}
