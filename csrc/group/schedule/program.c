/* SPDX-License-Identifier: Apache-2.0 */
#include "group/schedule/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "group/schedule/schedule_make.h"

/* Builds a dissemination barrier: after the k-th round each member has heard of 2^k others.
 * Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization (1988). */
static rdt_status make_barrier(const rdt_schedule_request *request, rdt_schedule **schedule_out) {
  uint32_t rounds = 0;
  while ((1u << rounds) < request->size) rounds++;
  rdt_schedule *schedule = calloc(1, sizeof(*schedule));
  rdt_group_step *steps = calloc(2 * (size_t)rounds + 1, sizeof(*steps));
  if (!schedule || !steps) {
    free(schedule);
    free(steps);
    return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  }
  for (uint32_t round = 0; round < rounds; round++) {
    uint32_t distance = (1u << round) % request->size;
    rdt_group_step step = {
        .kind = RDT_STEP_SEND, .round = round, .peer = (request->rank + distance) % request->size};
    steps[2 * round] = step;
    step.kind = RDT_STEP_RECEIVE;
    step.peer = (request->rank + request->size - distance) % request->size;
    steps[2 * round + 1] = step;
  }
  *schedule = (rdt_schedule){.steps = steps, .count = 2 * (size_t)rounds, .lanes = 1};
  *schedule_out = schedule;
  return RDT_OK;
}

static bool sends(const rdt_group_step *step) { return step->kind == RDT_STEP_SEND; }

static bool receives(const rdt_group_step *step) {
  return step->kind == RDT_STEP_RECEIVE || step->kind == RDT_STEP_REDUCE;
}

static bool same_round(const rdt_group_step *a, const rdt_group_step *b) {
  return a->lane == b->lane && a->round == b->round;
}

bool rdt_group_program_overlap(const rdt_group_program_step *earlier,
                               const rdt_group_program_step *later) {
  const rdt_group_step *a = &earlier->step, *b = &later->step;
  return !sends(a) && !sends(b) && a->to.buffer == b->to.buffer && a->to.at < b->to.at + b->count &&
         b->to.at < a->to.at + a->count;
}

static bool must_wait(const rdt_group_program *program, uint32_t index) {
  for (uint32_t i = index;
       i-- > 0 && same_round(&program->steps[i].step, &program->steps[index].step);)
    if (rdt_group_program_overlap(&program->steps[i], &program->steps[index])) return true;
  return false;
}

/* Compares in the order of by_message, in which messages are found. */
static int compare(const rdt_group_program_step *a, uint32_t lane, uint32_t peer, uint32_t number) {
  if (a->step.lane != lane) return a->step.lane < lane ? -1 : 1;
  if (a->step.peer != peer) return a->step.peer < peer ? -1 : 1;
  if (a->number != number) return a->number < number ? -1 : 1;
  return 0;
}

static int by_message(const void *left, const void *right, void *steps) {
  const rdt_group_program_step *all = steps, *a = &all[*(const uint32_t *)left],
                               *b = &all[*(const uint32_t *)right];
  return compare(a, b->step.lane, b->step.peer, b->number);
}

/* Numbers the messages of one direction; `counts` has room for each member. */
static void number_messages(rdt_group_program *program, bool (*wanted)(const rdt_group_step *),
                            uint32_t *counts, uint32_t size, int direction) {
  uint32_t lane = UINT32_MAX, *found = program->by_message[direction];
  for (uint32_t i = 0; i < program->count; i++) {
    rdt_group_program_step *each = &program->steps[i];
    if (!wanted(&each->step)) continue;
    if (each->step.lane != lane) memset(counts, 0, size * sizeof(*counts));
    lane = each->step.lane;
    each->number = counts[each->step.peer]++;
    found[program->message_counts[direction]++] = i;
  }
  qsort_r(found, program->message_counts[direction], sizeof(*found), by_message, program->steps);
}

static void fill(rdt_group_program *program) {
  uint32_t lane = 0;
  for (uint32_t i = 0; i < program->count; i++) {
    rdt_group_step *step = &program->schedule->steps[i];
    program->steps[i].step = *step;
    while (lane <= step->lane) program->lane_begin[lane++] = i;
    if (step->kind != RDT_STEP_COPY && step->kind != RDT_STEP_ACCUMULATE &&
        step->count > program->longest)
      program->longest = step->count;
    if (sends(step)) program->total += step->count;
  }
  while (lane <= program->lanes) program->lane_begin[lane++] = program->count;
  for (uint32_t i = 0; i < program->count; i++) program->steps[i].waits = must_wait(program, i);
}

static void program_free(rdt_group_program *program) {
  if (!program) return;
  if (program->schedule) rdt_schedule_free(program->schedule);
  free(program->steps);
  free(program->lane_begin);
  free(program->by_message[0]);
  free(program->by_message[1]);
  free(program);
}

static rdt_status make_schedule(const rdt_schedule_request *request, rdt_schedule **schedule) {
  return request->kind == RDT_BARRIER ? make_barrier(request, schedule)
                                      : rdt_schedule_make(request, schedule);
}

static rdt_status program_make(const rdt_schedule_request *request,
                               rdt_group_program **program_out) {
  rdt_group_program *program = calloc(1, sizeof(*program));
  if (!program) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = make_schedule(request, &program->schedule);
  if (status != RDT_OK) {
    program_free(program);
    return status;
  }
  program->request = *request;
  program->request.hosts = NULL;
  program->request.offsets = program->request.receive_offsets = NULL;
  program->count = (uint32_t)program->schedule->count;
  program->lanes = program->schedule->lanes;
  program->steps = calloc((size_t)program->count + 1, sizeof(*program->steps));
  program->lane_begin = calloc((size_t)program->lanes + 1, sizeof(uint32_t));
  program->by_message[0] = calloc((size_t)program->count + 1, sizeof(uint32_t));
  program->by_message[1] = calloc((size_t)program->count + 1, sizeof(uint32_t));
  uint32_t *counts = calloc(request->size, sizeof(*counts));
  bool made = program->steps && program->lane_begin && program->by_message[0] &&
              program->by_message[1] && counts;
  if (made) {
    fill(program);
    number_messages(program, sends, counts, request->size, 0);
    number_messages(program, receives, counts, request->size, 1);
  }
  free(counts);
  if (!made) {
    program_free(program);
    return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  }
  *program_out = program;
  return RDT_OK;
}

static bool same_request(const rdt_schedule_request *a, const rdt_schedule_request *b) {
  return a->kind == b->kind && a->algorithm == b->algorithm && a->count == b->count &&
         a->chunk == b->chunk && a->root == b->root && a->input_is_output == b->input_is_output &&
         a->trees == b->trees;
}

rdt_group_program *rdt_group_program_single(rdt_group_single *single, const rdt_group_step *step) {
  const bool receiving = receives(step);
  *single = (rdt_group_single){.schedule = {.lanes = 1},
                               .step = {.step = *step},
                               .lane_begin = {0, 1},
                               .program = {.refs = 2, /* never freed */
                                           .count = 1,
                                           .lanes = 1,
                                           .longest = step->count}};
  rdt_group_program *program = &single->program;
  program->schedule = &single->schedule;
  program->steps = &single->step;
  program->lane_begin = single->lane_begin;
  program->by_message[receiving] = &single->index;
  program->message_counts[receiving] = 1;
  program->request.count = step->count;
  program->total = receiving ? 0 : step->count;
  return program;
}

void rdt_group_program_release(rdt_group_program *program) {
  if (program && --program->refs == 0) program_free(program);
}

rdt_status rdt_group_program_get(rdt_group_programs *programs, const rdt_schedule_request *request,
                                 rdt_group_program **program) {
  if (request->offsets) {
    rdt_status status = program_make(request, program);
    if (status == RDT_OK) (*program)->refs = 1;
    return status;
  }
  rdt_group_program **oldest = &programs->kept[0];
  for (size_t i = 0; i < RDT_PROGRAMS; i++) {
    rdt_group_program **each = &programs->kept[i];
    if (*each && same_request(&(*each)->request, request)) {
      (*each)->used = ++programs->clock;
      (*each)->refs++;
      *program = *each;
      return RDT_OK;
    }
    if (*oldest && (!*each || (*each)->used < (*oldest)->used)) oldest = each;
  }
  rdt_status status = program_make(request, program);
  if (status != RDT_OK) return status;
  rdt_group_program_release(*oldest);
  *oldest = *program;
  (*program)->used = ++programs->clock;
  (*program)->refs = 2; /* the keeper's and the caller's */
  return RDT_OK;
}

void rdt_group_programs_clear(rdt_group_programs *programs) {
  for (size_t i = 0; i < RDT_PROGRAMS; i++) {
    rdt_group_program_release(programs->kept[i]);
    programs->kept[i] = NULL;
  }
}

int64_t rdt_group_program_find(const rdt_group_program *program, bool receiving, uint32_t lane,
                               uint32_t peer, uint32_t number) {
  const uint32_t *found = program->by_message[receiving];
  uint32_t low = 0, high = program->message_counts[receiving];
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = compare(&program->steps[found[middle]], lane, peer, number);
    if (order == 0) return found[middle];
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}
