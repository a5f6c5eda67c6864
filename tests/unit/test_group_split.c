/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of some members of a group: what they compute, what they share, and how making one fails.
 */
#include "group_trials.h"

typedef struct {
  member *of, part;
  const char *name;
  const uint32_t *ranks;
  uint32_t size;
  int timeout_ms;
} split;

static void *run_split(void *argument) {
  split *s = argument;
  s->part.device = s->of->device;
  s->part.status =
      rdt_group_split(s->of->group, s->name, s->ranks, s->size, s->timeout_ms, &s->part.group);
  snprintf(s->part.error, sizeof s->part.error, "%s",
           s->part.status == RDT_OK ? "" : rdt_last_error());
  return NULL;
}

static void run_splits(split *splits, uint32_t count) {
  pthread_t threads[MEMBERS];
  for (uint32_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, run_split, &splits[i]);
  for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

/* Their order decides the ranks. Two groups are made at the same time, and outlive the first one. */
static void test_results(void) {
  static const uint32_t first[] = {3, 0, 4}, second[] = {2, 1};
  member members[MEMBERS], parts[MEMBERS];
  open_group(members, 5, "all");
  split splits[5];
  for (uint32_t i = 0; i < 5; i++) {
    const bool in_second = i == 1 || i == 2;
    splits[i] = (split){.of = &members[i],
                        .name = in_second ? "second" : "first",
                        .ranks = in_second ? second : first,
                        .size = in_second ? 2 : 3,
                        .timeout_ms = PATIENCE_MS};
  }
  run_splits(splits, 5);
  for (uint32_t i = 0; i < 5; i++) {
    if (splits[i].part.status != RDT_OK) fprintf(stderr, "%u: %s\n", i, splits[i].part.error);
    EXPECT_STATUS(RDT_OK, splits[i].part.status);
  }
  for (uint32_t i = 0; i < 5; i++) rdt_group_close(members[i].group);
  for (uint32_t i = 0; i < 3; i++) {
    parts[i] = splits[first[i]].part;
    rdt_group_info info;
    EXPECT_STATUS(RDT_OK, rdt_group_get_info(parts[i].group, &info));
    EXPECT(info.rank == i && info.size == 3 && info.hosts == 1 && info.latency_ns[0] > 0);
  }
  check_kinds(parts, 3, PLAIN, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_FLAT);
  for (uint32_t i = 0; i < 2; i++) parts[3 + i] = splits[second[i]].part;
  check_kinds(&parts[3], 2, REGISTERED, RDT_ALGORITHM_AUTO, RDT_ALGORITHM_FLAT);
  for (uint32_t i = 0; i < 5; i++) rdt_group_close(parts[i].group);
  for (uint32_t i = 0; i < 5; i++) rdt_device_close(members[i].device);
}

static unsigned channels_of(const member *m) {
  rdt_groups *groups = rdt_groups_of(m->device);
  unsigned count = 0;
  pthread_mutex_lock(&groups->lock);
  for (const rdt_group_channel *each = groups->channels; each; each = each->next) count++;
  pthread_mutex_unlock(&groups->lock);
  return count;
}

/* Hundreds of groups need no further channel, also one after the other with the same name. */
static void test_many(void) {
  enum { MANY = 300 };
  static const uint32_t ranks[] = {1, 0};
  static rdt_group *kept[2][MANY];
  member members[MEMBERS];
  char name[32];
  open_group(members, 3, "many");
  const unsigned channels = channels_of(&members[0]);
  for (int again = 0; again < 2; again++) {
    for (int k = 0; k < MANY; k++) {
      split splits[2];
      snprintf(name, sizeof name, "part %d", k);
      for (uint32_t i = 0; i < 2; i++)
        splits[i] = (split){
            .of = &members[i], .name = name, .ranks = ranks, .size = 2, .timeout_ms = PATIENCE_MS};
      run_splits(splits, 2);
      member parts[2] = {splits[1].part, splits[0].part};
      for (uint32_t i = 0; i < 2; i++) EXPECT_STATUS(RDT_OK, parts[i].status);
      if (k % 50 == 0) check_sum(parts, 2, 1);
      for (uint32_t i = 0; i < 2; i++) kept[i][k] = parts[i].group;
    }
    EXPECT(channels_of(&members[0]) == channels);
    for (int k = 0; k < MANY; k++)
      for (uint32_t i = 0; i < 2; i++) rdt_group_close(kept[i][k]);
  }
  check_sum(members, 3, 1);
  close_group(members, 3);
}

static void test_failures(void) {
  static const uint32_t two[] = {0, 1}, three[] = {0, 1, 2}, twice[] = {0, 0}, others[] = {1, 2},
                        far[] = {0, 7}, lost[] = {0, 2, 1};
  member members[MEMBERS];
  rdt_group *part;
  open_group(members, 3, "failures");
  rdt_group *group = members[0].group;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "", two, 2, 100, &part));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "failures", two, 2, 100, &part));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "a", twice, 2, 100, &part));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "a", others, 2, 100, &part));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "a", far, 2, 100, &part));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_group_split(group, "a", two, 0, 100, &part));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_split(group, "late", two, 2, 20, &part));
  EXPECT(mentions(rdt_last_error(), "member 1"));
  /* What is left of a call that failed at one member disturbs no later one. */
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_group_split(members[1].group, "late", two, 2, 20, &part));
  for (int again = 0; again < 3; again++) {
    split late[2] = {
        {&members[0], .name = "late", .ranks = two, .size = 2, .timeout_ms = PATIENCE_MS},
        {&members[1], .name = "late", .ranks = two, .size = 2, .timeout_ms = PATIENCE_MS}};
    run_splits(late, 2);
    for (int i = 0; i < 2; i++) EXPECT_STATUS(RDT_OK, late[i].part.status);
    member parts[2] = {late[0].part, late[1].part};
    check_sum(parts, 2, 1);
    for (int i = 0; i < 2; i++) rdt_group_close(parts[i].group);
  }
  /* Members mean different groups: all learn it. */
  split splits[3] = {
      {&members[0], .name = "b", .ranks = three, .size = 3, .timeout_ms = PATIENCE_MS},
      {&members[1], .name = "b", .ranks = three, .size = 3, .timeout_ms = PATIENCE_MS},
      {&members[2], .name = "b", .ranks = (uint32_t[]){0, 2}, .size = 2,
       .timeout_ms = PATIENCE_MS}};
  run_splits(splits, 3);
  for (int i = 0; i < 3; i++) {
    EXPECT_STATUS(RDT_ERR_PROTOCOL, splits[i].part.status);
    EXPECT(mentions(splits[i].part.error, "differ in its members"));
  }
  /* One of one member is made at once. */
  EXPECT_STATUS(RDT_OK, rdt_group_split(group, "alone", two, 1, 0, &part));
  rdt_group_close(part);
  rdt_group_close(members[2].group);
  UNTIL(members[0].group->links[2].left);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST,
                rdt_group_split(group, "lost", lost, 3, PATIENCE_MS, &part));
  for (int i = 0; i < 2; i++) rdt_group_close(members[i].group);
  for (int i = 0; i < 3; i++) rdt_device_close(members[i].device);
}

int main(void) {
  test_results();
  test_many();
  test_failures();
  return 0;
}
