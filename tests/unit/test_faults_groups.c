/* SPDX-License-Identifier: Apache-2.0
 *
 * Collective operations while faults are injected (setting FAULTS): what slows them down changes no result, and
 * what ends them ends them at every member, in time. Along trees too, which are replaced meanwhile.
 */
#include "group_trees.h"

#define SIZE 3
#define LARGE 200000 /* elements, of which memory is lent or pushed */
#define TIMEOUT_MS 4000
#define ROUND 10 /* operations along the same trees */

static const uint64_t counts[] = {7, 3000, LARGE};

/* Sums over all members; how each ended is left in `tasks`. */
static void run_sums(member *members, rdt_algorithm algorithm, uint64_t tag, uint64_t count,
                     int32_t **numbers, task *tasks) {
  for (uint32_t i = 0; i < SIZE; i++) {
    for (uint64_t j = 0; j < count; j++) numbers[i][j] = (int32_t)(j + i + tag);
    tasks[i] = (task){.member = &members[i], .call = sum_call(tag, numbers[i], count)};
    tasks[i].call.algorithm = algorithm;
    tasks[i].call.timeout_ms = TIMEOUT_MS;
  }
  run_tasks(tasks, SIZE);
}

static void check_reason(uint32_t rank, rdt_status status, const char *error) {
  const bool known = status == RDT_ERR_CONNECTION_LOST || status == RDT_ERR_DEADLINE ||
                     status == RDT_ERR_LIMIT || status == RDT_ERR_CANCELLED;
  if (!known) fprintf(stderr, "rank %u: %s: %s\n", rank, rdt_status_name(status), error);
  EXPECT(known && error[0] != '\0');
}

/* Members whose operation succeeded have the right result; the others a reason that is known. */
static uint32_t check(const task *tasks, uint64_t tag, uint64_t count, int32_t **numbers) {
  uint32_t failed = 0;
  for (uint32_t i = 0; i < SIZE; i++) {
    rdt_status status = tasks[i].status;
    if (status != RDT_OK) {
      check_reason(i, status, tasks[i].error);
      failed++;
      continue;
    }
    for (uint64_t j = 0; j < count; j++) {
      int64_t sum = 0;
      for (uint64_t rank = 0; rank < SIZE; rank++) sum += (int32_t)(j + rank + tag);
      EXPECT(numbers[i][j] == (int32_t)sum);
    }
  }
  return failed;
}

/* The number of members at which that failed. */
static uint32_t replace_trees(member *members, unsigned seed) {
  forest grown;
  uint32_t failed = 0;
  forest_grow(&grown, SIZE, seed);
  use_trees(members, SIZE, &grown, TIMEOUT_MS);
  for (uint32_t i = 0; i < SIZE; i++) {
    if (members[i].status == RDT_OK) continue;
    check_reason(i, members[i].status, members[i].error);
    failed++;
  }
  return failed;
}

/* Runs operations until one fails, or `turns` of them. The number of members at which the last failed. */
static uint32_t run_until_failure(const char *wanted, rdt_algorithm algorithm, bool maps,
                                  uint64_t turns) {
  member members[SIZE];
  task tasks[SIZE];
  int32_t *numbers[SIZE];
  uint32_t failed = 0;
  rdt_config_set("FAULTS", "post=#1000000000"); /* for the present nothing happens */
  open_group(members, SIZE, "faults");
  if (!maps) forbid_mapping(members, SIZE);
  for (int i = 0; i < SIZE; i++) numbers[i] = calloc(LARGE, sizeof(int32_t));
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", wanted));
  for (uint64_t tag = 1; tag <= turns && !failed; tag++) {
    uint64_t count = counts[tag % 3];
    if (algorithm == RDT_ALGORITHM_TREES && tag % ROUND == 1)
      failed = replace_trees(members, (unsigned)tag);
    if (failed) break;
    run_sums(members, algorithm, tag, count, numbers, tasks);
    failed = check(tasks, tag, count, numbers);
  }
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  close_group(members, SIZE);
  for (int i = 0; i < SIZE; i++) free(numbers[i]);
  return failed;
}

static void test_faults(rdt_algorithm algorithm) {
  for (int maps = 0; maps < 2; maps++) {
    EXPECT(run_until_failure("seed=1,delay=0.2:1ms,credit=0.05:1ms,stall=0.02:1ms", algorithm, maps,
                             30) == 0);
    EXPECT(run_until_failure("seed=2,break=#40", algorithm, maps, 300) > 0);
    EXPECT(run_until_failure("seed=3,credit=0.02:1ms,break=#300", algorithm, maps, 300) > 0);
  }
  /* Only where memory is not mapped are there transfers. */
  EXPECT(run_until_failure("seed=4,fail=#5", algorithm, false, 300) > 0);
  EXPECT(run_until_failure("seed=5,drop=#7", algorithm, false, 300) > 0);
  EXPECT(run_until_failure("seed=6,post=#9", algorithm, false, 300) > 0);
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  rdt_config_set("DEADLINE_MS", "1500");
  test_faults(RDT_ALGORITHM_AUTO);
  test_faults(RDT_ALGORITHM_TREES);
  return 0;
}
