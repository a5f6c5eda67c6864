/* SPDX-License-Identifier: Apache-2.0
 *
 * What one member does in a collective operation, as data: pure functions make it, the engine executes
 * it, tests run it without any transport.
 *
 * A schedule has lanes, which progress independently of each other (that is how transfers overlap
 * with reductions). A lane has rounds, one after the other: a round is over when all its steps are,
 * sends included. Steps of one round run in any order, except that those that write the same elements run
 * in the order listed, so that every member gets the same bits.
 *
 * A peer may read what is sent at any time until the send is over. Therefore no step writes elements that a
 * send of the same round, or any step of another lane, reads; nor does a step read what another of its
 * round writes, unless it writes there too. With input_is_output that holds for the shared memory.
 *
 * The n-th send of a lane from one member to another is the message that the n-th receive (RECEIVE or
 * REDUCE) of the same lane at the other expects from it: both have the same number of elements.
 */
#ifndef RDT_GROUP_SCHEDULE_H
#define RDT_GROUP_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

typedef enum rdt_group_buffer {
  RDT_BUFFER_INPUT,
  RDT_BUFFER_OUTPUT,
  RDT_BUFFER_SCRATCH
} rdt_group_buffer;

typedef enum rdt_group_step_kind {
  RDT_STEP_SEND,      /* from -> peer */
  RDT_STEP_RECEIVE,   /* peer -> to */
  RDT_STEP_REDUCE,    /* to = from op (what peer sends); `from` may be `to` */
  RDT_STEP_COPY,      /* to = from, both here */
  RDT_STEP_ACCUMULATE /* to = to op from, both here */
} rdt_group_step_kind;

/* `count` elements (of the step) of one of the operation's buffers, beginning with element `at`. */
typedef struct rdt_group_place {
  rdt_group_buffer buffer;
  uint64_t at;
} rdt_group_place;

typedef struct rdt_group_step {
  rdt_group_step_kind kind;
  uint32_t lane, round; /* sorted by lane, then round */
  uint32_t peer;        /* rank; unused in COPY and ACCUMULATE */
  uint64_t count;       /* elements; 0 only in an ALL_TO_ALL with offsets */
  bool completes;       /* of REDUCE and ACCUMULATE: `to` has every member's elements then */
  rdt_group_place from, to;
} rdt_group_step;

typedef struct rdt_schedule {
  rdt_group_step *steps;
  size_t count;
  uint32_t lanes;
  uint64_t scratch; /* elements that RDT_BUFFER_SCRATCH must have */
} rdt_schedule;

/* Everything that a schedule depends on. It is the same at every member, except `rank`. */
typedef struct rdt_schedule_request {
  rdt_collective_kind
      kind; /* not BARRIER, which is an exchange of empty messages; not SEND or RECEIVE */
  rdt_algorithm algorithm; /* not AUTO */
  uint32_t rank, size, root;
  uint64_t count; /* elements, as in rdt_collective */
  /* NULL: members have equal parts. Otherwise size + 1 numbers: member r's part is [offsets[r], offsets[r + 1]).
   * Then the algorithm is FLAT, and messages are not cut. */
  const uint64_t *offsets;
  const uint64_t *receive_offsets; /* of ALL_TO_ALL with offsets: where it receives from each */
  uint64_t chunk;        /* the most elements that one message should carry; 0 for no limit */
  const uint32_t *hosts; /* `size` numbers: members with the same one share a host */
  const struct rdt_trees *trees; /* of TREES; may be NULL, and RING serves */
  bool input_is_output; /* the input needs no copy where it is already in the result's place */
} rdt_schedule_request;

void rdt_schedule_free(rdt_schedule *schedule);

#endif
