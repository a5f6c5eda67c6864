/* SPDX-License-Identifier: Apache-2.0
 *
 * HALVING: as many rounds as the size has bits, or twice that. Rabenseifner's all-reduce, Bruck's
 * all-gather, and a binomial tree to broadcast.
 */
#include "group/schedule/schedule_algorithms.h"

#define BITS_MOST 32

/* The largest power of two of members takes part. Each of the others folds its data into a
 * neighbour's. */
typedef struct halving_member {
  uint32_t bits;  /* 2^bits members take part */
  uint32_t extra; /* the others */
  uint32_t index; /* among those that take part */
  bool folds, takes;
  uint32_t partner; /* the rank that it folds into, or takes from */
} halving_member;

static halving_member place_member(const rdt_schedule_builder *b) {
  const uint32_t size = b->request->size, position = b->topology.position;
  halving_member m = {.bits = 31 - (uint32_t)__builtin_clz(size)};
  m.extra = size - (1u << m.bits);
  const bool pair = position < 2 * m.extra;
  m.index = pair ? position / 2 : position - m.extra;
  m.folds = pair && position % 2 == 1;
  m.takes = pair && position % 2 == 0;
  m.partner = pair ? b->topology.order[position ^ 1] : 0;
  return m;
}

static uint32_t rank_at(const rdt_schedule_builder *b, const halving_member *m, uint32_t index) {
  return b->topology.order[index < m->extra ? 2 * index : index + m->extra];
}

static void send(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                 rdt_schedule_range range, uint64_t longest) {
  RDT_SCHEDULE_PIECES(b, longest) rdt_schedule_send(b, peer, from, range.count);
}

static void receive(rdt_schedule_builder *b, uint32_t peer, rdt_schedule_range range,
                    uint64_t longest) {
  RDT_SCHEDULE_PIECES(b, longest) {
    rdt_schedule_receive(b, peer, rdt_schedule_output(range.at), range.count);
  }
}

static void reduce(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                   rdt_schedule_range range, uint64_t longest, bool completes) {
  RDT_SCHEDULE_PIECES(b, longest) {
    rdt_schedule_reduce(b, peer, from, rdt_schedule_output(range.at), range.count, completes);
  }
}

/* Neighbours, which share a host if any do, exchange the largest halves. */
static void halve_and_double(rdt_schedule_builder *b, const halving_member *m,
                             rdt_schedule_range range) {
  rdt_schedule_range kept[BITS_MOST + 1] = {range};
  for (uint32_t bit = 0; bit < m->bits; bit++, b->round++) {
    const uint32_t peer = rank_at(b, m, m->index ^ (1u << bit)), half = m->index >> bit & 1;
    const rdt_schedule_range given = rdt_schedule_part(kept[bit], 2, !half);
    const bool input = bit == 0 && !m->takes;
    const uint64_t longest = rdt_schedule_part(kept[bit], 2, 0).count;
    kept[bit + 1] = rdt_schedule_part(kept[bit], 2, half);
    send(b, peer, input ? rdt_schedule_input(given.at) : rdt_schedule_output(given.at), given,
         longest);
    const uint64_t at = kept[bit + 1].at;
    reduce(b, peer, input ? rdt_schedule_input(at) : rdt_schedule_output(at), kept[bit + 1],
           longest, bit + 1 == m->bits);
  }
  for (uint32_t bit = m->bits; bit-- > 0; b->round++) {
    const uint32_t peer = rank_at(b, m, m->index ^ (1u << bit)), half = m->index >> bit & 1;
    const uint64_t longest = rdt_schedule_part(kept[bit], 2, 0).count;
    send(b, peer, rdt_schedule_output(kept[bit + 1].at), kept[bit + 1], longest);
    receive(b, peer, rdt_schedule_part(kept[bit], 2, !half), longest);
  }
}

void rdt_schedule_halving_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const halving_member m = place_member(b);
  const rdt_group_place in = rdt_schedule_input(range.at), out = rdt_schedule_output(range.at);
  if (m.folds) send(b, m.partner, in, range, range.count);
  if (m.takes) reduce(b, m.partner, in, range, range.count, false);
  b->round = 1;
  if (!m.folds) halve_and_double(b, &m, range);
  b->round = 1 + 2 * m.bits;
  if (m.takes) send(b, m.partner, out, range, range.count);
  if (m.folds) receive(b, m.partner, range, range.count);
}

/* Parts [first, first + count), modulo size, in rank order: at most two stretches of memory. */
static void list_parts(rdt_schedule_builder *b, rdt_group_step_kind kind, uint32_t peer,
                       uint32_t first, uint32_t count) {
  const rdt_schedule_request *q = b->request;
  const uint32_t begin = first % q->size;
  const uint32_t now = count < q->size - begin ? count : q->size - begin;
  const rdt_schedule_range runs[2] = {{begin * q->count, now * q->count},
                                      {0, (count - now) * q->count}};
  for (int i = 0; i < 2; i++) {
    if (kind == RDT_STEP_SEND) {
      /* Its own part may not have been copied yet in the first round. */
      send(b, peer,
           count == 1 && b->round == 0 ? rdt_schedule_input(0) : rdt_schedule_output(runs[i].at),
           runs[i], runs[i].count);
    } else {
      receive(b, peer, runs[i], runs[i].count);
    }
  }
}

/* Bruck's algorithm, except that parts arrive where they belong. In round k a member sends what
 * it has 2^k ranks down. */
void rdt_schedule_halving_all_gather(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  for (uint32_t have = 1; have < q->size; have *= 2, b->round++) {
    const uint32_t count = have < q->size - have ? have : q->size - have;
    list_parts(b, RDT_STEP_SEND, (q->rank + q->size - have) % q->size, q->rank, count);
    list_parts(b, RDT_STEP_RECEIVE, (q->rank + have) % q->size, q->rank + have, count);
    if (b->round > 0 || q->input_is_output) continue;
    RDT_SCHEDULE_PIECES(b, range.count) {
      rdt_schedule_copy(b, rdt_schedule_input(0), rdt_schedule_output(q->rank * q->count),
                        range.count);
    }
  }
}

/* Whoever has the data sends it half as far as in the round before. */
void rdt_schedule_halving_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_topology *t = &b->topology;
  const uint32_t after = (t->position + q->size - t->origin) % q->size;
  const rdt_group_place from =
      after == 0 ? rdt_schedule_input(range.at) : rdt_schedule_output(range.at);
  const uint32_t rounds = q->size == 1 ? 0 : 32 - (uint32_t)__builtin_clz(q->size - 1);
  if (after == 0) rdt_schedule_copy_input(b, range);
  for (uint32_t reach = 1u << rounds; (reach /= 2) > 0; b->round++) {
    const uint32_t place = after % (2 * reach);
    if (place == 0 && after + reach < q->size)
      send(b, t->order[(t->position + reach) % q->size], from, range, range.count);
    if (place == reach)
      receive(b, t->order[(t->position + q->size - reach) % q->size], range, range.count);
  }
}
