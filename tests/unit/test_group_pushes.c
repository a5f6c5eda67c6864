/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that are written into a peer's memory: short ones do not wait for long ones, the writes of
 * a message stay in order, and an operation that fails writes no more.
 */
#include "group_members.h"

#define SIZE 2
#define LONG (2u * 1024 * 1024) /* elements */
#define SHORT (75u * 1024)      /* more than go eagerly */

/* Members that write in the shortest pieces, as over a slow link. */
static void open_slow(member *members) {
  rdt_config_set("FAULTS", "post=#1000000000"); /* for the present nothing happens */
  open_group(members, SIZE, "pushes");
  forbid_mapping(members, SIZE);
  for (int i = 0; i < SIZE; i++)
    members[i].group->costs.byte_ns[0] = members[i].group->costs.byte_ns[1] = 1e5;
}

static void note(void *context, rdt_status status) {
  atomic_store((atomic_int *)context, status < 0 ? -status : 1);
}

/* A broadcast from member 0, and how it ended at each member. */
typedef struct {
  rdt_region *regions[SIZE];
  int32_t *numbers[SIZE];
  uint64_t count;
  atomic_int ended[SIZE];
} broadcast;

static void start(member *members, broadcast *b, uint64_t tag, uint64_t count) {
  rdt_region_info info;
  b->count = count;
  for (int i = SIZE - 1; i >= 0; i--) {
    atomic_store(&b->ended[i], 0);
    EXPECT_STATUS(RDT_OK, rdt_region_alloc(members[i].device, count * sizeof(int32_t),
                                           RDT_ACCESS_READ | RDT_ACCESS_WRITE, "", &b->regions[i]));
    EXPECT_STATUS(RDT_OK, rdt_region_get_info(b->regions[i], &info));
    b->numbers[i] = info.address;
    for (uint64_t j = 0; j < count; j++) b->numbers[i][j] = i ? 0 : 1 + (int32_t)j;
    rdt_collective call = sum_call(tag, b->numbers[i], count);
    call.kind = RDT_BROADCAST;
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(members[i].group, &call, note, &b->ended[i]));
  }
}

static void finish(broadcast *b) {
  for (int i = 0; i < SIZE; i++) rdt_region_close(b->regions[i]);
}

static bool waits(rdt_group *group) {
  pthread_mutex_lock(&group->lock);
  const rdt_group_part *part = group->links[1].pushes;
  bool begun = part && part->push.at > 0;
  pthread_mutex_unlock(&group->lock);
  return begun;
}

static void test_short_ones_go_first(void) {
  member members[SIZE];
  broadcast large, small;
  open_slow(members);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", "delay=1:300ms"));
  start(members, &large, 1, LONG); /* takes 19 s */
  UNTIL(waits(members[0].group));
  start(members, &small, 2, SHORT); /* 1 s */
  UNTIL(atomic_load(&small.ended[0]) && atomic_load(&small.ended[1]));
  for (int i = 0; i < SIZE; i++) EXPECT_STATUS(0, atomic_load(&large.ended[i]));
  for (uint64_t j = 0; j < SHORT; j++) EXPECT(small.numbers[1][j] == 1 + (int32_t)j);
  finish(&small);
  const uint64_t tag[2] = {1, 2};
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[0].group, tag));
  UNTIL(atomic_load(&large.ended[0]) && atomic_load(&large.ended[1]));
  for (int i = 0; i < SIZE; i++) EXPECT(atomic_load(&large.ended[i]) == -RDT_ERR_CANCELLED);
  EXPECT(large.numbers[1][0] == 1 && large.numbers[1][LONG - 1] == 0);
  finish(&large);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  check_sum(members, SIZE, 3);
  close_group(members, SIZE);
}

/* Sums at once, in no region, of which each step has two writes under way. */
static void test_writes_stay_in_order(void) {
  enum { CALLS = 6 };
  member members[SIZE];
  task tasks[SIZE * CALLS];
  int32_t *numbers[SIZE * CALLS];
  open_slow(members);
  for (uint32_t k = 0; k < SIZE * CALLS; k++) {
    uint64_t call = k / SIZE, count = LONG / (call + 1);
    numbers[k] = malloc(count * sizeof(int32_t));
    for (uint64_t j = 0; j < count; j++) numbers[k][j] = (int32_t)(j + call);
    tasks[k] = (task){.member = &members[k % SIZE], .call = sum_call(10 + call, numbers[k], count)};
  }
  run_tasks(tasks, SIZE * CALLS);
  for (uint32_t k = 0; k < SIZE * CALLS; k++) {
    uint64_t call = k / SIZE;
    if (tasks[k].status != RDT_OK) fprintf(stderr, "%s\n", tasks[k].error);
    EXPECT_STATUS(RDT_OK, tasks[k].status);
    for (uint64_t j = 0; j < tasks[k].call.count; j++)
      EXPECT(numbers[k][j] == 2 * (int32_t)(j + call));
    free(numbers[k]);
  }
  close_group(members, SIZE);
}

/* Both ends learn that the other one is gone while writes wait. */
static void test_closed_channel(void) {
  member members[SIZE];
  broadcast large;
  open_slow(members);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", "delay=1:300ms"));
  start(members, &large, 1, LONG);
  UNTIL(waits(members[0].group));
  rdt_channel_close(members[0].group->links[1].channel);
  UNTIL(atomic_load(&large.ended[0]) && atomic_load(&large.ended[1]));
  for (int i = 0; i < SIZE; i++) EXPECT(atomic_load(&large.ended[i]) == -RDT_ERR_CONNECTION_LOST);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  finish(&large);
  close_group(members, SIZE);
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  test_short_ones_go_first();
  test_writes_stay_in_order();
  test_closed_channel();
  return 0;
}
