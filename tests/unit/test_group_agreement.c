/* SPDX-License-Identifier: Apache-2.0
 *
 * Members that call different things: each learns its own view and another one, whatever differs, whoever is late,
 * and no result comes out. And groups that a member aborts.
 */
#include <stdlib.h>

#include "group_members.h"

#define LONG 300000 /* elements that do not travel with their announcement */

static const char *const two_by_three = "[2,3]", *const three_by_two = "[3,2]";

static void expect_both_views(const task *tasks, uint32_t size, const char *one,
                              const char *other) {
  for (uint32_t i = 0; i < size; i++) {
    EXPECT_STATUS(RDT_ERR_PROTOCOL, tasks[i].status);
    EXPECT(mentions(tasks[i].error, "members disagree"));
    EXPECT(mentions(tasks[i].error, one) && mentions(tasks[i].error, other));
  }
}

static void *zeros(uint64_t count) { return calloc(count, sizeof(int32_t)); }

/* The buffers are the task's. */
static task new_task(member *m, rdt_collective_kind kind, uint64_t tag, uint64_t count,
                     const char *detail) {
  task t = {.member = m, .call = sum_call(tag, NULL, count)};
  t.call.kind = kind;
  t.call.detail = detail;
  t.call.input = zeros(count);
  t.call.output = zeros(count * MEMBERS);
  return t;
}

static void free_tasks(task *tasks, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    free((void *)tasks[i].call.input);
    free(tasks[i].call.output);
  }
}

/* The group is as good as before. */
static void expect_sum(member *members, uint32_t size, uint64_t tag, const char *detail) {
  task tasks[MEMBERS];
  for (uint32_t i = 0; i < size; i++) {
    tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, tag, 5, detail);
    for (int j = 0; j < 5; j++) ((int32_t *)tasks[i].call.input)[j] = j;
  }
  run_tasks(tasks, size);
  for (uint32_t i = 0; i < size; i++) {
    if (tasks[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
    EXPECT_STATUS(RDT_OK, tasks[i].status);
    for (int j = 0; j < 5; j++) EXPECT(((int32_t *)tasks[i].call.output)[j] == j * (int32_t)size);
  }
  free_tasks(tasks, size);
}

/* One of `size` gives another detail, in everything else all are alike. */
static void disagree(member *members, uint32_t size, uint32_t odd, rdt_collective_kind kind,
                     rdt_algorithm algorithm, uint64_t count) {
  static uint64_t tag = 1000;
  task tasks[MEMBERS];
  tag++;
  for (uint32_t i = 0; i < size; i++) {
    tasks[i] = new_task(&members[i], kind, tag, count, i == odd ? three_by_two : two_by_three);
    tasks[i].call.algorithm = algorithm;
  }
  run_tasks(tasks, size);
  expect_both_views(tasks, size, two_by_three, three_by_two);
  free_tasks(tasks, size);
}

static void test_details(uint32_t size, bool maps) {
  static const rdt_collective_kind kinds[] = {RDT_ALL_REDUCE, RDT_REDUCE_SCATTER, RDT_ALL_GATHER,
                                              RDT_ALL_TO_ALL};
  member members[MEMBERS];
  open_group(members, size, "details");
  if (!maps) forbid_mapping(members, size);
  for (uint32_t odd = 0; odd < size; odd++)
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
      disagree(members, size, odd, kinds[k], RDT_ALGORITHM_AUTO, 6 * size);
      disagree(members, size, odd, kinds[k], RDT_ALGORITHM_AUTO, LONG / size * size);
      disagree(members, size, odd, RDT_ALL_REDUCE, (rdt_algorithm)(1 + k), 6 * size);
    }
  expect_sum(members, size, 1, two_by_three);
  expect_sum(members, size, 2, NULL);
  close_group(members, size);
}

/* Whether all have no elements, or only one. */
static void test_no_elements(void) {
  static const rdt_collective_kind kinds[] = {RDT_ALL_REDUCE, RDT_REDUCE_SCATTER, RDT_ALL_GATHER,
                                              RDT_ALL_TO_ALL};
  member members[3];
  task tasks[3];
  open_group(members, 3, "empty");
  for (uint64_t tag = 1; tag <= 8; tag++) {
    for (uint32_t i = 0; i < 3; i++) {
      uint64_t count = tag % 2 && i == 1 ? 6 : 0;
      tasks[i] = new_task(&members[i], kinds[tag / 2 % 4], tag, count, i == 1 ? "[0,3]" : "[3,0]");
    }
    run_tasks(tasks, 3);
    expect_both_views(tasks, 3, "[0,3]", "[3,0]");
    for (uint32_t i = 0; i < 3; i++) {
      tasks[i].call.count = 0;
      tasks[i].call.detail = NULL;
      tasks[i].call.tag[0] = 100 + tag;
    }
    run_tasks(tasks, 3);
    for (uint32_t i = 0; i < 3; i++) EXPECT_STATUS(RDT_OK, tasks[i].status);
    free_tasks(tasks, 3);
  }
  close_group(members, 3);
}

/* Also what is beyond the words that are told counts; and none is not the same as any. */
static void test_long_details(void) {
  member members[2];
  task tasks[2];
  char details[2][300];
  open_group(members, 2, "long");
  for (uint64_t which = 0; which < 2; which++) {
    for (uint32_t i = 0; i < 2; i++) {
      memset(details[i], 'x', sizeof(details[i]));
      details[i][298] = which == 0 ? (char)('a' + i) : 'x';
      details[i][299] = '\0';
      const char *detail = which == 1 && i == 1 ? NULL : details[i];
      tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, 1 + which, 5, detail);
    }
    run_tasks(tasks, 2);
    expect_both_views(tasks, 2, "5 elements", which == 0 ? "xxx at member" : "xxx");
    free_tasks(tasks, 2);
  }
  details[0][298] = details[1][298] = 'b';
  expect_sum(members, 2, 9, details[0]);
  close_group(members, 2);
}

/* Who calls when all is over learns the same. */
static void test_late(uint32_t odd, uint32_t late) {
  member members[3];
  task tasks[3], early[2];
  open_group(members, 3, "late");
  for (uint32_t i = 0, n = 0; i < 3; i++) {
    tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, 1, 6, i == odd ? three_by_two : two_by_three);
    if (i != late) early[n++] = tasks[i];
  }
  run_tasks(early, 2);
  expect_both_views(early, 2, two_by_three, three_by_two);
  run_task(&tasks[late]);
  expect_both_views(&tasks[late], 1, two_by_three, three_by_two);
  free_tasks(tasks, 3);
  expect_sum(members, 3, 2, two_by_three);
  close_group(members, 3);
}

/* Each waits for the other one's elements: no message comes, but the deadline. */
static void test_two_roots(void) {
  member members[2];
  task tasks[2];
  open_group(members, 2, "roots");
  for (uint32_t i = 0; i < 2; i++) {
    tasks[i] = new_task(&members[i], RDT_BROADCAST, 1, 6, NULL);
    tasks[i].call.root = 1 - i;
    tasks[i].call.timeout_ms = 300;
  }
  run_tasks(tasks, 2);
  expect_both_views(tasks, 2, "root 0", "root 1");
  free_tasks(tasks, 2);
  expect_sum(members, 2, 2, NULL);
  close_group(members, 2);
}

/* ---- rdt_group_abort ----------------------------------------------------------------------------------- */

static rdt_status aborted(const member *m) {
  pthread_mutex_lock(&m->group->lock);
  rdt_status why = m->group->aborted;
  pthread_mutex_unlock(&m->group->lock);
  return why;
}

/* Rank 1 waits for the others; rank 0 aborts; rank 2 calls afterwards, and everybody calls something new. */
static void test_abort(void) {
  member members[3];
  pthread_t thread;
  task tasks[3];
  open_group(members, 3, "abort");
  expect_sum(members, 3, 1, NULL);
  for (uint32_t i = 0; i < 3; i++) tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, 2, LONG, NULL);
  pthread_create(&thread, NULL, run_task, &tasks[1]);
  UNTIL(started_of(&members[1]) > 0);
  EXPECT_STATUS(RDT_OK, rdt_group_abort(members[0].group, RDT_ERR_LIMIT, "the reason"));
  EXPECT_STATUS(RDT_OK, rdt_group_abort(members[0].group, RDT_ERR_ACCESS, "another one"));
  pthread_join(thread, NULL);
  UNTIL(aborted(&members[2]) != RDT_OK);
  rdt_algorithm unused;
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_group_choose(members[2].group, RDT_BARRIER, 0, &unused));
  EXPECT_STATUS(RDT_OK, rdt_group_abort(members[2].group, RDT_ERR_ACCESS, "too late"));
  run_task(&tasks[2]);
  run_task(&tasks[0]);
  for (uint64_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 3; i++) {
      EXPECT_STATUS(RDT_ERR_LIMIT, tasks[i].status);
      EXPECT(mentions(tasks[i].error, "member 0 aborted the group: the reason"));
      tasks[i].call.tag[0] = 3;
    }
    if (round == 0) run_tasks(tasks, 3);
  }
  free_tasks(tasks, 3);
  close_group(members, 3);
}

static void test_wrong_aborts(void) {
  member members[2];
  char reason[2000];
  task tasks[2];
  memset(reason, 'y', sizeof(reason) - 1);
  reason[sizeof(reason) - 1] = '\0';
  open_group(members, 2, "wrong");
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_abort(NULL, RDT_ERR_LIMIT, ""));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_abort(members[0].group, RDT_ERR_LIMIT, NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_abort(members[0].group, RDT_OK, ""));
  expect_sum(members, 2, 1, NULL);
  EXPECT_STATUS(RDT_OK, rdt_group_abort(members[0].group, RDT_ERR_LIMIT, reason));
  UNTIL(aborted(&members[1]) != RDT_OK);
  for (uint32_t i = 0; i < 2; i++) tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, 2, 6, NULL);
  run_tasks(tasks, 2);
  reason[511] = '\0';
  for (uint32_t i = 0; i < 2; i++)
    EXPECT(tasks[i].status == RDT_ERR_LIMIT && mentions(tasks[i].error, reason) &&
           strlen(tasks[i].error) < sizeof(tasks[i].error) - 1);
  free_tasks(tasks, 2);
  close_group(members, 2);
}

int main(void) {
  rdt_config_set("DEADLINE_MS", "20000");
  test_details(2, true);
  test_details(3, true);
  test_details(5, true);
  test_details(3, false);
  test_no_elements();
  test_long_details();
  for (uint32_t odd = 0; odd < 3; odd++)
    for (uint32_t k = 1; k < 3; k++) test_late(odd, (odd + k) % 3);
  test_two_roots();
  test_abort();
  test_wrong_aborts();
  return 0;
}
