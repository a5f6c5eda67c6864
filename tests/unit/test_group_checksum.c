/* SPDX-License-Identifier: Apache-2.0
 *
 * CHECKSUM=crc32c: bytes of collective operations that change on their way fail the operation, at every
 * member, with who sent them to whom; by whichever way they went.
 */
#include "group_members.h"

#define SIZE 3
#define LARGE 200000 /* elements, of which memory is lent or pushed */

static int32_t *numbers[SIZE];

static void fill(void) {
  for (int32_t i = 0; i < SIZE; i++)
    for (int32_t j = 0; j < LARGE; j++) numbers[i][j] = j + i;
}

/* A sum over all members; true if it succeeded, and then it is right. */
static bool sum_is_right(member *members, uint64_t tag, uint64_t count, task *tasks) {
  bool good = true;
  fill();
  for (uint32_t i = 0; i < SIZE; i++)
    tasks[i] = (task){.member = &members[i], .call = sum_call(tag, numbers[i], count)};
  run_tasks(tasks, SIZE);
  for (uint32_t i = 0; i < SIZE; i++) {
    good &= tasks[i].status == RDT_OK;
    for (uint64_t j = 0; j < count && tasks[i].status == RDT_OK; j++)
      EXPECT(numbers[i][j] == 3 * (int32_t)j + 3);
  }
  return good;
}

static void expect_right(member *members, uint64_t tag, uint64_t count, task *tasks) {
  bool good = sum_is_right(members, tag, count, tasks);
  for (uint32_t i = 0; i < SIZE && !good; i++)
    fprintf(stderr, "operation %llu, rank %u: %s\n", (unsigned long long)tag, i,
            tasks[i].status == RDT_OK ? "done" : tasks[i].error);
  EXPECT(good);
}

/* At some of them: who had all before another one found it is done, and right. */
static void expect_corrupted(const task *tasks, uint32_t count) {
  bool told = false;
  for (uint32_t i = 0; i < count; i++) {
    if (tasks[i].status == RDT_OK) continue;
    if (tasks[i].status != RDT_ERR_CORRUPTED) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
    EXPECT_STATUS(RDT_ERR_CORRUPTED, tasks[i].status);
    EXPECT(strstr(tasks[i].error, "group checked"));
    EXPECT(strstr(tasks[i].error, "arrived corrupted: message "));
    told |= strstr(tasks[i].error, "when received") && !strstr(tasks[i].error, "failed: ");
  }
  EXPECT(told); /* one found it, the others learned it */
}

/* Operations of `count` elements with one fault in them; afterwards the group goes on. */
static void test_on_the_way(uint64_t count, bool maps, const char *fault) {
  member members[SIZE];
  task tasks[SIZE];
  uint64_t tag = 1;
  rdt_config_set("FAULTS", "post=#1000000000"); /* for the present nothing happens */
  open_group(members, SIZE, "checked");
  if (!maps) forbid_mapping(members, SIZE);
  expect_right(members, tag++, count, tasks);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", fault));
  while (tag < 100 && sum_is_right(members, tag, count, tasks)) tag++;
  expect_corrupted(tasks, SIZE);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  expect_right(members, ++tag, count, tasks);
  /* Who does not want checksums sends none, and meets others all the same. */
  members[1].group->checks = false;
  expect_right(members, ++tag, count, tasks);
  close_group(members, SIZE);
}

static void note(void *context, rdt_status status) {
  atomic_store((atomic_int *)context, status < 0 ? -status : 1);
}

static unsigned early(rdt_group *group) {
  pthread_mutex_lock(&group->lock);
  unsigned count = group->early;
  pthread_mutex_unlock(&group->lock);
  return count;
}

/* Wherever the first message lies. No sanitizer can know that its sender is done with it. */
__attribute__((no_sanitize("thread"), noinline)) static void turn_over(int32_t *lent) {
  for (int i = 0; i < LARGE; i += 1000) lent[i] ^= 1 << 20;
}

/* Member 0 lends what lies in a region, or anywhere, and bits of it turn over before member 1 reads. */
static void test_lent(rdt_collective_kind kind, bool registered) {
  member members[2];
  rdt_region *region;
  rdt_region_info info;
  atomic_int ended = 0;
  fill();
  open_group(members, 2, "checked");
  bool lends = members[0].group->links[1].maps && (registered || members[0].group->reads);
  if (!lends) {
    close_group(members, 2);
    return;
  }
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(members[0].device, LARGE * sizeof(int32_t),
                                         RDT_ACCESS_READ | RDT_ACCESS_WRITE, "", &region));
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(region, &info));
  int32_t *lent = registered ? info.address : numbers[0];
  memcpy(info.address, numbers[0], LARGE * sizeof(int32_t));
  rdt_collective call = sum_call(1, lent, LARGE);
  call.kind = kind;
  call.algorithm = kind == RDT_ALL_REDUCE ? RDT_ALGORITHM_DIRECT : RDT_ALGORITHM_AUTO;
  call.output = kind == RDT_ALL_REDUCE ? numbers[2] : lent;
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(members[0].group, &call, note, &ended));
  UNTIL(early(members[1].group) > 0);
  turn_over(lent);
  task receiver = {.member = &members[1], .call = call};
  receiver.call.input = receiver.call.output = numbers[1];
  run_tasks(&receiver, 1);
  expect_corrupted(&receiver, 1);
  EXPECT(strstr(receiver.error, "what member 0 sent to member 1 "));
  EXPECT(becomes(&ended, -RDT_ERR_CORRUPTED));
  rdt_region_close(region);
  close_group(members, 2);
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  EXPECT_STATUS(RDT_OK, rdt_config_set("CHECKSUM", "crc32c"));
  for (int i = 0; i < SIZE; i++) numbers[i] = calloc(LARGE, sizeof(int32_t));
  test_on_the_way(7, true, "corrupt_notify=#10");
  test_on_the_way(3000, true, "corrupt_notify=0.05");
  test_on_the_way(LARGE, false, "seed=3,corrupt_write=0.3");
  for (int registered = 0; registered < 2; registered++) {
    test_lent(RDT_BROADCAST, registered);
    test_lent(RDT_ALL_REDUCE, registered);
  }
  for (int i = 0; i < SIZE; i++) free(numbers[i]);
  return 0;
}
