/* SPDX-License-Identifier: Apache-2.0
 *
 * A completion that a thread can wait for.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/config.h"
#include "core/objects.h"
#include "core/status.h"

struct rdt_transfer {
  atomic_int refs; /* the waiter's and the completion's */
  pthread_mutex_t lock;
  pthread_cond_t completed;
  rdt_status status; /* RDT_IN_PROGRESS until then */
  rdt_channel *channel;
};

static rdt_transfer *transfer_new(rdt_channel *channel) {
  rdt_transfer *transfer = calloc(1, sizeof(*transfer));
  if (!transfer) return NULL;
  rdt_cond_init(&transfer->completed);
  pthread_mutex_init(&transfer->lock, NULL);
  atomic_init(&transfer->refs, 2);
  transfer->status = RDT_IN_PROGRESS;
  transfer->channel = channel;
  rdt_channel_ref(channel);
  return transfer;
}

void rdt_transfer_free(rdt_transfer *transfer) {
  if (!transfer || atomic_fetch_sub(&transfer->refs, 1) != 1) return;
  pthread_cond_destroy(&transfer->completed);
  pthread_mutex_destroy(&transfer->lock);
  rdt_channel_unref(transfer->channel);
  free(transfer);
}

static void transfer_complete(void *context, rdt_status status) {
  rdt_transfer *transfer = context;
  pthread_mutex_lock(&transfer->lock);
  transfer->status = status;
  pthread_cond_broadcast(&transfer->completed);
  pthread_mutex_unlock(&transfer->lock);
  rdt_transfer_free(transfer);
}

static rdt_status submit(rdt_channel *channel, const rdt_op *ops, size_t count,
                         rdt_transfer **transfer) {
  rdt_transfer *waitable = transfer_new(channel);
  if (!waitable) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_channel_post(channel, ops, count, transfer_complete, waitable);
  if (status != RDT_IN_PROGRESS) {
    rdt_transfer_free(waitable); /* the completion's, which will not come */
    rdt_transfer_free(waitable);
    waitable = NULL;
  }
  if (status >= 0) *transfer = waitable;
  return status;
}

rdt_status rdt_channel_submit(rdt_channel *channel, const rdt_op *ops, size_t count,
                              rdt_transfer **transfer) {
  if (!channel || !transfer)
    return rdt_fail(RDT_ERR_INVALID, "channel and transfer must not be NULL");
  return submit(channel, ops, count, transfer);
}

static bool is_complete(rdt_transfer *transfer) {
  pthread_mutex_lock(&transfer->lock);
  bool complete = transfer->status != RDT_IN_PROGRESS;
  pthread_mutex_unlock(&transfer->lock);
  return complete;
}

/* Looks for the completion itself for a while, which saves two changes of threads. Where handlers run
 * on the progress thread, completions stay there too. */
static void help(rdt_transfer *transfer) {
  rdt_channel *channel = transfer->channel;
  if (channel->transport->synchronous || channel->device->options.on_notify) return;
  int64_t end = rdt_now_us() + (int64_t)rdt_config_number(RDT_CONFIG_WAIT_SPIN_US);
  while (!is_complete(transfer) && rdt_now_us() < end) {
    rdt_channel_help(channel);
    sched_yield();
  }
}

rdt_status rdt_transfer_wait(rdt_transfer *transfer, int timeout_ms) {
  if (!transfer) return rdt_fail(RDT_ERR_INVALID, "transfer must not be NULL");
  rdt_deadline deadline = rdt_deadline_after(timeout_ms);
  if (timeout_ms != 0) help(transfer);
  pthread_mutex_lock(&transfer->lock);
  while (transfer->status == RDT_IN_PROGRESS && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&transfer->completed, &transfer->lock, deadline);
  rdt_status status = transfer->status;
  pthread_mutex_unlock(&transfer->lock);
  if (status == RDT_IN_PROGRESS && timeout_ms != 0)
    return rdt_fail(RDT_ERR_DEADLINE, "the transfer did not complete within the deadline");
  return status < 0 ? rdt_channel_fail_transfer(transfer->channel, status) : status;
}
