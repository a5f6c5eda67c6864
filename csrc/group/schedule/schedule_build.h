/* SPDX-License-Identifier: Apache-2.0
 *
 * What the algorithms share: ranges of elements, and a builder that lists steps.
 */
#ifndef RDT_GROUP_SCHEDULE_BUILD_H
#define RDT_GROUP_SCHEDULE_BUILD_H

#include "group/schedule/schedule.h"

/* The elements [at, at + count) of the data. */
typedef struct rdt_schedule_range {
  uint64_t at, count;
} rdt_schedule_range;

/* The i-th of n nearly equal parts of a range, the longer ones first. */
static inline rdt_schedule_range rdt_schedule_part(rdt_schedule_range range, uint64_t n,
                                                   uint64_t i) {
  const uint64_t least = range.count / n, longer = range.count % n;
  const uint64_t before = i < longer ? i : longer;
  return (rdt_schedule_range){range.at + i * least + before, least + (i < longer)};
}

/* The lane's share of a member's part of the data: `range` of its `part` elements, or all if members have unequal
 * parts. */
static inline rdt_schedule_range rdt_schedule_share(const uint64_t *offsets, uint64_t part,
                                                    uint32_t member, rdt_schedule_range range) {
  if (offsets) return (rdt_schedule_range){offsets[member], offsets[member + 1] - offsets[member]};
  return (rdt_schedule_range){member * part + range.at, range.count};
}

/* The members sorted by host, so that neighbours share one where they can. */
typedef struct rdt_schedule_topology {
  uint32_t *order;      /* ranks; those of host h are order[starts[h]] .. order[starts[h+1]-1] */
  uint32_t *starts;     /* hosts + 1 */
  uint32_t hosts;       /* how many there are */
  uint32_t least;       /* members on the host that has the fewest */
  uint32_t host, local; /* this member's host, and its index on it */
  uint32_t position, origin; /* positions of this member and of the root in `order` */
  uint32_t origin_host;
} rdt_schedule_topology;

typedef struct rdt_schedule_builder {
  const rdt_schedule_request *request;
  rdt_schedule_topology topology;
  rdt_schedule *schedule;
  size_t capacity;
  uint32_t lane, round;   /* of the steps listed from here on */
  uint32_t piece, pieces; /* steps are cut into `pieces`, and listed for one piece: see below */
  rdt_status status;      /* RDT_OK, or why steps are missing */
} rdt_schedule_builder;

/* A long message is sent as several shorter ones. This loop lists steps of at most `longest`
 * elements (the same number at both ends of a message) piece by piece. A round lists its sends
 * before its receives, so that transfers begin early and sums stay in the cache. */
#define RDT_SCHEDULE_PIECES(b, longest) \
  for (rdt_schedule_cut((b), (longest)); (b)->piece < (b)->pieces; (b)->piece++)
void rdt_schedule_cut(rdt_schedule_builder *b, uint64_t longest);

/* List the current piece of a step over `count` elements, unless it is empty. Where a member alone knows what it
 * sends, in an ALL_TO_ALL with offsets, empty messages are listed too, so that members notice when they differ. */
void rdt_schedule_send(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                       uint64_t count);
void rdt_schedule_receive(rdt_schedule_builder *b, uint32_t peer, rdt_group_place to,
                          uint64_t count);
void rdt_schedule_reduce(rdt_schedule_builder *b, uint32_t peer, rdt_group_place from,
                         rdt_group_place to, uint64_t count, bool completes);
void rdt_schedule_copy(rdt_schedule_builder *b, rdt_group_place from, rdt_group_place to,
                       uint64_t count);
void rdt_schedule_accumulate(rdt_schedule_builder *b, rdt_group_place from, rdt_group_place to,
                             uint64_t count, bool completes);
/* Copies the input to its place in the output, unless it is there already. Cuts into pieces
 * itself. */
void rdt_schedule_copy_input(rdt_schedule_builder *b, rdt_schedule_range range);
/* Ensures that scratch has at least so many elements. */
void rdt_schedule_need_scratch(rdt_schedule_builder *b, uint64_t elements);

static inline rdt_group_place rdt_schedule_input(uint64_t at) {
  return (rdt_group_place){RDT_BUFFER_INPUT, at};
}
static inline rdt_group_place rdt_schedule_output(uint64_t at) {
  return (rdt_group_place){RDT_BUFFER_OUTPUT, at};
}
static inline rdt_group_place rdt_schedule_scratch(uint64_t at) {
  return (rdt_group_place){RDT_BUFFER_SCRATCH, at};
}

/* Returns the number of chunks in `count` elements: at least 1 and at most `most`. */
uint32_t rdt_schedule_chunks(const rdt_schedule_builder *b, uint64_t count, uint32_t most);

#endif
