/* SPDX-License-Identifier: Apache-2.0
 *
 * How much the schedules send, where, and in how many rounds and messages.
 */
#include "group/schedule/schedule_make.h"
#include "unit.h"

/* What `rank` sends in all, and of that to other hosts; over how many rounds. */
typedef struct traffic {
  uint64_t sent, away;
  uint32_t rounds;
} traffic;

static traffic measure(rdt_schedule_request q, uint32_t rank) {
  traffic found = {0, 0, 0};
  rdt_schedule *schedule;
  q.rank = rank;
  EXPECT_STATUS(RDT_OK, rdt_schedule_make(&q, &schedule));
  for (size_t i = 0; i < schedule->count; i++) {
    const rdt_group_step *step = &schedule->steps[i];
    if (step->round >= found.rounds) found.rounds = step->round + 1;
    if (step->kind != RDT_STEP_SEND) continue;
    found.sent += step->count;
    found.away += q.hosts[step->peer] == q.hosts[rank] ? 0 : step->count;
  }
  rdt_schedule_free(schedule);
  return found;
}

/* Eight members on two hosts, ranks taking turns: what each algorithm is for. */
static void test_traffic(void) {
  const uint32_t hosts[8] = {0, 1, 0, 1, 0, 1, 0, 1};
  const uint64_t count = 8000, least = 2 * count * 7 / 8;
  rdt_schedule_request q = {
      .kind = RDT_ALL_REDUCE, .size = 8, .count = count, .chunk = 100, .hosts = hosts};
  for (uint32_t rank = 0; rank < 8; rank++) {
    traffic found[RDT_ALGORITHM_COUNT];
    for (q.algorithm = RDT_ALGORITHM_FLAT; q.algorithm < RDT_ALGORITHM_COUNT; q.algorithm++)
      found[q.algorithm] = measure(q, rank);
    EXPECT(found[RDT_ALGORITHM_FLAT].sent == 7 * count && found[RDT_ALGORITHM_FLAT].rounds == 1);
    EXPECT(found[RDT_ALGORITHM_DIRECT].sent == least && found[RDT_ALGORITHM_DIRECT].rounds == 2);
    EXPECT(found[RDT_ALGORITHM_HALVING].sent == least);
    EXPECT(found[RDT_ALGORITHM_HALVING].away == 2 * count / 8);
    EXPECT(found[RDT_ALGORITHM_RING].sent == least && found[RDT_ALGORITHM_RING].rounds == 14);
    /* Both hosts' last members, and they alone. */
    EXPECT(found[RDT_ALGORITHM_RING].away == (rank >= 6 ? least : 0));
    EXPECT(found[RDT_ALGORITHM_HIERARCHICAL].away == 2 * count / 8);
    EXPECT(found[RDT_ALGORITHM_HIERARCHICAL].rounds == 4);
  }
}

/* Messages keep to the chunk, lanes to a handful, and a chain of members works on many chunks at once. */
static void test_chunks(void) {
  const uint32_t hosts[5] = {0};
  rdt_schedule_request q = {.kind = RDT_BROADCAST, .size = 5, .count = 40000, .chunk = 100};
  q.hosts = hosts;
  for (q.algorithm = RDT_ALGORITHM_FLAT; q.algorithm < RDT_ALGORITHM_COUNT; q.algorithm++) {
    rdt_schedule *schedule;
    EXPECT_STATUS(RDT_OK, rdt_schedule_make(&q, &schedule));
    EXPECT(schedule->lanes <= 4);
    const uint64_t most = q.algorithm == RDT_ALGORITHM_FLAT ? 157 : 100; /* 256 messages at most */
    for (size_t i = 0; i < schedule->count; i++) EXPECT(schedule->steps[i].count <= most);
    rdt_schedule_free(schedule);
  }
  q.algorithm = RDT_ALGORITHM_RING;
  EXPECT(measure(q, 0).rounds == 100 && measure(q, 4).rounds == 100 + 3);
}

static void test_unsupported(void) {
  const uint32_t hosts[2] = {0, 0};
  rdt_schedule_request q = {.kind = RDT_BARRIER, .algorithm = RDT_ALGORITHM_FLAT, .size = 2};
  q.hosts = hosts;
  rdt_schedule *schedule;
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_schedule_make(&q, &schedule));
  EXPECT(schedule == NULL);
  rdt_schedule_free(schedule);
}

int main(void) {
  test_traffic();
  test_chunks();
  test_unsupported();
  return 0;
}
