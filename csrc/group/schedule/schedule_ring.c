/* SPDX-License-Identifier: Apache-2.0
 *
 * RING: each member sends to the next one only, so that every link carries as little as possible.
 * Members of one host are neighbours. All-to-all exchanges between pairs, one after the other.
 */
#include "group/schedule/schedule_algorithms.h"

/* Returns the rank `k` places further round the ring. k may be negative, but not below -size. */
static uint32_t neighbour(const rdt_schedule_builder *b, int64_t k) {
  const int64_t size = b->request->size;
  return b->topology.order[(b->topology.position + size + k) % size];
}

/* Returns the part of the member `k` places further, by its place in the ring. */
static rdt_schedule_range part_after(const rdt_schedule_builder *b, rdt_schedule_range range,
                                     int64_t k) {
  const int64_t size = b->request->size;
  return rdt_schedule_part(range, (uint64_t)size,
                           (uint64_t)(b->topology.position + 2 * size + k) % (uint64_t)size);
}

/* Lists one round: sends `sent` to the next member, and stores what comes from the previous one,
 * added to `with` unless that is NULL, in `received`. */
typedef struct ring_move {
  rdt_group_place sent, received;
  const rdt_group_place *with;
  uint64_t sent_count, received_count, longest;
  bool completes;
} ring_move;

static void list_move(rdt_schedule_builder *b, ring_move move) {
  const uint32_t next = neighbour(b, 1), last = neighbour(b, -1);
  RDT_SCHEDULE_PIECES(b, move.longest) rdt_schedule_send(b, next, move.sent, move.sent_count);
  RDT_SCHEDULE_PIECES(b, move.longest) {
    if (move.with != NULL) {
      rdt_schedule_reduce(b, last, *move.with, move.received, move.received_count, move.completes);
    } else {
      rdt_schedule_receive(b, last, move.received, move.received_count);
    }
  }
}

/* Partial sums of all parts go round once; then the sums do. */
void rdt_schedule_ring_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const int64_t sums = (int64_t)b->request->size - 1;
  const uint64_t longest = rdt_schedule_part(range, b->request->size, 0).count;
  for (int64_t t = 0; t < 2 * sums; t++, b->round++) {
    const rdt_schedule_range sent = part_after(b, range, -t),
                             received = part_after(b, range, -t - 1);
    const rdt_group_place with = rdt_schedule_input(received.at);
    const rdt_group_place from =
        t == 0 ? rdt_schedule_input(sent.at) : rdt_schedule_output(sent.at);
    list_move(b, (ring_move){from, rdt_schedule_output(received.at), t < sums ? &with : NULL,
                             sent.count, received.count, longest, t + 1 == sums});
  }
}

/* Partial sums alternate between two places: one is sent while the other is computed. */
void rdt_schedule_ring_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const uint64_t part = q->count / q->size, count = range.count;
  const int64_t rounds = (int64_t)q->size - 1;
  rdt_group_place sum = rdt_schedule_input(neighbour(b, -1) * part + range.at);
  rdt_schedule_need_scratch(b, 2 * part);
  for (int64_t t = 0; t < rounds; t++, b->round++) {
    const rdt_group_place with = rdt_schedule_input(neighbour(b, -2 - t) * part + range.at);
    const bool end = t == rounds - 1 && !q->input_is_output;
    const rdt_group_place to = end ? rdt_schedule_output(range.at)
                                   : rdt_schedule_scratch((uint64_t)(t % 2) * part + range.at);
    list_move(b, (ring_move){sum, to, &with, count, count, count, t + 1 == rounds});
    sum = to;
  }
  if (!q->input_is_output) return;
  RDT_SCHEDULE_PIECES(b, count) rdt_schedule_copy(b, sum, rdt_schedule_output(range.at), count);
}

void rdt_schedule_ring_all_gather(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(range.at);
  const rdt_group_place mine = rdt_schedule_output(q->rank * q->count + range.at);
  for (int64_t t = 0; t + 1 < q->size; t++, b->round++) {
    const rdt_group_place sent = rdt_schedule_output(neighbour(b, -t) * q->count + range.at);
    const rdt_group_place received =
        rdt_schedule_output(neighbour(b, -t - 1) * q->count + range.at);
    list_move(b, (ring_move){t == 0 ? in : sent, received, NULL, range.count, range.count,
                             range.count, false});
    if (t > 0 || q->input_is_output) continue;
    RDT_SCHEDULE_PIECES(b, range.count) rdt_schedule_copy(b, in, mine, range.count);
  }
}

/* A chain from the root: a member passes one piece on while it receives the next. */
void rdt_schedule_ring_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_topology *ring = &b->topology;
  const uint32_t after = (ring->position + q->size - ring->origin) % q->size;
  const rdt_group_place in = rdt_schedule_input(range.at), out = rdt_schedule_output(range.at);
  rdt_schedule_cut(b, range.count);
  const uint32_t rounds = q->size + b->pieces - 2;
  for (b->round = 0; b->round < rounds; b->round++) {
    b->piece = b->round - after;
    if (b->round >= after && b->piece < b->pieces) {
      if (after + 1 < q->size)
        rdt_schedule_send(b, neighbour(b, 1), after == 0 ? in : out, range.count);
      if (after == 0 && !q->input_is_output) rdt_schedule_copy(b, in, out, range.count);
    }
    b->piece = b->round + 1 - after;
    if (after > 0 && b->round + 1 >= after && b->piece < b->pieces)
      rdt_schedule_receive(b, neighbour(b, -1), out, range.count);
  }
}

/* Round k pairs the members whose ranks add up to k, modulo size. In place, a received part
 * waits in scratch until the partner has read the part that it replaces. */
void rdt_schedule_ring_all_to_all(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const uint64_t part = q->count / q->size, count = range.count;
  rdt_group_place from = {0}, to = {0};
  bool waiting = false;
  for (uint32_t k = 0; k <= q->size; k++, b->round++) {
    if (waiting) RDT_SCHEDULE_PIECES(b, count) rdt_schedule_copy(b, from, to, count);
    waiting = false;
    if (k == q->size) break;
    const uint32_t partner = (k + q->size - q->rank) % q->size;
    const rdt_group_place in = rdt_schedule_input(partner * part + range.at);
    to = rdt_schedule_output(in.at);
    if (partner == q->rank) {
      if (!q->input_is_output) RDT_SCHEDULE_PIECES(b, count) rdt_schedule_copy(b, in, to, count);
      continue;
    }
    from = q->input_is_output ? rdt_schedule_scratch(k % 2 * part + range.at) : to;
    waiting = q->input_is_output;
    RDT_SCHEDULE_PIECES(b, count) rdt_schedule_send(b, partner, in, count);
    RDT_SCHEDULE_PIECES(b, count) rdt_schedule_receive(b, partner, from, count);
  }
  if (q->input_is_output) rdt_schedule_need_scratch(b, 2 * part);
}
