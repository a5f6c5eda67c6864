/* SPDX-License-Identifier: Apache-2.0
 *
 * DIRECT: each member reduces, or takes from the root, one part of the data, and then sends it to
 * all. It takes two rounds, in which a member sends the data less than twice.
 */
#include "group/schedule/schedule_algorithms.h"

static rdt_schedule_range part_of(const rdt_schedule_builder *b, rdt_schedule_range range,
                                  uint32_t rank) {
  return rdt_schedule_part(range, b->request->size, rank);
}

static uint32_t peer_after(const rdt_schedule_builder *b, uint32_t k) {
  return (b->request->rank + k) % b->request->size;
}

/* Sends each peer its part of the input. */
static void scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    for (uint32_t k = 1; k < b->request->size; k++) {
      const rdt_schedule_range part = part_of(b, range, peer_after(b, k));
      rdt_schedule_send(b, peer_after(b, k), rdt_schedule_input(part.at), part.count);
    }
  }
}

/* Sends this member's part to all except `except`, and receives theirs. */
static void gather(rdt_schedule_builder *b, rdt_schedule_range range, rdt_group_place from,
                   uint32_t except) {
  const uint32_t size = b->request->size;
  const uint64_t count = part_of(b, range, b->request->rank).count;
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    for (uint32_t k = 1; k < size; k++) {
      if (peer_after(b, k) != except) rdt_schedule_send(b, peer_after(b, k), from, count);
    }
  }
  if (b->request->rank == except) return;
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    for (uint32_t k = size - 1; k > 0; k--) {
      const rdt_schedule_range part = part_of(b, range, peer_after(b, k));
      rdt_schedule_receive(b, peer_after(b, k), rdt_schedule_output(part.at), part.count);
    }
  }
}

void rdt_schedule_direct_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const uint32_t size = b->request->size;
  const rdt_schedule_range mine = part_of(b, range, b->request->rank);
  const rdt_group_place in = rdt_schedule_input(mine.at), sum = rdt_schedule_output(mine.at);
  scatter(b, range);
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    for (uint32_t k = size - 1; k > 0; k--)
      rdt_schedule_reduce(b, peer_after(b, k), k == size - 1 ? in : sum, sum, mine.count, k == 1);
  }
  b->round++;
  gather(b, range, sum, size);
}

/* The others' sums pass through scratch. */
void rdt_schedule_direct_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_range mine = part_of(b, range, q->rank);
  const bool root = q->rank == q->root;
  const rdt_group_place in = rdt_schedule_input(mine.at);
  const rdt_group_place sum = root ? rdt_schedule_output(mine.at) : rdt_schedule_scratch(mine.at);
  if (!root) rdt_schedule_need_scratch(b, mine.at + mine.count);
  scatter(b, range);
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    for (uint32_t k = q->size - 1; k > 0; k--)
      rdt_schedule_reduce(b, peer_after(b, k), k == q->size - 1 ? in : sum, sum, mine.count,
                          k == 1);
  }
  b->round++;
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    if (!root) {
      rdt_schedule_send(b, q->root, sum, mine.count);
      continue;
    }
    for (uint32_t k = q->size - 1; k > 0; k--) {
      const rdt_schedule_range part = part_of(b, range, peer_after(b, k));
      rdt_schedule_receive(b, peer_after(b, k), rdt_schedule_output(part.at), part.count);
    }
  }
}

void rdt_schedule_direct_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_range mine = part_of(b, range, q->rank);
  const bool root = q->rank == q->root;
  const rdt_group_place in = rdt_schedule_input(mine.at), out = rdt_schedule_output(mine.at);
  if (root) scatter(b, range);
  RDT_SCHEDULE_PIECES(b, part_of(b, range, 0).count) {
    if (!root) rdt_schedule_receive(b, q->root, out, mine.count);
  }
  if (root) rdt_schedule_copy_input(b, range);
  b->round++;
  gather(b, range, root ? in : out, q->root);
}
