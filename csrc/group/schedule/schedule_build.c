/* SPDX-License-Identifier: Apache-2.0 */
#include "group/schedule/schedule_build.h"

#include <stdlib.h>

#include "base/status.h"

/* Pieces of a message, which bounds the schedule's length whatever the chunk. */
#define PIECES_MOST 256u

static rdt_group_step *append(rdt_schedule_builder *b) {
  rdt_schedule *schedule = b->schedule;
  if (b->status != RDT_OK) return NULL;
  if (schedule->count == b->capacity) {
    const size_t capacity = b->capacity ? 2 * b->capacity : 16;
    rdt_group_step *steps = realloc(schedule->steps, capacity * sizeof *steps);
    if (steps == NULL) {
      b->status = rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a schedule of %zu steps", capacity);
      return NULL;
    }
    schedule->steps = steps;
    b->capacity = capacity;
  }
  return &schedule->steps[schedule->count++];
}

static void add(rdt_schedule_builder *b, rdt_group_step_kind kind, uint32_t peer,
                rdt_group_place from, rdt_group_place to, uint64_t count, bool completes) {
  const rdt_schedule_range piece =
      rdt_schedule_part((rdt_schedule_range){0, count}, b->pieces, b->piece);
  const bool travels = kind == RDT_STEP_SEND || kind == RDT_STEP_RECEIVE;
  if (piece.count == 0 && !(travels && b->request->receive_offsets)) return;
  rdt_group_step *step = append(b);
  if (step == NULL) return;
  *step = (rdt_group_step){.kind = kind,
                           .lane = b->lane,
                           .round = b->round,
                           .peer = peer,
                           .count = piece.count,
                           .completes = completes};
  step->from = (rdt_group_place){from.buffer, from.at + piece.at};
  step->to = (rdt_group_place){to.buffer, to.at + piece.at};
}

void rdt_schedule_send(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                       uint64_t count) {
  add(b, RDT_STEP_SEND, peer, from, from, count, false);
}

void rdt_schedule_receive(rdt_schedule_builder *b, uint32_t peer, rdt_group_place to,
                          uint64_t count) {
  add(b, RDT_STEP_RECEIVE, peer, to, to, count, false);
}

void rdt_schedule_reduce(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                         rdt_group_place to, uint64_t count, bool completes) {
  add(b, RDT_STEP_REDUCE, peer, from, to, count, completes);
}

void rdt_schedule_copy(rdt_schedule_builder *b, rdt_group_place from, rdt_group_place to,
                       uint64_t count) {
  add(b, RDT_STEP_COPY, b->request->rank, from, to, count, false);
}

void rdt_schedule_accumulate(rdt_schedule_builder *b, rdt_group_place from, rdt_group_place to,
                             uint64_t count, bool completes) {
  add(b, RDT_STEP_ACCUMULATE, b->request->rank, from, to, count, completes);
}

void rdt_schedule_copy_input(rdt_schedule_builder *b, rdt_schedule_range range) {
  if (b->request->input_is_output) return;
  RDT_SCHEDULE_PIECES(b, range.count) {
    rdt_schedule_copy(b, rdt_schedule_input(range.at), rdt_schedule_output(range.at), range.count);
  }
}

void rdt_schedule_need_scratch(rdt_schedule_builder *b, uint64_t elements) {
  if (b->schedule->scratch < elements) b->schedule->scratch = elements;
}

uint32_t rdt_schedule_chunks(const rdt_schedule_builder *b, uint64_t count, uint32_t most) {
  const uint64_t chunk = b->request->chunk;
  if (chunk == 0 || count <= chunk) return 1;
  const uint64_t chunks = count / chunk + (count % chunk != 0);
  return chunks < most ? (uint32_t)chunks : most;
}

void rdt_schedule_cut(rdt_schedule_builder *b, uint64_t longest) {
  b->pieces = rdt_schedule_chunks(b, longest, PIECES_MOST);
  b->piece = 0;
}
