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
    expect_both_views(tasks, 2, "[5]", which == 0 ? "xxx at member" : "xxx");
    free_tasks(tasks, 2);
  }
  details[0][298] = details[1][298] = 'b';
  expect_sum(members, 2, 9, details[0]);
  close_group(members, 2);
}

/* Of long lists, the report has the first line that differs, also where one is the beginning of the other. */
static void test_lists(void) {
  enum { LINES = 300, ROOM = 32 * LINES };
  static char details[2][ROOM];
  member members[2];
  task tasks[2];
  open_group(members, 2, "lists");
  for (uint64_t which = 0; which < 3; which++) {
    for (uint32_t i = 0; i < 2; i++) {
      char *at = details[i] + sprintf(details[i], "the variables");
      int lines = which == 1 && i == 1 ? 250 : LINES;
      for (int k = 1; k <= lines; k++)
        at += sprintf(at, "\n%s %d", which == 0 && i == 1 && k >= 270 ? "bias" : "kernel\t", k);
      tasks[i] =
          new_task(&members[i], RDT_ALL_REDUCE, 1 + which, which == 2 ? 5 + i : 5, details[i]);
      tasks[i].call.op = RDT_SUM;
    }
    run_tasks(tasks, 2);
    if (which == 0) expect_both_views(tasks, 2, "the variables: number 270 is ", "bias 270");
    if (which == 0) expect_both_views(tasks, 2, "kernel? 270", "all_reduce of int32 [5] (sum)");
    if (which == 1) expect_both_views(tasks, 2, "number 251 is ", "nothing");
    if (which == 2) expect_both_views(tasks, 2, "int32 [5]", "int32 [6]");
    free_tasks(tasks, 2);
  }
  expect_sum(members, 2, 9, details[0]);
  close_group(members, 2);
}

static bool regrets(const member *m) {
  pthread_mutex_lock(&m->group->lock);
  bool any = m->group->regrets;
  pthread_mutex_unlock(&m->group->lock);
  return any;
}

/* Where it was complete before another member noticed, the next operation fails, once, and then all goes on. Nobody
 * who has had the error gets it again. */
static void test_complete(rdt_collective_kind other) {
  member members[3];
  task tasks[3];
  open_group(members, 3, "complete");
  for (uint32_t i = 0; i < 3; i++)
    tasks[i] = new_task(&members[i], i == 0 ? RDT_BROADCAST : other, 1, i == 0 ? 3 : 2, NULL);
  run_task(&tasks[0]);
  EXPECT_STATUS(RDT_OK, tasks[0].status); /* the root of a broadcast waits for nobody */
  run_tasks(tasks + 1, 2);
  expect_both_views(tasks + 1, 2, "broadcast of int32 [3] from member 0", "of int32 [2]");
  free_tasks(tasks, 3);
  UNTIL(regrets(&members[0]));
  for (uint64_t tag = 2; tag < 4; tag++) {
    for (uint32_t i = 0; i < 3; i++) tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, tag, 5, NULL);
    run_tasks(tasks, 3);
    for (uint32_t i = 0; i < 3; i++) {
      EXPECT_STATUS(tag == 2 ? RDT_ERR_PROTOCOL : RDT_OK, tasks[i].status);
      if (tag == 2) EXPECT(mentions(tasks[i].error, "earlier operation, which was complete here"));
    }
    free_tasks(tasks, 3);
  }
  expect_sum(members, 3, 4, NULL);
  close_group(members, 3);
}

/* Each is complete at once, and nobody fails; but elements come that nobody waits for. */
static void test_all_roots(void) {
  member members[2];
  task tasks[2];
  open_group(members, 2, "all roots");
  for (uint32_t i = 0; i < 2; i++) {
    tasks[i] = new_task(&members[i], RDT_BROADCAST, 0, 3, NULL);
    tasks[i].call.tag[1] = 0; /* that of the next number: callers may use tags of their own again */
    tasks[i].call.root = i;
  }
  run_task(&tasks[0]);
  EXPECT_STATUS(RDT_OK, tasks[0].status);
  run_task(&tasks[1]);
  /* The second one learns it at once, if the message of the first one has come. */
  EXPECT(tasks[1].status == RDT_OK || tasks[1].status == RDT_ERR_PROTOCOL);
  for (uint32_t i = 0; i < (tasks[1].status == RDT_OK ? 2u : 1u); i++) UNTIL(regrets(&members[i]));
  free_tasks(tasks, 2);
  for (uint32_t i = 0; i < 2; i++) tasks[i] = new_task(&members[i], RDT_ALL_REDUCE, 2, 5, NULL);
  run_tasks(tasks, 2);
  for (uint32_t i = 0; i < 2; i++) {
    EXPECT_STATUS(RDT_ERR_PROTOCOL, tasks[i].status);
    EXPECT(mentions(tasks[i].error, "broadcast of int32 [3] from member"));
  }
  free_tasks(tasks, 2);
  expect_sum(members, 2, 3, NULL);
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
  expect_both_views(tasks, 2, "from member 0", "from member 1");
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
  test_lists();
  test_complete(RDT_BROADCAST);
  test_complete(RDT_ALL_GATHER);
  test_all_roots();
  for (uint32_t odd = 0; odd < 3; odd++)
    for (uint32_t k = 1; k < 3; k++) test_late(odd, (odd + k) % 3);
  test_two_roots();
  test_abort();
  test_wrong_aborts();
  return 0;
}
