/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations whose members have unequal parts, also empty ones.
 */
#include "group_trials.h"

enum { SIZE = 4, ROOT = 2 };
typedef struct {
  uint64_t counts
      [SIZE]; /* of each member's part; for ALL_TO_ALL multiplied by what the two members give */
} parts;

static uint64_t between(const parts *p, uint32_t from, uint32_t to) {
  return p->counts[from] * (to + 1) / 2 + (from == to && from % 2 == 1);
}

static uint64_t sum_to(const uint64_t *counts, uint32_t end) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < end; i++) sum += counts[i];
  return sum;
}

/* What member `rank` has after the operation at `index`, behind the first `of` members' elements. */
static int32_t result_at(rdt_collective_kind kind, const parts *p, uint32_t rank, uint64_t index) {
  uint32_t from = 0;
  switch (kind) {
    case RDT_REDUCE_SCATTER:
      return sum_at(SIZE, sum_to(p->counts, rank) + index);
    case RDT_SCATTER:
      return input_at(ROOT, sum_to(p->counts, rank) + index);
    case RDT_ALL_TO_ALL:
      for (; index >= between(p, from, rank); from++) index -= between(p, from, rank);
      for (uint32_t to = 0; to < rank; to++) index += between(p, from, to);
      return input_at(from, index);
    default: /* RDT_ALL_GATHER, RDT_GATHER */
      for (; index >= p->counts[from]; from++) index -= p->counts[from];
      return input_at(from, index);
  }
}

typedef struct {
  uint64_t sent[SIZE], received[SIZE], input, output;
} plan;

static plan plan_of(rdt_collective_kind kind, const parts *p, uint32_t rank) {
  plan made = {.input = p->counts[rank], .output = p->counts[rank]};
  const uint64_t total = sum_to(p->counts, SIZE);
  if (kind == RDT_REDUCE_SCATTER || kind == RDT_SCATTER) made.input = total;
  if (kind == RDT_ALL_GATHER || kind == RDT_GATHER) made.output = total;
  if (kind == RDT_GATHER && rank != ROOT) made.output = 0;
  if (kind != RDT_ALL_TO_ALL) return made;
  for (uint32_t i = 0; i < SIZE; i++) {
    made.sent[i] = between(p, rank, i);
    made.received[i] = between(p, i, rank);
  }
  made.input = sum_to(made.sent, SIZE);
  made.output = sum_to(made.received, SIZE);
  return made;
}

static void try_parts(member *members, rdt_collective_kind kind, const parts *p,
                      memory_kind memory) {
  task tasks[SIZE];
  plan plans[SIZE];
  buffer inputs[SIZE], outputs[SIZE];
  for (uint32_t i = 0; i < SIZE; i++) {
    plans[i] = plan_of(kind, p, i);
    inputs[i] = buffer_new(members[i].device, plans[i].input, memory);
    outputs[i] = buffer_new(members[i].device, plans[i].output, memory);
    for (uint64_t j = 0; j < plans[i].input; j++) inputs[i].numbers[j] = input_at(i, j);
    for (uint64_t j = 0; j < plans[i].output; j++) outputs[i].numbers[j] = -1;
    const bool pairs = kind == RDT_ALL_TO_ALL;
    tasks[i].member = &members[i];
    tasks[i].call = (rdt_collective){.struct_size = sizeof(rdt_collective),
                                     .kind = kind,
                                     .dtype = RDT_INT32,
                                     .op = RDT_SUM,
                                     .root = ROOT,
                                     .input = inputs[i].numbers,
                                     .output = outputs[i].numbers,
                                     .count = pairs ? 0 : plans[i].input,
                                     .counts = pairs ? plans[i].sent : p->counts,
                                     .receive_counts = pairs ? plans[i].received : NULL,
                                     .timeout_ms = PATIENCE_MS};
  }
  run_tasks(tasks, SIZE);
  for (uint32_t i = 0; i < SIZE; i++) {
    if (tasks[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
    EXPECT_STATUS(RDT_OK, tasks[i].status);
    for (uint64_t j = 0; j < plans[i].output; j++)
      EXPECT(outputs[i].numbers[j] == result_at(kind, p, i, j));
    buffer_free(&inputs[i]);
    buffer_free(&outputs[i]);
  }
}

static const rdt_collective_kind kinds[] = {RDT_REDUCE_SCATTER, RDT_ALL_GATHER, RDT_ALL_TO_ALL,
                                            RDT_GATHER, RDT_SCATTER};
#define KINDS (sizeof kinds / sizeof *kinds)

static void try_all(member *members, memory_kind memory) {
  static const parts all[] = {{{0, 0, 0, 0}},         {{1, 1, 1, 1}},       {{1, 0, 2, 0}},
                              {{0, 7, 0, 1}},         {{3, 3, 3, 3}},       {{1000, 0, 13, 5000}},
                              {{0, 60000, 1, 30000}}, {{90000, 1, 0, 500}}, {{5, 40000, 40000, 0}}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    for (size_t k = 0; k < KINDS; k++) try_parts(members, kinds[k], &all[i], memory);
}

static void test_parts(void) {
  member members[MEMBERS];
  open_group(members, SIZE, "parts");
  try_all(members, REGISTERED);
  try_all(members, PLAIN);
  for (uint32_t i = 0; i < SIZE; i++) members[i].group->reads = false;
  try_all(members, PLAIN);
  forbid_mapping(members, SIZE);
  try_all(members, REGISTERED);
  try_all(members, PLAIN);
  close_group(members, SIZE);
}

static void test_in_place(void) {
  static const uint64_t counts[] = {3, 0, 20000, 5};
  enum { TOTAL = 20008 };
  static int32_t numbers[SIZE][TOTAL];
  member members[MEMBERS];
  task tasks[SIZE];
  open_group(members, SIZE, "parts in place");
  for (size_t k = 0; k < KINDS; k++) {
    if (kinds[k] == RDT_ALL_TO_ALL) continue;
    const bool divided = kinds[k] == RDT_REDUCE_SCATTER || kinds[k] == RDT_SCATTER;
    for (uint32_t i = 0; i < SIZE; i++) {
      int32_t *own = numbers[i] + sum_to(counts, i), *input = divided ? numbers[i] : own;
      const uint64_t count = divided ? TOTAL : counts[i];
      for (uint64_t j = 0; j < count; j++) input[j] = input_at(i, j);
      tasks[i].member = &members[i];
      tasks[i].call = (rdt_collective){.struct_size = sizeof(rdt_collective),
                                       .kind = kinds[k],
                                       .dtype = RDT_INT32,
                                       .op = RDT_SUM,
                                       .root = ROOT,
                                       .input = input,
                                       .output = kinds[k] == RDT_SCATTER ? own : numbers[i],
                                       .count = count,
                                       .counts = counts,
                                       .timeout_ms = PATIENCE_MS};
    }
    run_tasks(tasks, SIZE);
    const parts p = {{3, 0, 20000, 5}};
    for (uint32_t i = 0; i < SIZE; i++) {
      if (tasks[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
      EXPECT_STATUS(RDT_OK, tasks[i].status);
      const plan made = plan_of(kinds[k], &p, i);
      const int32_t *output = tasks[i].call.output;
      for (uint64_t j = 0; j < made.output; j++) EXPECT(output[j] == result_at(kinds[k], &p, i, j));
    }
  }
  close_group(members, SIZE);
}

/* Nobody waits for the deadline. */
static void test_disagreement(void) {
  static int32_t in[2][200], out[2][200];
  static const uint64_t three[] = {100, 3}, four[] = {100, 4}, none[] = {100, 0};
  member members[MEMBERS];
  open_group(members, 2, "other parts");
  for (int k = 0; k < 3; k++) {
    task tasks[2];
    for (uint32_t i = 0; i < 2; i++) {
      const uint64_t *counts = i == 0 ? three : k == 2 ? none : four;
      const bool pairs = k > 0;
      tasks[i] = (task){.member = &members[i],
                        .call = {.struct_size = sizeof(rdt_collective),
                                 .kind = pairs ? RDT_ALL_TO_ALL : RDT_ALL_GATHER,
                                 .dtype = RDT_INT32,
                                 .input = in[i],
                                 .output = out[i],
                                 .tag = {(uint64_t)k + 1, 1},
                                 .count = pairs ? 0 : counts[i],
                                 .counts = counts,
                                 .receive_counts = pairs ? three : NULL,
                                 .timeout_ms = PATIENCE_MS}};
    }
    run_tasks(tasks, 2);
    int disagreed = 0;
    for (uint32_t i = 0; i < 2; i++) {
      EXPECT(tasks[i].status == RDT_OK || tasks[i].status == RDT_ERR_PROTOCOL);
      if (tasks[i].status == RDT_OK) continue;
      EXPECT(mentions(tasks[i].error, "members disagree"));
      disagreed++;
    }
    EXPECT(disagreed > 0);
    /* Where it was complete, the next one fails. */
    UNTIL(disagreed == 2 || members[0].group->regrets || members[1].group->regrets);
    rdt_collective next = barrier_call((uint64_t)k + 100);
    task both[2] = {{.member = &members[0], .call = next}, {.member = &members[1], .call = next}};
    run_tasks(both, 2);
    EXPECT((both[0].status == RDT_OK) == (disagreed == 2));
  }
  check_sum(members, 2, 1000);
  close_group(members, 2);
}

/* Bit by bit, and by a factor that all must have. */
static void test_reductions(void) {
  static const uint8_t sources[3][4] = {{0xf0, 1, 0xff, 3}, {0x3c, 1, 0, 5}, {0xaa, 1, 0xff, 6}};
  static const struct {
    rdt_reduction op;
    uint8_t wanted[4];
  } cases[] = {
      {RDT_AND, {0x20, 1, 0, 0}}, {RDT_OR, {0xfe, 1, 0xff, 7}}, {RDT_XOR, {0x66, 1, 0, 0}}};
  member members[MEMBERS];
  uint8_t bytes[3][4];
  float numbers[3][500];
  task tasks[3];
  open_group(members, 3, "reductions");
  for (size_t c = 0; c < 3; c++) {
    for (uint32_t i = 0; i < 3; i++) {
      memcpy(bytes[i], sources[i], sizeof bytes[i]);
      tasks[i] = (task){.member = &members[i], .call = sum_call(c + 1, (int32_t *)bytes[i], 4)};
      tasks[i].call.dtype = RDT_UINT8;
      tasks[i].call.op = cases[c].op;
    }
    run_tasks(tasks, 3);
    for (uint32_t i = 0; i < 3; i++) {
      EXPECT_STATUS(RDT_OK, tasks[i].status);
      EXPECT(memcmp(bytes[i], cases[c].wanted, 4) == 0);
    }
  }
  for (uint32_t differs = 0; differs < 2; differs++) {
    for (uint32_t i = 0; i < 3; i++) {
      for (int j = 0; j < 500; j++) numbers[i][j] = (float)j;
      tasks[i] =
          (task){.member = &members[i], .call = sum_call(10 + differs, (int32_t *)numbers[i], 500)};
      tasks[i].call.dtype = RDT_FLOAT32;
      tasks[i].call.op = RDT_SCALED_SUM;
      tasks[i].call.factor = differs && i == 2 ? 0.5 : 0.25;
    }
    run_tasks(tasks, 3);
    for (uint32_t i = 0; i < 3; i++) {
      EXPECT_STATUS(differs ? RDT_ERR_PROTOCOL : RDT_OK, tasks[i].status);
      if (differs) EXPECT(mentions(tasks[i].error, "scaled sum), factor"));
      for (int j = 0; j < 500 && !differs; j++) EXPECT(numbers[i][j] == (float)(3 * j) * 0.25f);
    }
  }
  close_group(members, 3);
}

int main(void) {
  test_parts();
  test_in_place();
  test_disagreement();
  test_reductions();
  return 0;
}
