/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait for a started operation drive it, or leave it to those of the device, however the wait ends.
 */
#include <sys/wait.h>

#include "group_trials.h"

enum { LONGEST = 150000, ROUNDS = 200, WAITERS = 3 };
static const uint64_t counts[] = {1, 1000, LONGEST};
#define COUNTS (sizeof counts / sizeof *counts)
static int32_t numbers[2][LONGEST];

static rdt_transfer *start(member *m, uint64_t tag, int32_t *data, uint64_t count) {
  rdt_collective call = sum_call(tag, data, count);
  rdt_transfer *transfer = NULL;
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_submit(m->group, &call, &transfer));
  return transfer;
}

static void fill(uint64_t count, uint32_t round) {
  for (uint32_t i = 0; i < 2; i++)
    for (uint64_t j = 0; j < count; j++) numbers[i][j] = input_at(i, j + round);
}

static void expect_sums(uint64_t count, uint32_t round) {
  for (uint32_t i = 0; i < 2; i++)
    for (uint64_t j = 0; j < count; j++) EXPECT(numbers[i][j] == sum_at(2, j + round));
}

typedef struct {
  rdt_transfer *transfer;
  int timeout_ms;
  rdt_status status;
} waiter;

static void *wait_for_it(void *argument) {
  waiter *w = argument;
  w->status = rdt_transfer_wait(w->transfer, w->timeout_ms);
  return NULL;
}

/* Both members wait, in threads, and one of them sometimes gives up first and waits again. */
static void test_rounds(void) {
  member members[MEMBERS];
  open_group(members, 2, "rounds");
  for (size_t c = 0; c < COUNTS; c++)
    for (uint32_t round = 0; round < (is_slow() ? 20 : ROUNDS); round++) {
      const uint64_t tag = 1 + c * ROUNDS + round;
      fill(counts[c], round);
      rdt_transfer *first = start(&members[0], tag, numbers[0], counts[c]);
      if (round % 4 == 0) EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_transfer_wait(first, 1));
      waiter early = {first, PATIENCE_MS, RDT_IN_PROGRESS};
      pthread_t thread;
      pthread_create(&thread, NULL, wait_for_it, &early);
      rdt_transfer *second = start(&members[1], tag, numbers[1], counts[c]);
      EXPECT_STATUS(RDT_OK, rdt_transfer_wait(second, PATIENCE_MS));
      pthread_join(thread, NULL);
      EXPECT_STATUS(RDT_OK, early.status);
      expect_sums(counts[c], round);
      rdt_transfer_free(first);
      rdt_transfer_free(second);
    }
  close_group(members, 2);
}

/* Several threads wait for one operation, some of them only shortly, while others run. */
static void test_many_waiters(void) {
  member members[MEMBERS];
  open_group(members, 2, "many");
  for (uint32_t round = 0; round < 20; round++) {
    int32_t other[2] = {1, 1};
    fill(LONGEST, round);
    rdt_transfer *first = start(&members[0], 2 * round + 1, numbers[0], LONGEST);
    waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
      waiters[i] = (waiter){first, i == 0 ? 1 : PATIENCE_MS, RDT_IN_PROGRESS};
      pthread_create(&threads[i], NULL, wait_for_it, &waiters[i]);
    }
    rdt_transfer *others[2];
    for (uint32_t i = 0; i < 2; i++) others[i] = start(&members[i], 2 * round + 2, &other[i], 1);
    rdt_transfer *second = start(&members[1], 2 * round + 1, numbers[1], LONGEST);
    for (uint32_t i = 0; i < 2; i++) {
      EXPECT_STATUS(RDT_OK, rdt_transfer_wait(others[i], PATIENCE_MS));
      EXPECT(other[i] == 2);
      rdt_transfer_free(others[i]);
    }
    EXPECT_STATUS(RDT_OK, rdt_transfer_wait(second, PATIENCE_MS));
    for (int i = 0; i < WAITERS; i++) {
      pthread_join(threads[i], NULL);
      EXPECT(waiters[i].status == RDT_OK || (i == 0 && waiters[i].status == RDT_ERR_DEADLINE));
    }
    expect_sums(LONGEST, round);
    rdt_transfer_free(first);
    rdt_transfer_free(second);
  }
  close_group(members, 2);
}

typedef enum { CANCEL, ABORT, LEAVE, CLOSE, OWN_DEADLINE, ENDS } end_kind;

/* Waits as Python does, so that it drives the operation sooner or later. */
static void *wait_in_slices(void *argument) {
  waiter *w = argument;
  do w->status = rdt_transfer_wait(w->transfer, 20);
  while (rdt_transfer_wait(w->transfer, 0) == RDT_IN_PROGRESS);
  w->status = rdt_transfer_wait(w->transfer, 0);
  return NULL;
}

static rdt_status status_of(end_kind end) {
  return end == OWN_DEADLINE             ? RDT_ERR_DEADLINE
         : end == CANCEL || end == CLOSE ? RDT_ERR_CANCELLED
                                         : RDT_ERR_CONNECTION_LOST;
}

static bool is_adopted(rdt_group *group, const uint64_t tag[2]) {
  pthread_mutex_lock(&group->lock);
  const rdt_group_operation *operation = rdt_group_operation_find(group, tag, false);
  const bool adopted = operation && operation->driver == RDT_DRIVER_CALLER;
  pthread_mutex_unlock(&group->lock);
  return adopted;
}

/* However an operation ends that a thread drives, the thread learns of it. */
static void test_ends(void) {
  for (end_kind end = CANCEL; end < ENDS; end++) {
    member members[MEMBERS];
    open_group(members, 2, "ends");
    rdt_collective call = sum_call(1, numbers[0], LONGEST);
    if (end == OWN_DEADLINE) call.timeout_ms = 50;
    rdt_transfer *transfer;
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_submit(members[0].group, &call, &transfer));
    waiter waiting = {transfer, PATIENCE_MS, RDT_IN_PROGRESS};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_in_slices, &waiting);
    if (end != OWN_DEADLINE) UNTIL(is_adopted(members[0].group, call.tag));
    if (end == CANCEL) EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[0].group, call.tag));
    if (end == ABORT)
      EXPECT_STATUS(RDT_OK,
                    rdt_group_abort(members[1].group, RDT_ERR_CONNECTION_LOST, "no more of it"));
    if (end == LEAVE) rdt_group_close(members[1].group);
    if (end == CLOSE) rdt_group_close(members[0].group);
    pthread_join(thread, NULL);
    EXPECT_STATUS(status_of(end), waiting.status);
    rdt_transfer_free(transfer);
    if (end != CLOSE) rdt_group_close(members[0].group);
    if (end != LEAVE) rdt_group_close(members[1].group);
    for (uint32_t i = 0; i < 2; i++) rdt_device_close(members[i].device);
  }
}

/* What is complete at once needs no other thread, and no wait. */
static void test_alone(void) {
  member members[MEMBERS];
  open_group(members, 1, "alone");
  rdt_transfer *transfer = start(&members[0], 1, numbers[0], 10);
  EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfer, 0));
  rdt_transfer_free(transfer);
  close_group(members, 1);
}

/* A child of fork would take the messages that its parent waits for. */
static void test_forked(void) {
  member members[MEMBERS];
  int status = -1;
  open_group(members, 2, "forked");
  fill(1000, 0);
  rdt_transfer *first = start(&members[0], 1, numbers[0], 1000);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool refused = rdt_transfer_wait(first, 10000) == RDT_ERR_FORKED &&
                         rdt_transfer_wait(first, 0) == RDT_ERR_FORKED;
    rdt_transfer_free(first);
    _exit(refused ? 0 : 1);
  }
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  rdt_transfer *second = start(&members[1], 1, numbers[1], 1000);
  EXPECT_STATUS(RDT_OK, rdt_transfer_wait(first, PATIENCE_MS));
  EXPECT_STATUS(RDT_OK, rdt_transfer_wait(second, PATIENCE_MS));
  expect_sums(1000, 0);
  rdt_transfer_free(first);
  rdt_transfer_free(second);
  close_group(members, 2);
}

int main(void) {
  test_rounds();
  test_many_waiters();
  test_ends();
  test_alone();
  test_forked();
  return 0;
}
