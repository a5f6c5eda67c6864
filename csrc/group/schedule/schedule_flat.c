/* SPDX-License-Identifier: Apache-2.0
 *
 * FLAT: every member sends each other member what it needs, all at once. It takes the fewest
 * rounds.
 */
#include "group/schedule/schedule_algorithms.h"

static uint32_t peer_after(const rdt_schedule_builder *b, uint32_t k) {
  return (b->request->rank + k) % b->request->size;
}

static uint32_t peer_before(const rdt_schedule_builder *b, uint32_t k) {
  return (b->request->rank + b->request->size - k) % b->request->size;
}

/* Sends each other member its part of the input: the current piece. */
static void send_parts(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  for (uint32_t k = 1; k < q->size; k++) {
    const uint32_t peer = peer_after(b, k);
    const rdt_schedule_range its = rdt_schedule_share(q->offsets, q->count / q->size, peer, range);
    rdt_schedule_send(b, peer, rdt_schedule_input(its.at), its.count);
  }
}

/* Everybody adds up everything in rank order, so that all get the same bits. */
void rdt_schedule_flat_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(range.at), out = rdt_schedule_output(range.at);
  /* In place, peers still read the input while the sum grows. */
  const rdt_group_place sum = q->input_is_output ? rdt_schedule_scratch(range.at) : out;
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++) rdt_schedule_send(b, peer_after(b, k), in, range.count);
  }
  RDT_SCHEDULE_PIECES(b, range.count) {
    if (q->rank > 1) rdt_schedule_receive(b, 0, sum, range.count);
    /* Two operands may be swapped without a change in the bits: see reduce.h. */
    if (q->rank <= 1) rdt_schedule_reduce(b, 1 - q->rank, in, sum, range.count, q->size == 2);
    for (uint32_t peer = q->rank > 1 ? 1 : 2; peer < q->size; peer++) {
      const bool last = peer + 1 == q->size;
      if (peer == q->rank) {
        rdt_schedule_accumulate(b, in, sum, range.count, last);
      } else {
        rdt_schedule_reduce(b, peer, sum, sum, range.count, last);
      }
    }
  }
  if (!q->input_is_output) return;
  rdt_schedule_need_scratch(b, range.at + range.count);
  b->round++;
  RDT_SCHEDULE_PIECES(b, range.count) rdt_schedule_copy(b, sum, out, range.count);
}

void rdt_schedule_flat_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(range.at), out = rdt_schedule_output(range.at);
  RDT_SCHEDULE_PIECES(b, range.count) {
    if (q->rank != q->root) {
      rdt_schedule_receive(b, q->root, out, range.count);
      continue;
    }
    for (uint32_t k = 1; k < q->size; k++) rdt_schedule_send(b, peer_after(b, k), in, range.count);
  }
  if (q->rank == q->root) rdt_schedule_copy_input(b, range);
}

/* Each member adds up its part of everybody's input. */
void rdt_schedule_flat_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_range mine =
      rdt_schedule_share(q->offsets, q->count / q->size, q->rank, range);
  const uint64_t at = q->offsets ? 0 : range.at, count = mine.count;
  const rdt_group_place in = rdt_schedule_input(mine.at), out = rdt_schedule_output(at);
  const rdt_group_place sum = q->input_is_output ? rdt_schedule_scratch(at) : out;
  RDT_SCHEDULE_PIECES(b, range.count) send_parts(b, range);
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++)
      rdt_schedule_reduce(b, peer_before(b, k), k == 1 ? in : sum, sum, count, k + 1 == q->size);
  }
  if (!q->input_is_output) return;
  rdt_schedule_need_scratch(b, at + count);
  b->round++;
  RDT_SCHEDULE_PIECES(b, range.count) rdt_schedule_copy(b, sum, out, count);
}

/* Receives the others' parts, and copies this member's. */
static void collect(rdt_schedule_builder *b, rdt_schedule_range range, rdt_group_place in) {
  const rdt_schedule_request *q = b->request;
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++) {
      const uint32_t peer = peer_before(b, k);
      const rdt_schedule_range its = rdt_schedule_share(q->offsets, q->count, peer, range);
      rdt_schedule_receive(b, peer, rdt_schedule_output(its.at), its.count);
    }
    const rdt_schedule_range mine = rdt_schedule_share(q->offsets, q->count, q->rank, range);
    if (!q->input_is_output) rdt_schedule_copy(b, in, rdt_schedule_output(mine.at), mine.count);
  }
}

void rdt_schedule_flat_all_gather(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(q->offsets ? 0 : range.at);
  const uint64_t count = rdt_schedule_share(q->offsets, q->count, q->rank, range).count;
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++) rdt_schedule_send(b, peer_after(b, k), in, count);
  }
  collect(b, range, in);
}

void rdt_schedule_flat_gather(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(q->offsets ? 0 : range.at);
  const uint64_t count = rdt_schedule_share(q->offsets, q->count, q->rank, range).count;
  if (q->rank == q->root) {
    collect(b, range, in);
    return;
  }
  RDT_SCHEDULE_PIECES(b, range.count) rdt_schedule_send(b, q->root, in, count);
}

void rdt_schedule_flat_scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_range mine =
      rdt_schedule_share(q->offsets, q->count / q->size, q->rank, range);
  const rdt_group_place out = rdt_schedule_output(q->offsets ? 0 : range.at);
  RDT_SCHEDULE_PIECES(b, range.count) {
    if (q->rank != q->root) {
      rdt_schedule_receive(b, q->root, out, mine.count);
      continue;
    }
    send_parts(b, range);
    if (!q->input_is_output) rdt_schedule_copy(b, rdt_schedule_input(mine.at), out, mine.count);
  }
}

/* The root adds up everybody's input. Nobody reads its memory meanwhile, so the sum may replace its input. */
void rdt_schedule_flat_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_group_place in = rdt_schedule_input(range.at), sum = rdt_schedule_output(range.at);
  RDT_SCHEDULE_PIECES(b, range.count) {
    if (q->rank != q->root) {
      rdt_schedule_send(b, q->root, in, range.count);
      continue;
    }
    for (uint32_t k = 1; k < q->size; k++)
      rdt_schedule_reduce(b, peer_after(b, k), k == 1 ? in : sum, sum, range.count,
                          k + 1 == q->size);
  }
}

/* In place, a peer may still read the part that its own part will replace, so received parts
 * wait in scratch. Unequal parts do not run in place; without input or output there is nothing in its place. */
void rdt_schedule_flat_all_to_all(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const uint64_t part = q->count / q->size;
  const bool in_place = q->input_is_output && !q->offsets;
  RDT_SCHEDULE_PIECES(b, range.count) send_parts(b, range);
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++) {
      const uint32_t peer = peer_before(b, k);
      const rdt_schedule_range its = rdt_schedule_share(q->receive_offsets, part, peer, range);
      rdt_schedule_receive(b, peer,
                           in_place ? rdt_schedule_scratch(its.at) : rdt_schedule_output(its.at),
                           its.count);
    }
    const rdt_schedule_range from = rdt_schedule_share(q->offsets, part, q->rank, range),
                             to = rdt_schedule_share(q->receive_offsets, part, q->rank, range);
    if (!in_place)
      rdt_schedule_copy(b, rdt_schedule_input(from.at), rdt_schedule_output(to.at), to.count);
  }
  if (!in_place) return;
  rdt_schedule_need_scratch(b, q->count);
  b->round++;
  RDT_SCHEDULE_PIECES(b, range.count) {
    for (uint32_t k = 1; k < q->size; k++) {
      const uint64_t at = peer_after(b, k) * part + range.at;
      rdt_schedule_copy(b, rdt_schedule_scratch(at), rdt_schedule_output(at), range.count);
    }
  }
}
