/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule prepared for execution: its messages are numbered and can be found by their numbers.
 * Programs are kept, because training repeats the same operations.
 */
#ifndef RDT_GROUP_PROGRAM_H
#define RDT_GROUP_PROGRAM_H

#include "group/schedule/schedule.h"

#define RDT_PROGRAMS 32 /* kept by a group */

typedef struct rdt_group_program_step {
  rdt_group_step step;
  uint32_t number; /* of the message in this lane between the two members */
  bool waits;      /* an earlier step of the round writes the same elements */
} rdt_group_program_step;

typedef struct rdt_group_program {
  rdt_schedule_request request; /* without hosts */
  unsigned refs;                /* the keeper's lock protects it */
  uint64_t used;
  rdt_schedule *schedule;
  rdt_group_program_step *steps;
  uint32_t count, lanes;
  uint32_t *lane_begin;       /* lanes + 1 */
  uint32_t *by_message[2];    /* indices of sends and of receives, ordered by lane, peer, number */
  uint32_t message_counts[2]; /* likewise */
  uint64_t longest, total;    /* elements of the longest message, and of all that is sent */
} rdt_group_program;

/* A program of one message, in place. */
typedef struct rdt_group_single {
  rdt_group_program program;
  rdt_schedule schedule;
  rdt_group_program_step step;
  uint32_t lane_begin[2], index;
} rdt_group_single;

typedef struct rdt_group_programs {
  rdt_group_program *kept[RDT_PROGRAMS];
  uint64_t clock;
} rdt_group_programs;

/* Finds or makes the program for the request, and takes a reference. Programs of unequal parts are not kept. The
 * caller serialises these calls. */
rdt_status rdt_group_program_get(rdt_group_programs *programs, const rdt_schedule_request *request,
                                 rdt_group_program **program);
/* Sets the program up for a step of the kind SEND or RECEIVE. The caller releases it as others, and keeps the memory
 * until then. */
rdt_group_program *rdt_group_program_single(rdt_group_single *single, const rdt_group_step *step);
void rdt_group_program_release(rdt_group_program *program);
void rdt_group_programs_clear(rdt_group_programs *programs);

/* Returns the index of the step that the message belongs to, or -1. */
int64_t rdt_group_program_find(const rdt_group_program *program, bool receives, uint32_t lane,
                               uint32_t peer, uint32_t number);
/* Returns true if step `index` must wait for one of [begin, index) that is not done. */
bool rdt_group_program_overlap(const rdt_group_program_step *earlier,
                               const rdt_group_program_step *later);

#endif
