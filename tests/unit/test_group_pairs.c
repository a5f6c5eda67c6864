/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and receives: what matches what, every way in which a message travels, and how they fail.
 */
#include "group_trials.h"

enum { LONGEST = 150000 };
static const uint64_t counts[] = {0, 1, 1000, 20000, LONGEST};
#define COUNTS (sizeof counts / sizeof *counts)

static rdt_collective pair_call(rdt_collective_kind kind, uint32_t peer, uint64_t tag,
                                int32_t *data, uint64_t count) {
  rdt_collective call = {.struct_size = sizeof call,
                         .kind = kind,
                         .dtype = RDT_INT32,
                         .root = peer,
                         .tag = {tag, 0},
                         .count = count,
                         .timeout_ms = PATIENCE_MS};
  if (kind == RDT_SEND)
    call.input = data;
  else
    call.output = data;
  return call;
}

typedef struct {
  atomic_int done;
  rdt_status status;
  char error[1024];
} result;

static void keep_result(void *context, rdt_status status) {
  result *r = context;
  r->status = status;
  snprintf(r->error, sizeof r->error, "%s", status == RDT_OK ? "" : rdt_last_error());
  atomic_store(&r->done, 1);
}

static void start(member *m, const rdt_collective *call, result *r) {
  atomic_store(&r->done, 0);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_group_start(m->group, call, keep_result, r));
}

static void expect_ok(result *r) {
  EXPECT(becomes(&r->done, 1));
  if (r->status != RDT_OK) fprintf(stderr, "%s\n", r->error);
  EXPECT_STATUS(RDT_OK, r->status);
}

static void fill(int32_t *data, uint64_t count, uint32_t seed) {
  for (uint64_t i = 0; i < count; i++) data[i] = input_at(seed, i);
}

static void expect_filled(const int32_t *data, uint64_t count, uint32_t seed) {
  for (uint64_t i = 0; i < count; i++) EXPECT(data[i] == input_at(seed, i));
}

/* Who begins makes no difference. */
static void check_ways(member *members, memory_kind memory) {
  buffer from = buffer_new(members[0].device, LONGEST, memory),
         to = buffer_new(members[1].device, LONGEST, memory);
  for (size_t c = 0; c < COUNTS; c++)
    for (uint32_t first = 0; first < 2; first++) {
      rdt_collective calls[2] = {pair_call(RDT_SEND, 1, 7, from.numbers, counts[c]),
                                 pair_call(RDT_RECEIVE, 0, 7, to.numbers, counts[c])};
      result results[2];
      fill(from.numbers, counts[c], (uint32_t)c);
      memset(to.numbers, 0, counts[c] * sizeof(int32_t));
      start(&members[first], &calls[first], &results[first]);
      start(&members[1 - first], &calls[1 - first], &results[1 - first]);
      for (int i = 0; i < 2; i++) expect_ok(&results[i]);
      expect_filled(to.numbers, counts[c], (uint32_t)c);
    }
  buffer_free(&from);
  buffer_free(&to);
}

static void test_ways(void) {
  member members[MEMBERS];
  open_group(members, 3, "ways");
  check_ways(members, REGISTERED);
  check_ways(members, PLAIN);
  for (uint32_t i = 0; i < 3; i++) members[i].group->reads = false;
  check_ways(members, PLAIN);
  forbid_mapping(members, 3);
  check_ways(members, REGISTERED);
  check_ways(members, PLAIN);
  close_group(members, 3);
}

/* What one member sends with one tag stays in order, whether it was posted before or comes first. */
static void test_order(void) {
  enum { MANY = 300, LONG = 9000 };
  static int32_t sent[MANY][LONG], received[MANY][LONG];
  static result sends[MANY], receives[MANY];
  member members[MEMBERS];
  for (int early = 0; early < 2; early++) {
    open_group(members, 3, "order");
    if (early) forbid_mapping(members, 3);
    for (uint32_t i = 0; i < MANY; i++) {
      const uint64_t count = i % 3 ? 10 : LONG;
      fill(sent[i], count, i);
      const rdt_collective send = pair_call(RDT_SEND, 2, i % 2, sent[i], count);
      const rdt_collective receive = pair_call(RDT_RECEIVE, 1, i % 2, received[i], count);
      if (early) start(&members[1], &send, &sends[i]);
      start(&members[2], &receive, &receives[i]);
      if (!early) start(&members[1], &send, &sends[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) {
      expect_ok(&sends[i]);
      expect_ok(&receives[i]);
      expect_filled(received[i], i % 3 ? 10 : LONG, i);
    }
    close_group(members, 3);
  }
}

static rdt_status receive_any(member *m, uint64_t tag, int32_t *data, uint64_t count,
                              uint32_t *sender) {
  rdt_collective_report report;
  rdt_collective call = pair_call(RDT_RECEIVE, RDT_ANY_MEMBER, tag, data, count);
  call.report = &report;
  const rdt_status status = rdt_group_run(m->group, &call);
  *sender = report.last;
  return status;
}

static unsigned unmatched_of(const member *m) {
  pthread_mutex_lock(&m->group->lock);
  unsigned count = 0;
  for (const rdt_group_operation *each = m->group->unmatched.head; each; each = each->next_pair)
    count++;
  pthread_mutex_unlock(&m->group->lock);
  return count;
}

static void test_any(void) {
  member members[MEMBERS];
  int32_t data[3][2000], got[2000];
  uint32_t sender;
  open_group(members, 3, "any");
  for (uint32_t i = 0; i < 3; i++) fill(data[i], 2000, i);
  /* What came first is taken first; other tags wait. */
  const uint32_t order[] = {2, 1, 2};
  result sends[4];
  for (uint32_t i = 0; i < 3; i++) {
    const rdt_collective call = pair_call(RDT_SEND, 0, 5, data[order[i]], 2000);
    start(&members[order[i]], &call, &sends[i]);
    UNTIL(unmatched_of(&members[0]) == i + 1);
  }
  const rdt_collective other = pair_call(RDT_SEND, 0, 6, data[1], 3);
  start(&members[1], &other, &sends[3]);
  UNTIL(unmatched_of(&members[0]) == 4);
  EXPECT_STATUS(RDT_OK, receive_any(&members[0], 6, got, 3, &sender));
  EXPECT(sender == 1);
  for (uint32_t i = 0; i < 3; i++) {
    EXPECT_STATUS(RDT_OK, receive_any(&members[0], 5, got, 2000, &sender));
    EXPECT(sender == order[i]);
    expect_filled(got, 2000, sender);
  }
  for (int i = 0; i < 4; i++) expect_ok(&sends[i]);
  /* A receive from anybody that was posted first has what comes first. */
  int32_t first[10], second[10];
  result any, one;
  rdt_collective_report report;
  rdt_collective call = pair_call(RDT_RECEIVE, RDT_ANY_MEMBER, 0, first, 10);
  call.report = &report;
  start(&members[0], &call, &any);
  call = pair_call(RDT_RECEIVE, 1, 0, second, 10);
  start(&members[0], &call, &one);
  for (uint32_t i = 0; i < 2; i++) {
    call = pair_call(RDT_SEND, 0, 0, data[i], 10);
    EXPECT_STATUS(RDT_OK, rdt_group_run(members[1].group, &call));
  }
  expect_ok(&any);
  expect_ok(&one);
  EXPECT(report.last == 1);
  expect_filled(first, 10, 0);
  expect_filled(second, 10, 1);
  close_group(members, 3);
}

/* A receive that failed takes nothing; a send that failed is not received. */
static void test_deadlines(void) {
  static int32_t data[LONGEST], got[LONGEST];
  member members[MEMBERS];
  open_group(members, 2, "deadlines");
  for (uint32_t i = 0; i < 2; i++) members[i].group->reads = false;
  rdt_collective call = pair_call(RDT_RECEIVE, 1, 0, got, 4);
  call.timeout_ms = 20;
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_run(members[0].group, &call));
  EXPECT(mentions(rdt_last_error(), "member 1 is waited for"));
  call = pair_call(RDT_RECEIVE, RDT_ANY_MEMBER, 0, got, 4);
  call.timeout_ms = 20;
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_run(members[0].group, &call));
  EXPECT(mentions(rdt_last_error(), "no member has sent"));
  for (int maps = 1; maps >= 0; maps--) {
    if (!maps) forbid_mapping(members, 2);
    fill(data, LONGEST, 3);
    call = pair_call(RDT_SEND, 0, 0, data, LONGEST);
    call.timeout_ms = 20;
    EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_run(members[1].group, &call));
    EXPECT(unmatched_of(&members[0]) == 0);
    result sent;
    fill(data, LONGEST, 4);
    call = pair_call(RDT_SEND, 0, 0, data, LONGEST);
    start(&members[1], &call, &sent);
    call = pair_call(RDT_RECEIVE, 1, 0, got, LONGEST);
    EXPECT_STATUS(RDT_OK, rdt_group_run(members[0].group, &call));
    expect_ok(&sent);
    expect_filled(got, LONGEST, 4);
  }
  check_sum(members, 2, 1);
  close_group(members, 2);
}

/* Nobody waits for the receive, and no message wakes the progress thread, which only looks now and then at channels
 * that other threads have polled. */
static void test_unattended(void) {
  int32_t got[4];
  member members[MEMBERS];
  open_group(members, 2, "unattended");
  for (uint32_t round = 0; round < 20; round++) {
    result received;
    check_sum(members, 2, round + 1);
    rdt_collective call = pair_call(RDT_RECEIVE, 1, 0, got, 4);
    call.timeout_ms = 5;
    start(&members[0], &call, &received);
    EXPECT(becomes(&received.done, 1));
    EXPECT_STATUS(RDT_ERR_DEADLINE, received.status);
  }
  close_group(members, 2);
}

/* Both learn that they differ: at once, or, where the send was complete, by the next operation. */
static void test_disagreement(void) {
  static int32_t data[LONGEST], got[LONGEST];
  member members[MEMBERS];
  open_group(members, 2, "disagreement");
  rdt_collective call = pair_call(RDT_SEND, 0, 0, data, 5);
  EXPECT_STATUS(RDT_OK, rdt_group_run(members[1].group, &call));
  call = pair_call(RDT_RECEIVE, 1, 0, got, 6);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_group_run(members[0].group, &call));
  EXPECT(mentions(rdt_last_error(), "send of int32 [6] here; send of int32 [5] at member 1"));
  UNTIL(members[1].group->regrets);
  call = pair_call(RDT_SEND, 0, 0, data, 5);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_group_run(members[1].group, &call));
  EXPECT(mentions(rdt_last_error(), "send of int32 [6] at member 0"));
  result sent;
  call = pair_call(RDT_SEND, 0, 0, data, LONGEST);
  start(&members[1], &call, &sent);
  call = pair_call(RDT_RECEIVE, 1, 0, got, LONGEST - 1);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_group_run(members[0].group, &call));
  EXPECT(becomes(&sent.done, 1));
  EXPECT_STATUS(RDT_ERR_PROTOCOL, sent.status);
  check_sum(members, 2, 1);
  close_group(members, 2);
}

/* A member that leaves fails what others have with it, and nothing else. */
static void test_leaving(void) {
  static int32_t data[LONGEST], got[3][10];
  member members[MEMBERS];
  result waits[4];
  open_group(members, 3, "leaving");
  rdt_collective call = pair_call(RDT_RECEIVE, 2, 0, got[0], 10);
  start(&members[0], &call, &waits[0]);
  call = pair_call(RDT_SEND, 2, 0, data, LONGEST);
  start(&members[0], &call, &waits[1]);
  call = pair_call(RDT_RECEIVE, 1, 0, got[1], 10);
  start(&members[0], &call, &waits[2]);
  call = pair_call(RDT_RECEIVE, RDT_ANY_MEMBER, 9, got[2], 10);
  start(&members[0], &call, &waits[3]);
  rdt_group_close(members[2].group);
  for (int i = 0; i < 2; i++) {
    EXPECT(becomes(&waits[i].done, 1));
    EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, waits[i].status);
    EXPECT(mentions(waits[i].error, "member 2 closed the group"));
  }
  fill(data, 10, 8);
  call = pair_call(RDT_SEND, 0, 0, data, 10);
  EXPECT_STATUS(RDT_OK, rdt_group_run(members[1].group, &call));
  expect_ok(&waits[2]);
  expect_filled(got[1], 10, 8);
  EXPECT(atomic_load(&waits[3].done) == 0);
  rdt_group_close(members[1].group);
  EXPECT(becomes(&waits[3].done, 1));
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, waits[3].status);
  rdt_group_close(members[0].group);
  for (int i = 0; i < 3; i++) rdt_device_close(members[i].device);
}

static void test_cancel(void) {
  static int32_t data[LONGEST];
  member members[MEMBERS];
  result waits[2];
  open_group(members, 2, "cancel");
  rdt_collective call = pair_call(RDT_RECEIVE, RDT_ANY_MEMBER, 0, data, 10);
  call.tag[1] = 77;
  start(&members[0], &call, &waits[0]);
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[0].group, call.tag));
  EXPECT(becomes(&waits[0].done, 1));
  EXPECT_STATUS(RDT_ERR_CANCELLED, waits[0].status);
  call = pair_call(RDT_SEND, 0, 0, data, LONGEST);
  start(&members[1], &call, &waits[1]);
  EXPECT_STATUS(RDT_OK, rdt_group_cancel(members[1].group, NULL));
  EXPECT(becomes(&waits[1].done, 1));
  EXPECT_STATUS(RDT_ERR_CANCELLED, waits[1].status);
  call = pair_call(RDT_SEND, 1, 0, data, 1);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_run(members[1].group, &call));
  call.root = 2;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_run(members[1].group, &call));
  call.root = RDT_ANY_MEMBER;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_run(members[1].group, &call));
  close_group(members, 2);
}

/* No message is dropped without a word: where there is no room for more, the connection ends. */
static void test_crowd(void) {
  enum { KEPT = 65536 };
  member members[MEMBERS];
  int32_t nothing;
  uint32_t received = 0;
  rdt_status status = RDT_OK;
  open_group(members, 2, "crowd");
  rdt_collective call = pair_call(RDT_SEND, 0, 0, &nothing, 0);
  for (uint32_t i = 0; i < KEPT; i++) EXPECT_STATUS(RDT_OK, rdt_group_run(members[1].group, &call));
  UNTIL(rdt_group_run(members[1].group, &call) == RDT_ERR_CONNECTION_LOST);
  call = pair_call(RDT_RECEIVE, 1, 0, &nothing, 0);
  while ((status = rdt_group_run(members[0].group, &call)) == RDT_OK) received++;
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, status);
  EXPECT(received == KEPT);
  close_group(members, 2);
}

int main(void) {
  test_ways();
  test_order();
  test_any();
  test_deadlines();
  test_unattended();
  test_disagreement();
  test_leaving();
  test_cancel();
  if (!is_slow()) test_crowd();
  return 0;
}
