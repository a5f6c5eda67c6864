/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages that no honest member sends: each fails the operation or the meeting, and is said to be malformed.
 * (tests/fuzz makes up others.)
 */
#include <math.h>

#include "../fuzz/group_stage.h"
#include "unit.h"

#define COUNT 64u

static stage here;

static void take(uint32_t peer, uint64_t kind, const void *data, size_t size) {
  rdt_groups_take(here.channels[peer], kind, data, size);
}

/* ---- operations ----------------------------------------------------------------------------------- */

static rdt_group_operation *start(rdt_group *group, uint64_t tag, int32_t *numbers) {
  rdt_group_operation *operation;
  rdt_collective call = {.struct_size = sizeof(call),
                         .kind = RDT_ALL_REDUCE,
                         .dtype = RDT_INT32,
                         .op = RDT_SUM,
                         .algorithm = RDT_ALGORITHM_FLAT,
                         .tag = {tag, 1},
                         .input = numbers,
                         .output = numbers,
                         .count = COUNT,
                         .timeout_ms = 60000};
  EXPECT_STATUS(RDT_OK, rdt_group_operation_check(group, &call));
  EXPECT_STATUS(RDT_OK, rdt_group_operation_start(group, &call, NULL, NULL, &operation));
  EXPECT(!rdt_group_operation_advance(operation));
  return operation;
}

/* A message of the kind for the step in which the operation receives. */
static rdt_group_message message_to(const rdt_group *group, const rdt_group_operation *operation) {
  const rdt_group_program_step *step = operation->program->steps;
  while (step->step.kind != RDT_STEP_REDUCE) step++;
  return (rdt_group_message){.group = group->id,
                             .tag = {operation->tag[0], operation->tag[1]},
                             .shape = operation->shape,
                             .from = 1,
                             .lane = step->step.lane,
                             .number = step->number};
}

static void expect_malformed(rdt_group *group, rdt_group_operation *operation, const char *text) {
  rdt_group_message answer = {.group = group->id,
                              .tag = {operation->tag[0], operation->tag[1]},
                              .from = 1,
                              .status = RDT_ERR_CANCELLED,
                              .number = 1};
  rdt_group_operation_advance(operation);
  EXPECT(operation->status == RDT_ERR_PROTOCOL && strstr(operation->text, text));
  take(1, RDT_GROUP_ABORT, &answer, sizeof(answer));
  EXPECT(rdt_group_operation_advance(operation));
  rdt_group_operation_retire(operation);
  rdt_group_operation_over(group);
  stage_drain(&here);
}

static void test_operations(void) {
  rdt_group *group = stage_group(&here, "operations", 0, 2);
  int32_t numbers[COUNT] = {0};
  group->id = 9;
  rdt_group_meeting_link(group, 1, here.channels[1]);
  group->links[1].maps = false;
  for (int empty = RDT_GROUP_EAGER; empty <= RDT_GROUP_PUSHED; empty++) {
    if (empty == RDT_GROUP_ACK || empty == RDT_GROUP_OFFER) continue; /* for who sends */
    rdt_group_operation *operation = start(group, (uint64_t)empty, numbers);
    rdt_group_message head = message_to(group, operation);
    take(1, (uint64_t)empty, &head, sizeof(head));
    expect_malformed(group, operation, "malformed message");
  }
  /* A part of an element. */
  rdt_group_operation *operation = start(group, 20, numbers);
  rdt_group_message head = message_to(group, operation);
  head.size = 6;
  take(1, RDT_GROUP_LEND, &head, sizeof(head));
  expect_malformed(group, operation, "no part of the operation");
  /* More than can be under way. */
  operation = start(group, 21, numbers);
  head = message_to(group, operation);
  head.size = COUNT * sizeof(int32_t);
  for (int i = 0; i < 20; i++) take(1, RDT_GROUP_ASK, &head, sizeof(head));
  expect_malformed(group, operation, "no part of the operation");
}

static void test_text(void) {
  rdt_group *group = stage_group(&here, "texts", 0, 2);
  int32_t numbers[COUNT] = {0};
  struct {
    rdt_group_message head;
    char text[12];
  } abort_message = {.text = "two\nlines\x1b[m"};
  group->id = 10;
  rdt_group_meeting_link(group, 1, here.channels[1]);
  rdt_group_operation *operation = start(group, 1, numbers);
  abort_message.head = (rdt_group_message){
      .group = 10, .tag = {1, 1}, .from = 1, .status = RDT_ERR_PROTOCOL, .number = 1};
  take(1, RDT_GROUP_ABORT, &abort_message, sizeof(abort_message.head) + 12);
  EXPECT(rdt_group_operation_advance(operation));
  EXPECT(strstr(operation->text, "two?lines?[m"));
  rdt_group_operation_retire(operation);
  rdt_group_operation_over(group);
}

/* A group that is being formed has number 0. */
static void test_number_zero(void) {
  rdt_group *group = stage_group(&here, "unformed", 0, 2);
  rdt_group_message head = {.from = 1};
  rdt_group_meeting_link(group, 1, here.channels[1]);
  take(1, RDT_GROUP_EAGER, &head, sizeof(head));
  EXPECT(atomic_load(&here.channels[1]->broken) && group->early == 0);
  stage_drain(&here);
}

/* ---- tables ------------------------------------------------------------------------------------------- */

typedef struct table {
  double cost;
  uint64_t chunk;
  uint32_t hosts[3];
} table;

static void send_table(const rdt_group *group, const table *t) {
  uint8_t bytes[RDT_WIRE_MESSAGE_SIZE];
  size_t size;
  rdt_wire wire;
  uint64_t bits;
  memcpy(&bits, &t->cost, sizeof(bits));
  rdt_group_meeting_begin(&wire, group, RDT_GROUP_TABLE);
  rdt_wire_put_u64(&wire, 77);
  rdt_wire_put_u64(&wire, 100);
  rdt_wire_put_u64(&wire, t->chunk);
  for (int i = 0; i < 5; i++) rdt_wire_put_u64(&wire, bits);
  rdt_wire_put_u32(&wire, 0);
  for (uint32_t i = 0; i < 3; i++) {
    rdt_wire_put_text(&wire, STAGE_ROOT);
    rdt_wire_put_u64(&wire, 1000 + i);
    rdt_wire_put_u64(&wire, 0);
    rdt_wire_put_u32(&wire, t->hosts[i]);
  }
  EXPECT_STATUS(RDT_OK, rdt_wire_unload(&wire, bytes, sizeof(bytes), &size));
  take(0, RDT_GROUP_TABLE, bytes, size);
}

static void test_tables(void) {
  const table good = {.cost = 2.5, .hosts = {0, 0, 1}};
  table bad[] = {good, good, good, good, good, good, good};
  bad[0].cost = -1;
  bad[1].cost = NAN;
  bad[2].cost = INFINITY;
  bad[3].cost = -INFINITY;
  bad[4].chunk = 1ull << 40;
  bad[5].hosts[0] = 1;
  bad[6].hosts[2] = 2;
  const rdt_expected any = {0};
  rdt_group *group = stage_group(&here, "tables", 1, 3);
  group->eager = 1000;
  rdt_groups_connected(here.channels[0]);
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    send_table(group, &bad[i]);
    EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_group_meet(group, STAGE_ROOT, any, rdt_now_ms() - 1));
    EXPECT(strstr(rdt_last_error(), "malformed table"));
  }
  memset(group->hosts, 0, 3 * sizeof(group->hosts[0]));
  send_table(group, &good);
  /* Taken: now the third member is missed. */
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_meet(group, STAGE_ROOT, any, rdt_now_ms() - 1));
  EXPECT(group->id == 77 && group->costs.byte_ns[1] == 2.5 && group->hosts[2] == 1);
}

int main(void) {
  stage_open(&here);
  test_operations();
  test_text();
  test_number_zero();
  test_tables();
  return 0;
}
