/* SPDX-License-Identifier: Apache-2.0
 *
 * How members of a group meet, and what goes wrong then: each learns why in time, and the name is free again.
 */
#include "group_members.h"

static void close_devices(member *members, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) rdt_device_close(members[i].device);
}

static void test_missing_members(void) {
  member members[4];
  pthread_t thread;
  open_devices(members, 4);
  prepare(members, 4, "missing");
  members[0].options.timeout_ms = 200;
  pthread_create(&thread, NULL, create_member, &members[1]);
  UNTIL(join_requests_of(&members[0]) > 0);
  create_member(&members[0]); /* ranks 2 and 3 do not come */
  pthread_join(thread, NULL);
  EXPECT(members[0].status == RDT_ERR_DEADLINE && mentions(members[0].error, "rank 2, 3"));
  EXPECT(members[1].status == RDT_ERR_DEADLINE && mentions(members[1].error, "rank 2, 3"));
  prepare(members, 4, "missing"); /* the name is free again */
  create_groups(members, 4);
  for (uint32_t i = 0; i < 4; i++) EXPECT_STATUS(RDT_OK, members[i].status);
  check_sum(members, 4, 1);
  close_group(members, 4);
}

static void test_two_of_one_rank(void) {
  member members[3];
  open_devices(members, 3);
  prepare(members, 3, "twice");
  members[2].options.rank = 1;
  create_groups(members, 3);
  for (uint32_t i = 0; i < 3; i++)
    EXPECT(members[i].status == RDT_ERR_REFUSED && mentions(members[i].error, "claim rank 1"));
  close_devices(members, 3);
}

static void test_different_sizes(void) {
  member members[2];
  open_devices(members, 2);
  prepare(members, 2, "sizes");
  members[1].options.size = 3;
  create_groups(members, 2);
  for (uint32_t i = 0; i < 2; i++)
    EXPECT(members[i].status == RDT_ERR_REFUSED && mentions(members[i].error, "has 3"));
  close_devices(members, 2);
}

/* Who waits for others learns that the device is being closed. */
static void test_close_while_joining(void) {
  member members[2];
  pthread_t thread;
  open_devices(members, 2);
  prepare(members, 2, "never");
  pthread_create(&thread, NULL, create_member, &members[1]);
  UNTIL(join_requests_of(&members[0]) > 0);
  rdt_device_close(members[1].device);
  pthread_join(thread, NULL);
  EXPECT_STATUS(RDT_ERR_CLOSED, members[1].status);
  rdt_device_close(members[0].device);
}

/* The others are asked again until rank 0 has created the group. */
static void test_late_root(void) {
  member members[2];
  pthread_t thread;
  open_devices(members, 2);
  prepare(members, 2, "late");
  pthread_create(&thread, NULL, create_member, &members[1]);
  UNTIL(join_requests_of(&members[0]) > 0);
  create_member(&members[0]);
  pthread_join(thread, NULL);
  for (uint32_t i = 0; i < 2; i++) EXPECT_STATUS(RDT_OK, members[i].status);
  check_sum(members, 2, 1);
  member stranger;
  open_devices(&stranger, 1);
  stranger.options = members[1].options;
  create_member(&stranger);
  EXPECT(stranger.status == RDT_ERR_REFUSED && mentions(stranger.error, "complete"));
  check_sum(members, 2, 2);
  close_devices(&stranger, 1);
  close_group(members, 2);
}

static void test_wrong_options(void) {
  member m;
  rdt_group *group;
  open_devices(&m, 1);
  prepare(&m, 1, "wrong");
  rdt_group_options good = m.options, bad = good;
  bad.rank = 1;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_create(m.device, &bad, &group));
  bad = good, bad.name = "";
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_create(m.device, &bad, &group));
  bad = good, bad.struct_size--;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_create(m.device, &bad, &group));
  bad = good, bad.size = 2, bad.rank = 1, bad.root = NULL;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_create(m.device, &bad, &group));
  bad.root = "127.0.0.1:1";
  EXPECT_STATUS(RDT_ERR_UNREACHABLE, rdt_group_create(m.device, &bad, &group));
  EXPECT_STATUS(RDT_OK, rdt_group_create(m.device, &good, &m.group));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_create(m.device, &good, &group));
  close_group(&m, 1);
}

/* One that is gone is lost, whatever transports there are; one that was never meant is refused. */
static void test_another_device_is_there(void) {
  member members[2];
  open_devices(members, 2);
  prepare(members, 2, "names");
  rdt_device *there = members[0].device, *here = members[1].device;
  const rdt_expected right = {.name = there->name, .generation = there->generation};
  const rdt_expected gone = {.generation = there->generation + 1}, other = {.name = "another"};
  const struct {
    rdt_expected expected;
    rdt_status status;
  } cases[] = {{gone, RDT_ERR_CONNECTION_LOST}, {other, RDT_ERR_REFUSED}, {right, RDT_OK}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    rdt_channel *channel = NULL;
    EXPECT_STATUS(cases[i].status,
                  rdt_connect_for(here, rdt_device_address(there), cases[i].expected,
                                  RDT_PURPOSE_GROUPS, PATIENCE_MS, &channel));
    rdt_channel_unref(channel);
  }
  members[1].options.root_name = "another"; /* not over the channel that is there, either */
  create_member(&members[1]);
  EXPECT(members[1].status == RDT_ERR_REFUSED && mentions(members[1].error, "not another"));
  close_devices(members, 2);
}

int main(void) {
  test_missing_members();
  test_two_of_one_rank();
  test_different_sizes();
  test_late_root();
  test_close_while_joining();
  test_wrong_options();
  test_another_device_is_there();
  return 0;
}
