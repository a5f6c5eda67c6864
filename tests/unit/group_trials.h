/* SPDX-License-Identifier: Apache-2.0
 *
 * One operation at all members of a group, whose result is known: every kind, by some of the algorithms.
 */
#ifndef RDT_TESTS_GROUP_TRIALS_H
#define RDT_TESTS_GROUP_TRIALS_H

#include "group_members.h"

typedef enum { PLAIN, REGISTERED } memory_kind;

typedef struct {
  int32_t *numbers;
  rdt_region *region;
} buffer;

static inline buffer buffer_new(rdt_device *device, uint64_t count, memory_kind kind) {
  buffer b = {0};
  if (kind == PLAIN) {
    b.numbers = malloc(count * sizeof(int32_t) + 1);
  } else {
    rdt_region_info info;
    EXPECT_STATUS(RDT_OK, rdt_region_alloc(device, count * sizeof(int32_t) + 1,
                                           RDT_ACCESS_READ | RDT_ACCESS_WRITE, NULL, &b.region));
    rdt_region_get_info(b.region, &info);
    b.numbers = info.address;
  }
  return b;
}

static inline void buffer_free(buffer *b) {
  if (!b->region) free(b->numbers);
  rdt_region_close(b->region);
}

static inline int32_t input_at(uint32_t rank, uint64_t index) {
  return (int32_t)((index * 7 + rank * 1000003) % 100000);
}

static inline int32_t sum_at(uint32_t size, uint64_t index) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < size; i++) sum += input_at(i, index);
  return sum;
}

typedef struct {
  rdt_collective_kind kind;
  rdt_algorithm algorithm;
  uint64_t count; /* of the input */
  bool in_place;
  memory_kind memory;
} trial;

/* The root is the last member. */
static inline uint64_t output_count(const trial *t, uint32_t rank, uint32_t size) {
  if ((t->kind == RDT_GATHER || t->kind == RDT_REDUCE) && rank != size - 1) return 0;
  if (t->kind == RDT_ALL_GATHER || t->kind == RDT_GATHER) return t->count * size;
  const bool part = t->kind == RDT_REDUCE_SCATTER || t->kind == RDT_SCATTER;
  return part ? t->count / size : t->count;
}

static inline int32_t expected(const trial *t, uint32_t rank, uint32_t size, uint64_t index) {
  uint64_t part = t->count / size;
  switch (t->kind) {
    case RDT_ALL_REDUCE:
    case RDT_REDUCE:
      return sum_at(size, index);
    case RDT_REDUCE_SCATTER:
      return sum_at(size, rank * part + index);
    case RDT_ALL_GATHER:
    case RDT_GATHER:
      return input_at((uint32_t)(index / t->count), index % t->count);
    case RDT_BROADCAST:
      return input_at(size - 1, index);
    case RDT_SCATTER:
      return input_at(size - 1, rank * part + index);
    default: /* RDT_ALL_TO_ALL */
      return input_at((uint32_t)(index / part), rank * part + index % part);
  }
}

static inline void check_trial(member *members, uint32_t size, const trial *t) {
  task tasks[MEMBERS];
  buffer inputs[MEMBERS], outputs[MEMBERS];
  for (uint32_t i = 0; i < size; i++) {
    const uint64_t results = output_count(t, i, size);
    outputs[i] = buffer_new(members[i].device, results > t->count ? results : t->count, t->memory);
    inputs[i] = t->in_place ? outputs[i] : buffer_new(members[i].device, t->count, t->memory);
    int32_t *input = inputs[i].numbers, *output = outputs[i].numbers;
    const bool gathers = t->kind == RDT_ALL_GATHER || (t->kind == RDT_GATHER && i == size - 1);
    if (t->in_place && gathers) input += i * t->count;
    if (t->in_place && t->kind == RDT_SCATTER && i == size - 1) output += t->count / size * i;
    for (uint64_t j = 0; j < t->count; j++) input[j] = input_at(i, j);
    tasks[i].member = &members[i];
    tasks[i].call = (rdt_collective){.struct_size = sizeof(rdt_collective),
                                     .kind = t->kind,
                                     .dtype = RDT_INT32,
                                     .op = RDT_SUM,
                                     .algorithm = t->algorithm,
                                     .root = size - 1,
                                     .input = input,
                                     .output = output,
                                     .count = t->count,
                                     .timeout_ms = 60000};
  }
  run_tasks(tasks, size);
  for (uint32_t i = 0; i < size; i++) {
    if (tasks[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
    EXPECT_STATUS(RDT_OK, tasks[i].status);
    const int32_t *output = tasks[i].call.output;
    for (uint64_t j = 0; j < output_count(t, i, size); j++)
      if (output[j] != expected(t, i, size, j)) {
        fprintf(stderr, "kind %d, algorithm %d, %llu elements, in place %d: element %llu at %u\n",
                t->kind, t->algorithm, (unsigned long long)t->count, t->in_place,
                (unsigned long long)j, i);
        EXPECT(output[j] == expected(t, i, size, j));
      }
    if (!t->in_place) buffer_free(&inputs[i]);
    buffer_free(&outputs[i]);
  }
}

/* Counts for each way: inside the notification, in one piece, in several. */
static inline void check_kinds(member *members, uint32_t size, memory_kind memory,
                               rdt_algorithm first, rdt_algorithm last) {
  const uint64_t counts[] = {0, 1, 7, 1000, 20000, 150000};
  for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
    for (int kind = RDT_ALL_REDUCE; kind < RDT_BARRIER; kind++)
      for (int algorithm = (int)first; algorithm <= (int)last; algorithm++)
        for (int in_place = 0; in_place < 2; in_place++) {
          if (counts[c] >= 20000 && (in_place ^ algorithm ^ kind) & 1) continue;
          bool parts = kind == RDT_REDUCE_SCATTER || kind == RDT_ALL_TO_ALL || kind == RDT_SCATTER;
          trial t = {(rdt_collective_kind)kind, (rdt_algorithm)algorithm,
                     parts ? counts[c] / size * size : counts[c], in_place, memory};
          check_trial(members, size, &t);
        }
}

/* In an emulated lab each operation takes a hundred times as long. */
static inline bool is_slow(void) { return getenv("RDMATENSOR_TRANSPORTS") != NULL; }

#endif
