/* SPDX-License-Identifier: Apache-2.0
 *
 * Event queues (rdt_event_queue), and the events that come over them. Whoever announces an event allocates nothing
 * and never waits, so the progress thread may.
 */
#ifndef RDT_CORE_POST_EVENTS_H
#define RDT_CORE_POST_EVENTS_H

#include <stdbool.h>

#include "rdmatensor.h"

typedef struct rdt_event {
  struct rdt_event *next; /* in the list of what it watches */
  /* The queue's: its place among those that are ready, and whether the queue frees it once it is taken. */
  struct rdt_event *next_ready;
  bool ready, last;
  rdt_event_queue *queue; /* held */
  uint64_t token;
} rdt_event;

/* Returns NULL, with the error, if there is no memory. */
rdt_event *rdt_event_new(rdt_event_queue *queue, uint64_t token);
/* Puts the token into the queue, unless it is there already. */
void rdt_event_announce(rdt_event *event);
/* Does that for the last time, and gives the event up. */
void rdt_event_announce_last(rdt_event *event);
/* Withdraws the token, and frees the event. */
void rdt_event_free(rdt_event *event);

#endif
