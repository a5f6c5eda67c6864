/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_POSTING_H
#define RDT_CORE_POST_POSTING_H

#include "core/objects.h"

/* What happens when posted operations are complete. */
typedef struct rdt_completion {
  rdt_done_fn done; /* or NULL */
  void *context;
  bool wants_event; /* `done` has to run without anybody looking for completions */
} rdt_completion;

/* As rdt_channel_post, but does not try rdt_channel_post_now. */
rdt_status rdt_channel_post_queued(rdt_channel *channel, const rdt_op *ops, size_t count,
                                   const rdt_completion *completion);
/* Posts reads and writes of a synchronous transport that nothing is queued before: complete on return, or an
 * error in *status; without lock, copy or memory. False if these operations are not of that kind. */
bool rdt_channel_post_now(rdt_channel *channel, const rdt_op *ops, size_t count,
                          rdt_status *status);
/* Has the transport let the peer reach a registration: posted and completed like an operation. As
 * rdt_channel_post, and RDT_NO_CREDIT, which may be tried again. */
rdt_status rdt_channel_post_grant(rdt_channel *channel, rdt_registration *registration,
                                  const rdt_completion *completion);
/* Gives up one hold; the last one completes it. */
void rdt_posting_complete(rdt_posting *posting, rdt_status status);
/* Posts what waits in the queue; on the progress thread, or one that polls the channel. */
void rdt_channel_flush(rdt_channel *channel);
/* Completes what waits in the queue with `why`. */
void rdt_channel_end_queue(rdt_channel *channel, rdt_status why);
/* Ends the queue and stops the endpoint; what is posted completes by itself. */
void rdt_channel_stop(rdt_channel *channel);
/* Lets the transport find out whether the peer's host is still there; progress thread only. */
void rdt_channel_probe(rdt_channel *channel);

#endif
