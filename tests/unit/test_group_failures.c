/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong in groups: at every member an error in time, and the group goes on where it can.
 */
#include <signal.h>
#include <sys/wait.h>

#include "group_members.h"

#define LONG 3000000 /* elements: such an operation takes a while, and lends memory */

static int32_t *numbers_new(uint64_t count) { return calloc(count, sizeof(int32_t)); }

/* ---- operations ------------------------------------------------------------------------------------ */

static void test_wrong_calls(void) {
  member m;
  int32_t numbers[8] = {0};
  open_group(&m, 1, "calls");
  const uint64_t five = 5;
  rdt_collective good = sum_call(1, numbers, 4), bad;
#define REFUSES(change) \
  bad = good;           \
  change;               \
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_run(m.group, &bad))
  REFUSES(bad.kind = RDT_RECEIVE + 1);
  REFUSES(bad.dtype = 13);
  REFUSES(bad.op = 0);
  REFUSES(bad.algorithm = RDT_ALGORITHM_COUNT);
  REFUSES(bad.input = NULL);
  REFUSES(bad.output = numbers + 1);
  REFUSES(bad.count = UINT64_MAX);
  REFUSES((bad.kind = RDT_BROADCAST, bad.root = 1));
  REFUSES((bad.kind = RDT_REDUCE, bad.root = 1));
  REFUSES((bad.kind = RDT_SEND, bad.root = 0));
  REFUSES(bad.counts = &five);
  REFUSES((bad.kind = RDT_ALL_GATHER, bad.counts = &five));
  REFUSES((bad.kind = RDT_ALL_TO_ALL, bad.counts = &five));
  REFUSES((bad.kind = RDT_ALL_TO_ALL, bad.counts = bad.receive_counts = &five)); /* in place */
  REFUSES(bad.op = RDT_SCALED_SUM);
  REFUSES((bad.op = RDT_XOR, bad.dtype = RDT_FLOAT32));
  REFUSES(bad.struct_size = 8);
#undef REFUSES
  EXPECT_STATUS(RDT_OK, rdt_group_run(m.group, &good));
  close_group(&m, 1);
}

/* One member calls something else: both learn what, and go on. */
static void test_disagreement(void) {
  member members[2];
  int32_t a[200] = {0}, b[200] = {0};
  open_group(members, 2, "disagree");
  for (uint64_t which = 0; which < 4; which++) {
    task tasks[2] = {{.member = &members[0], .call = sum_call(which + 1, a, 100)},
                     {.member = &members[1], .call = sum_call(which + 1, b, 100)}};
    if (which == 0) tasks[1].call.count = 200;
    if (which == 1) tasks[1].call.dtype = RDT_FLOAT32;
    if (which == 2) tasks[1].call.op = RDT_MAX;
    if (which == 3)
      tasks[1].call.kind = RDT_ALL_GATHER, tasks[1].call.count = 50, tasks[1].call.input = b + 50;
    run_tasks(tasks, 2);
    for (int i = 0; i < 2; i++)
      EXPECT(tasks[i].status == RDT_ERR_PROTOCOL && mentions(tasks[i].error, "disagree"));
  }
  check_sum(members, 2, 9);
  close_group(members, 2);
}

/* One member does not call at all; both get their buffers back, also what was lent. */
static void test_deadline(bool maps) {
  member members[3];
  int32_t *numbers[3];
  open_group(members, 3, "deadline");
  if (!maps) forbid_mapping(members, 3);
  task tasks[3];
  for (int i = 0; i < 3; i++) {
    numbers[i] = numbers_new(LONG);
    tasks[i] = (task){.member = &members[i], .call = sum_call(1, numbers[i], LONG)};
  }
  tasks[0].call.timeout_ms = 300;
  run_tasks(tasks, 2);
  EXPECT(tasks[0].status == RDT_ERR_DEADLINE && mentions(tasks[0].error, "member"));
  EXPECT(tasks[1].status == RDT_ERR_DEADLINE && mentions(tasks[1].error, "member 0 failed"));
  for (int i = 0; i < 2; i++) memset(numbers[i], 1, LONG * sizeof(int32_t));
  /* The one that comes too late learns it at once. */
  run_tasks(tasks + 2, 1);
  EXPECT(tasks[2].status == RDT_ERR_DEADLINE);
  check_sum(members, 3, 2);
  close_group(members, 3);
  for (int i = 0; i < 3; i++) free(numbers[i]);
}

typedef struct {
  atomic_int done;
  _Atomic rdt_status status;
} outcome;

static void note_outcome(void *context, rdt_status status) {
  outcome *o = context;
  atomic_store(&o->status, status);
  atomic_fetch_add(&o->done, 1);
}

static void test_started_deadline(void) {
  member members[2];
  int32_t small[10] = {0}, *large = numbers_new(LONG);
  open_group(members, 2, "started deadline");
  outcome outcomes[2] = {0};
  rdt_collective calls[2] = {sum_call(1, small, 10), sum_call(2, large, LONG)};
  for (int i = 0; i < 2; i++) {
    calls[i].timeout_ms = 200;
    EXPECT_STATUS(RDT_IN_PROGRESS,
                  rdt_group_start(members[0].group, &calls[i], note_outcome, &outcomes[i]));
  }
  for (int i = 0; i < 2; i++) {
    EXPECT(becomes(&outcomes[i].done, 1));
    EXPECT(atomic_load(&outcomes[i].status) == RDT_ERR_DEADLINE);
  }
  check_sum(members, 2, 3);
  close_group(members, 2);
  free(large);
}

static void test_cancel(void) {
  member members[3];
  int32_t *numbers[3];
  outcome outcomes[3] = {0};
  open_group(members, 3, "cancel");
  for (int i = 0; i < 3; i++) numbers[i] = numbers_new(LONG);
  for (int i = 0; i < 2; i++) { /* while two of three are in it */
    rdt_collective call = sum_call(1, numbers[i], LONG);
    EXPECT_STATUS(RDT_IN_PROGRESS,
                  rdt_group_start(members[i].group, &call, note_outcome, &outcomes[i]));
  }
  const uint64_t tag[2] = {1, 2}, later[2] = {2, 2};
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[1].group, tag));
  for (int i = 0; i < 2; i++) {
    EXPECT(becomes(&outcomes[i].done, 1));
    EXPECT(atomic_load(&outcomes[i].status) == RDT_ERR_CANCELLED);
  }
  task last = {.member = &members[2], .call = sum_call(1, numbers[2], LONG)};
  run_tasks(&last, 1);
  EXPECT_STATUS(RDT_ERR_CANCELLED, last.status);
  /* Before anybody has started it. */
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[2].group, later));
  task tasks[3];
  for (int i = 0; i < 3; i++)
    tasks[i] = (task){.member = &members[i], .call = sum_call(2, numbers[i], 1000)};
  run_tasks(tasks, 3);
  for (int i = 0; i < 3; i++) EXPECT_STATUS(RDT_ERR_CANCELLED, tasks[i].status);
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[0].group, tag)); /* long over */
  check_sum(members, 3, 3);
  close_group(members, 3);
  for (int i = 0; i < 3; i++) free(numbers[i]);
}

/* One of three cannot start its part, which the first knows before it starts, and the last while it waits. */
static void test_failed_before_it_started(void) {
  member members[3];
  int32_t *numbers[3];
  outcome waiting = {0};
  const uint64_t tag[2] = {1, 2}, after[2] = {3, 2};
  open_group(members, 3, "unstarted");
  for (int i = 0; i < 3; i++) numbers[i] = numbers_new(LONG);
  rdt_collective call = sum_call(1, numbers[2], LONG);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(members[2].group, &call, note_outcome, &waiting));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_fail(members[1].group, NULL, RDT_ERR_LIMIT, ""));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_fail(members[1].group, tag, RDT_OK, ""));
  EXPECT_STATUS(RDT_OK, rdt_group_fail(members[1].group, tag, RDT_ERR_NO_MEMORY, "the cause"));
  EXPECT(becomes(&waiting.done, 1));
  EXPECT(atomic_load(&waiting.status) == RDT_ERR_NO_MEMORY);
  task first = {.member = &members[0], .call = sum_call(1, numbers[0], LONG)};
  run_tasks(&first, 1);
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, first.status);
  EXPECT(strstr(first.error, "member 1 failed: the cause") != NULL);
  check_sum(members, 3, 2); /* the group goes on */
  EXPECT_STATUS(RDT_OK, rdt_group_abort(members[1].group, RDT_ERR_LIMIT, "the end"));
  EXPECT_STATUS(RDT_ERR_LIMIT, rdt_group_fail(members[1].group, after, RDT_ERR_LIMIT, ""));
  close_group(members, 3);
  for (int i = 0; i < 3; i++) free(numbers[i]);
}

/* ---- members that go ---------------------------------------------------------------------------------- */

static void *close_member(void *argument) {
  member *m = argument;
  rdt_group_close(m->group);
  m->group = NULL;
  return NULL;
}

static void test_closed_member(void) {
  member members[3];
  pthread_t thread;
  int32_t *numbers[2] = {numbers_new(LONG), numbers_new(LONG)};
  open_group(members, 3, "leaving");
  pthread_create(&thread, NULL, close_member, &members[2]);
  task tasks[2] = {{.member = &members[0], .call = sum_call(1, numbers[0], LONG)},
                   {.member = &members[1], .call = sum_call(1, numbers[1], LONG)}};
  run_tasks(tasks, 2);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++)
    EXPECT(tasks[i].status == RDT_ERR_CONNECTION_LOST && mentions(tasks[i].error, "member 2"));
  tasks[0].call = sum_call(2, numbers[0], 10); /* at once now */
  run_tasks(tasks, 1);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, tasks[0].status);
  close_group(members, 3);
  free(numbers[0]);
  free(numbers[1]);
}

static void *close_own_group(void *argument) {
  UNTIL(started_of(argument) > 0);
  return close_member(argument);
}

/* Closing cancels what runs, here and there; a new group of the same devices works. */
static void test_close_while_running(void) {
  member members[2];
  pthread_t thread;
  open_group(members, 2, "closing");
  int32_t *numbers = numbers_new(LONG);
  task tasks[1] = {{.member = &members[0], .call = sum_call(1, numbers, LONG)}};
  member closing = members[0];
  pthread_create(&thread, NULL, close_own_group, &closing);
  run_tasks(tasks, 1);
  pthread_join(thread, NULL);
  EXPECT_STATUS(RDT_ERR_CANCELLED, tasks[0].status);
  rdt_group_close(members[1].group);
  prepare(members, 2, "again");
  create_groups(members, 2);
  check_sum(members, 2, 1);
  close_group(members, 2);
  free(numbers);
}

/* Closes the second member's device while the first one's operation runs. */
static void *close_second_device(void *argument) {
  member *members = argument;
  UNTIL(started_of(&members[0]) > 0);
  rdt_device_close(members[1].device);
  return NULL;
}

static void test_closed_device(void) {
  member members[2];
  pthread_t thread;
  open_group(members, 2, "device");
  int32_t *numbers[2] = {numbers_new(LONG), numbers_new(LONG)};
  outcome started = {0};
  rdt_collective call = sum_call(2, numbers[1], LONG);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(members[1].group, &call, note_outcome, &started));
  task tasks[1] = {{.member = &members[0], .call = sum_call(1, numbers[0], LONG)}};
  pthread_create(&thread, NULL, close_second_device, members);
  run_tasks(tasks, 1); /* its peer's device goes */
  pthread_join(thread, NULL);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, tasks[0].status);
  EXPECT(atomic_load(&started.done) == 1);
  EXPECT_STATUS(RDT_ERR_CLOSED, atomic_load(&started.status));
  EXPECT_STATUS(RDT_ERR_CLOSED, rdt_group_run(members[1].group, &call));
  rdt_group_close(members[1].group); /* after its device */
  rdt_group_close(members[0].group);
  rdt_device_close(members[0].device);
  free(numbers[0]);
  free(numbers[1]);
}

/* A process that joins as rank 1, runs one operation, and is never heard of again. */
static int run_victim(int address_pipe) {
  member m;
  char address[RDT_ADDRESS_SIZE];
  if (read(address_pipe, address, sizeof(address)) != (ssize_t)sizeof(address)) return 1;
  open_devices(&m, 1);
  prepare(&m, 1, "victim");
  m.options.size = 2;
  m.options.rank = 1;
  m.options.root = address;
  create_member(&m);
  EXPECT_STATUS(RDT_OK, m.status);
  int32_t *numbers = numbers_new(LONG);
  rdt_collective call = sum_call(1, numbers, LONG);
  EXPECT_STATUS(RDT_OK, rdt_group_run(m.group, &call));
  for (;;) pause();
}

static void test_killed(int pipe_end, pid_t victim, int signal_number) {
  member m;
  char address[RDT_ADDRESS_SIZE] = "";
  open_devices(&m, 1);
  snprintf(address, sizeof(address), "%s", rdt_device_address(m.device));
  EXPECT(write(pipe_end, address, sizeof(address)) == (ssize_t)sizeof(address));
  prepare(&m, 1, "victim");
  m.options.size = 2;
  create_member(&m);
  EXPECT_STATUS(RDT_OK, m.status);
  int32_t *numbers = numbers_new(LONG);
  task t = {.member = &m, .call = sum_call(1, numbers, LONG)};
  run_tasks(&t, 1);
  EXPECT_STATUS(RDT_OK, t.status);
  outcome started = {0};
  rdt_collective call = sum_call(3, numbers, LONG);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(m.group, &call, note_outcome, &started));
  kill(victim, signal_number);
  t.call = sum_call(2, numbers + LONG / 2, LONG / 2);
  if (signal_number == SIGSTOP) t.call.timeout_ms = 300;
  run_tasks(&t, 1);
  rdt_status wanted = signal_number == SIGSTOP ? RDT_ERR_DEADLINE : RDT_ERR_CONNECTION_LOST;
  EXPECT_STATUS(wanted, t.status);
  rdt_group_close(m.group);
  EXPECT(atomic_load(&started.done) == 1 && atomic_load(&started.status) < 0);
  rdt_device_close(m.device);
  kill(victim, SIGKILL);
  EXPECT(waitpid(victim, NULL, 0) == victim);
  free(numbers);
}

/* ---- malformed messages -------------------------------------------------------------------------------- */

static void test_malformed(void) {
  member members[2];
  open_group(members, 2, "malformed");
  rdt_channel *channel = members[0].group->links[1].channel;
  rdt_group_message good = {.group = members[0].group->id, .tag = {1, 1}, .from = 0}, bad = good;
  rdt_op op = {.kind = RDT_OP_NOTIFY, .local = &bad, .size = sizeof(bad)};
  op.immediate = RDT_GROUP_EAGER;
  bad.group++; /* of a group that is closed: nothing happens */
  EXPECT_STATUS(RDT_OK, rdt_channel_post(channel, &op, 1, NULL, NULL));
  bad = good, bad.credit = UINT64_MAX / 2;
  EXPECT_STATUS(RDT_OK, rdt_channel_post(channel, &op, 1, NULL, NULL));
  check_sum(members, 2, 9);
  bad = good, bad.from = 7;
  EXPECT_STATUS(RDT_OK, rdt_channel_post(channel, &op, 1, NULL, NULL));
  task t = {.member = &members[1], .call = barrier_call(5)};
  run_tasks(&t, 1); /* the channel is lost, and nothing else */
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, t.status);
  close_group(members, 2);
}

/* A message that belongs to no step, or names memory that does not exist, fails the operation. */
static void test_nonsense(void) {
  member members[2];
  int32_t numbers[100] = {0};
  open_group(members, 2, "nonsense");
  rdt_channel *channel = members[0].group->links[1].channel;
  for (uint64_t which = 0; which < 3; which++) {
    rdt_group_message head = {
        .group = members[0].group->id,
        .tag = {which + 1, 2},
        .shape = {RDT_ALL_REDUCE, RDT_INT32, RDT_SUM, RDT_ALGORITHM_FLAT, 0, 100},
        .size = 400,
        .key = 12345};
    if (which == 0) head.number = 77;
    if (which == 1) head.size = 4000;
    rdt_op op = {
        .kind = RDT_OP_NOTIFY, .local = &head, .size = sizeof(head), .immediate = RDT_GROUP_LEND};
    EXPECT_STATUS(RDT_OK, rdt_channel_post(channel, &op, 1, NULL, NULL));
    task t = {.member = &members[1], .call = sum_call(which + 1, numbers, 100)};
    t.call.algorithm = RDT_ALGORITHM_FLAT;
    run_tasks(&t, 1);
    EXPECT(t.status == RDT_ERR_PROTOCOL || t.status == RDT_ERR_NO_REGION);
  }
  check_sum(members, 2, 9);
  close_group(members, 2);
}

int main(void) {
  int ends[2][2];
  pid_t victims[2];
  for (int i = 0; i < 2; i++) { /* before this process has threads */
    EXPECT(pipe(ends[i]) == 0);
    victims[i] = fork();
    if (victims[i] == 0) return run_victim(ends[i][0]);
  }
  rdt_config_set("DEADLINE_MS", "3000");
  test_killed(ends[0][1], victims[0], SIGKILL);
  test_killed(ends[1][1], victims[1], SIGSTOP);
  /* A member answers between two reductions, which take seconds with a sanitizer under emulation. */
  rdt_config_set("DEADLINE_MS", "30000");
  test_wrong_calls();
  test_disagreement();
  test_deadline(true);
  test_deadline(false);
  test_started_deadline();
  test_cancel();
  test_failed_before_it_started();
  test_closed_member();
  test_close_while_running();
  test_closed_device();
  test_malformed();
  test_nonsense();
  return 0;
}
