/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces of requests that are done, and that FAULTS=drop and delay= report never or later.
 */
#ifndef RDT_TRANSPORT_FAULT_HELD_H
#define RDT_TRANSPORT_FAULT_HELD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

/* The time at which such a piece is due that is reported when its endpoint is aborted. */
#define RDT_HELD_NEVER INT64_MAX

/* The pieces of an endpoint. Thread-safe. */
typedef struct rdt_held {
  pthread_mutex_t lock;
  struct rdt_held_piece *first;
  atomic_uint count, due; /* due: those that are ever due */
} rdt_held;

void rdt_held_init(rdt_held *held);
/* Nothing may be held. */
void rdt_held_destroy(rdt_held *held);

/* Keeps a piece to report it with `status` at `due_us` of rdt_now_us. The request does not count a `fresh` piece yet.
 * Returns false if there is no memory; the piece is then reported as usual. */
bool rdt_held_add(rdt_held *held, rdt_request *request, bool fresh, rdt_status status,
                  int64_t due_us);
/* Reports the pieces that are due by `now_us`, and returns their number. With RDT_HELD_NEVER all are. */
int rdt_held_report(rdt_held *held, int64_t now_us, const char *peer, const rdt_events *events);
/* Returns whether nothing is held. */
bool rdt_held_none(const rdt_held *held);
/* Returns whether something is held that will be due. */
bool rdt_held_due(const rdt_held *held);

/* Returns RDT_ERR_CONNECTION_LOST, with the message of an injected fault. */
rdt_status rdt_held_broken(const char *peer);

#endif
