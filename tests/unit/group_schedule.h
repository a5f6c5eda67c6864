/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedules of all members of a group, with memory to execute them in.
 */
#ifndef RDT_TESTS_GROUP_SCHEDULE_H
#define RDT_TESTS_GROUP_SCHEDULE_H

#include "group/schedule/schedule_make.h"
#include "unit.h"

#define MEMBERS_MOST 40u
#define LANES_MOST 480u

/* The exact sum finds wrong results, whatever the order; the rounded one finds differing orders. A sum is completed
 * once, by the last step that adds to it. */
typedef struct element {
  uint64_t exact;
  float rounded;
  uint32_t completed; /* by how many steps that say so */
} element;

/* The steps of a lane's present round, and how many of them are not done. */
typedef struct lane_round {
  size_t begin, end, left;
} lane_round;

/* A member's memory is one array: output, then scratch, then the input where that is apart. */
typedef struct member {
  rdt_schedule *schedule;
  element *memory;
  uint64_t input_at, output_at, scratch_at, size;
  bool *done;    /* by step */
  size_t *sends; /* by step that receives: the peer's step that sends */
  lane_round rounds[LANES_MOST];
} member;

typedef struct trial {
  rdt_schedule_request request; /* rank is not used */
  uint64_t input_count, output_count;
  member members[MEMBERS_MOST];
  uint64_t random;
} trial;

static inline uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static inline bool receives(const rdt_group_step *step) {
  return step->kind == RDT_STEP_RECEIVE || step->kind == RDT_STEP_REDUCE;
}
static inline bool writes(const rdt_group_step *step) { return step->kind != RDT_STEP_SEND; }
static inline bool reads(const rdt_group_step *step) { return step->kind != RDT_STEP_RECEIVE; }

static inline uint64_t address(const member *m, rdt_group_place place) {
  const uint64_t base = place.buffer == RDT_BUFFER_INPUT     ? m->input_at
                        : place.buffer == RDT_BUFFER_SCRATCH ? m->scratch_at
                                                             : m->output_at;
  return base + place.at;
}

static inline bool overlap(uint64_t a, uint64_t b, uint64_t count, uint64_t other) {
  return a < b + other && b < a + count;
}

static inline element input_of(uint32_t rank, uint64_t i) {
  uint64_t state = (rank + 1) * 0x9e3779b97f4a7c15u + (i + 1) * 0xbf58476d1ce4e5b9u;
  const uint64_t bits = next_random(&state);
  return (element){bits, (float)(bits % 100003) / 7.0f, 0};
}

static inline void set_up_member(trial *t, uint32_t rank) {
  member *m = &t->members[rank];
  rdt_schedule_request request = t->request;
  request.rank = rank;
  EXPECT_STATUS(RDT_OK, rdt_schedule_make(&request, &m->schedule));
  EXPECT(m->schedule->lanes <= LANES_MOST);
  const bool gather =
      request.kind == RDT_ALL_GATHER || (request.kind == RDT_GATHER && rank == request.root);
  const uint64_t shared = t->input_count > t->output_count ? t->input_count : t->output_count;
  m->scratch_at = request.input_is_output ? shared : t->output_count;
  const uint64_t end = m->scratch_at + m->schedule->scratch;
  m->input_at = !request.input_is_output ? end : gather ? rank * request.count : 0;
  m->output_at = 0;
  if (request.input_is_output && request.kind == RDT_SCATTER && rank == request.root)
    m->output_at = rank * (request.count / request.size);
  m->size = request.input_is_output ? end : end + t->input_count;
  m->memory = malloc(m->size * sizeof *m->memory + 1);
  m->done = calloc(m->schedule->count + 1, sizeof *m->done);
  m->sends = calloc(m->schedule->count + 1, sizeof *m->sends);
  EXPECT(m->memory != NULL && m->done != NULL && m->sends != NULL);
  for (uint64_t i = 0; i < m->size; i++) m->memory[i] = (element){0xbadbadbadu + i, -1e30f, 0};
  for (uint64_t i = 0; i < t->input_count; i++) m->memory[m->input_at + i] = input_of(rank, i);
}

static inline void set_up(trial *t) {
  const rdt_schedule_request *q = &t->request;
  t->input_count = q->count;
  const bool gathers = q->kind == RDT_ALL_GATHER || q->kind == RDT_GATHER,
             divides = q->kind == RDT_REDUCE_SCATTER || q->kind == RDT_SCATTER;
  t->output_count = gathers ? q->count * q->size : divides ? q->count / q->size : q->count;
  for (uint32_t rank = 0; rank < q->size; rank++) set_up_member(t, rank);
}

static inline void tear_down(trial *t) {
  for (uint32_t rank = 0; rank < t->request.size; rank++) {
    rdt_schedule_free(t->members[rank].schedule);
    free(t->members[rank].memory);
    free(t->members[rank].done);
    free(t->members[rank].sends);
  }
}

#endif
