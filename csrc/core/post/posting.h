/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_POSTING_H
#define RDT_CORE_POST_POSTING_H

#include "core/objects.h"

/* What to do when posted operations are complete. */
typedef struct rdt_completion {
  rdt_done_fn done; /* or NULL */
  void *context;
  bool wants_event; /* `done` must run even if nobody polls */
} rdt_completion;

/* Does the same as rdt_channel_post, without trying rdt_channel_post_now. */
rdt_status rdt_channel_post_queued(rdt_channel *channel, const rdt_op *ops, size_t count,
                                   const rdt_completion *completion);
/* Runs reads, writes and atomic operations of a synchronous transport with an empty queue, without lock, copy or
 * allocation. They are complete on return, or *status is an error. Returns false if these
 * operations are not of that kind. */
bool rdt_channel_post_now(rdt_channel *channel, const rdt_op *ops, size_t count,
                          rdt_status *status);
/* Lets the peer reach a registration. The grant is posted and completed like an operation.
 * Returns what rdt_channel_post returns, or RDT_NO_CREDIT: try again. */
rdt_status rdt_channel_post_grant(rdt_channel *channel, rdt_registration *registration,
                                  const rdt_completion *completion);
/* Gives up one hold. The last one completes the posting. */
void rdt_posting_complete(rdt_posting *posting, rdt_status status);
/* Posts what waits in the queue. Call it on the progress thread, or on one that polls the
 * channel. */
void rdt_channel_flush(rdt_channel *channel);
/* Completes what waits in the queue with `why`. */
void rdt_channel_end_queue(rdt_channel *channel, rdt_status why);
/* Ends the queue and stops the endpoint. What is posted completes by itself. */
void rdt_channel_stop(rdt_channel *channel);
/* Lets the transport find out whether the peer's host is still there. Progress thread only. */
void rdt_channel_probe(rdt_channel *channel);

#endif
