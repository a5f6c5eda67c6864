/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that others have started and this member never does: what is kept of them is dropped in time,
 * and what may still be wanted is not.
 */
#include "base/clock.h"
#include "group_members.h"

enum { WANTED = 5, MANY = 1500 };

static unsigned early(member *m) {
  pthread_mutex_lock(&m->group->lock);
  unsigned count = m->group->early;
  pthread_mutex_unlock(&m->group->lock);
  return count;
}

static void note(void *context, rdt_status status) {
  (void)status;
  atomic_fetch_add((atomic_int *)context, 1);
}

static void start(member *m, uint64_t tag, int timeout_ms, atomic_int *over) {
  rdt_collective call = barrier_call(tag);
  call.timeout_ms = timeout_ms;
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(m->group, &call, note, over));
}

/* Starts barriers that fail, as the other member does not come. */
static void fail_many(member *m, uint64_t first, uint64_t count) {
  atomic_int over = 0;
  for (uint64_t i = 0; i < count; i++) start(m, first + i, 1, &over);
  EXPECT(becomes(&over, (int)count));
}

/* It is when messages come that somebody looks: a few, as each is of an operation that is early itself. Until
 * then nothing was to end for its deadline. */
static void expect_dropped(member *keeper, member *other, unsigned most) {
  rdt_deadline deadline = rdt_deadline_after(60000);
  rdt_config_set("DEADLINE_MS", "500");
  for (uint64_t tag = 100000; early(keeper) > most && rdt_deadline_left(deadline) > 0; tag++) {
    fail_many(other, tag, 1);
    usleep(10000);
  }
  rdt_config_set("DEADLINE_MS", "10000");
  EXPECT(early(keeper) <= most);
}

static void test_failed_elsewhere(void) {
  member members[2];
  atomic_int over = 0;
  open_group(members, 2, "failed");
  for (uint64_t tag = 1; tag <= WANTED; tag++) start(&members[1], tag, PATIENCE_MS, &over);
  UNTIL(early(&members[0]) >= WANTED);
  fail_many(&members[1], 1000, MANY);
  UNTIL(early(&members[0]) >= MANY);
  expect_dropped(&members[0], &members[1], MANY / 2);
  for (uint64_t tag = 1; tag <= WANTED; tag++) { /* their sender still waits: they were kept */
    rdt_collective call = barrier_call(tag);
    EXPECT_STATUS(RDT_OK, rdt_group_run(members[0].group, &call));
  }
  EXPECT(becomes(&over, WANTED));
  close_group(members, 2);
}

/* Whoever misses it ends the group, and what it had sent is dropped everywhere. */
static void test_sender_is_gone(void) {
  member members[3];
  atomic_int over = 0;
  open_group(members, 3, "gone");
  for (uint64_t tag = 0; tag < MANY; tag++) start(&members[1], 1000 + tag, PATIENCE_MS, &over);
  UNTIL(early(&members[2]) >= MANY); /* to whom it speaks first */
  for (uint32_t i = 0; i < 3; i++)
    if (i != 1) rdt_channel_close(members[1].group->links[i].channel);
  EXPECT(becomes(&over, MANY));
  rdt_collective call = barrier_call(1);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, rdt_group_run(members[0].group, &call));
  UNTIL(early(&members[2]) == 0);
  close_group(members, 3);
}

/* Who wanted to join a group that this process never makes is forgotten when it goes, and its channel with it. */
static void test_request_is_gone(void) {
  member members[2];
  open_devices(members, 2);
  prepare(members, 2, "never made");
  members[1].options.timeout_ms = 300;
  create_member(&members[1]);
  EXPECT_STATUS(RDT_ERR_DEADLINE, members[1].status);
  UNTIL(join_requests_of(&members[0]) == 1);
  rdt_device_close(members[1].device);
  UNTIL(join_requests_of(&members[0]) == 0);
  rdt_device_close(members[0].device);
}

int main(void) {
  test_request_is_gone();
  test_failed_elsewhere();
  test_sender_is_gone();
  return 0;
}
