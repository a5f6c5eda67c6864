/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of a posted request that transports see. The core's request begins with it.
 */
#ifndef RDT_TRANSPORT_REQUEST_H
#define RDT_TRANSPORT_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct rdt_request {
  atomic_uint holds; /* one of the queue or the poster, and one of each piece that was posted */
  /* A completion wakes a sleeping progress thread. It need not if some thread looks for the completion, or
   * if nobody waits for it. */
  bool wants_event;
} rdt_request;

/* Counts a posted piece of the request. The transport completes each piece once, through rdt_events. */
static inline void rdt_request_hold(rdt_request *request) { atomic_fetch_add(&request->holds, 1); }

#endif
