/* SPDX-License-Identifier: Apache-2.0
 *
 * Collective operations along trees, which are replaced in between: every kind, many at a time, and who sends.
 */
#include "group_trees.h"
#include "group_trials.h"

/* Short and long sums along trees, all under way at the same time. */
static void check_many(member *members, uint32_t size) {
  enum { MANY = 40, LONGEST = 30000 };
  static int32_t numbers[MEMBERS][MANY][LONGEST];
  rdt_transfer *transfers[MEMBERS][MANY];
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t k = 0; k < MANY; k++) {
      const uint32_t which = i % 2 ? MANY - 1 - k : k;
      const uint64_t count = which % 8 ? 1 + which * 30 : LONGEST;
      for (uint64_t j = 0; j < count; j++) numbers[i][which][j] = input_at(i, j + which);
      rdt_collective call = sum_call(which + 1, numbers[i][which], count);
      call.tag[1] = 3 + members[i].group->trees->hash; /* never used twice */
      call.algorithm = RDT_ALGORITHM_TREES;
      EXPECT_STATUS(RDT_IN_PROGRESS,
                    rdt_group_submit(members[i].group, &call, &transfers[i][which]));
    }
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t which = 0; which < MANY; which++) {
      const uint64_t count = which % 8 ? 1 + which * 30 : LONGEST;
      EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfers[i][which], PATIENCE_MS));
      rdt_transfer_free(transfers[i][which]);
      for (uint64_t j = 0; j < count; j++) EXPECT(numbers[i][which][j] == sum_at(size, j + which));
    }
}

static void test_kinds(void) {
  member members[MEMBERS];
  forest grown;
  for (uint32_t size = is_slow() ? 3 : 2; size <= (is_slow() ? 3 : MEMBERS); size++) {
    open_group(members, size, "trees");
    for (unsigned round = 0; round < 3; round++) {
      if (round == 2) forbid_mapping(members, size);
      forest_grow(&grown, size, 10 * size + round);
      expect_trees(members, size, &grown);
      check_kinds(members, size, round == 1 ? REGISTERED : PLAIN, RDT_ALGORITHM_TREES,
                  RDT_ALGORITHM_TREES);
      check_many(members, size);
    }
    close_group(members, size);
  }
}

static uint64_t sent_by(const member *m) {
  rdt_group_info info;
  EXPECT_STATUS(RDT_OK, rdt_group_get_info(m->group, &info));
  return info.bytes[RDT_ALGORITHM_TREES];
}

/* In a broadcast, inner members of the tree send. Without a tree there is a ring, which has other ones. */
static void test_senders(void) {
  enum { SIZE = 3, COUNT = 1000, BYTES = COUNT * sizeof(int32_t) };
  member members[MEMBERS];
  const trial t = {RDT_BROADCAST, RDT_ALGORITHM_TREES, COUNT, false, PLAIN};
  forest star = {1, {{RDT_BROADCAST, SIZE - 1, 1, NULL}}, {{SIZE - 1, SIZE - 1, SIZE - 1}}};
  const forest none = {0};
  star.trees[0].parents = star.parents[0];
  open_group(members, SIZE, "senders");
  expect_trees(members, SIZE, &star);
  check_trial(members, SIZE, &t);
  for (uint32_t i = 0; i < SIZE; i++)
    EXPECT(sent_by(&members[i]) == (i == SIZE - 1 ? 2 * BYTES : 0));
  expect_trees(members, SIZE, &none);
  check_trial(members, SIZE, &t);
  EXPECT(sent_by(&members[0]) == BYTES && sent_by(&members[2]) == 3 * BYTES);
  close_group(members, SIZE);
}

int main(void) {
  test_kinds();
  test_senders();
  return 0;
}
