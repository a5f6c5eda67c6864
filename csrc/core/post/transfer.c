/* SPDX-License-Identifier: Apache-2.0
 *
 * A completion that a thread can wait for. It belongs to operations posted on a channel, or to an
 * operation of a group.
 */
#include "core/post/transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/config.h"
#include "base/forks.h"
#include "base/status.h"
#include "base/thread.h"
#include "core/post/channel.h"
#include "core/post/events.h"
#include "core/post/posting.h"
#include "core/post/waiting.h"

#define ROOM_US 1000      /* between attempts to post a grant */
#define POLLS_PER_LOOK 32 /* of the endpoint between checks of the transfer */

struct rdt_transfer {
  atomic_int refs; /* the waiter's and the completion's */
  pthread_mutex_t lock;
  pthread_cond_t completed;
  rdt_status status;    /* RDT_IN_PROGRESS until then */
  rdt_event *watchers;  /* until then; each counts as one of the channel's sleepers */
  rdt_channel *channel; /* NULL for an operation of a group */
  unsigned fork_epoch;
  const rdt_transfer_driver *driver; /* NULL if no waiter may drive */
  void *operation;
  char text[256]; /* why that operation failed */
};

rdt_transfer *rdt_transfer_new(rdt_channel *channel) {
  rdt_transfer *transfer = calloc(1, sizeof(*transfer));
  if (!transfer) return NULL;
  rdt_cond_init(&transfer->completed);
  pthread_mutex_init(&transfer->lock, NULL);
  atomic_init(&transfer->refs, 2);
  transfer->status = RDT_IN_PROGRESS;
  transfer->fork_epoch = rdt_forks_epoch();
  transfer->channel = channel;
  if (channel) rdt_channel_ref(channel);
  return transfer;
}

void rdt_transfer_set_driver(rdt_transfer *transfer, const rdt_transfer_driver *driver,
                             void *operation) {
  transfer->driver = driver;
  transfer->operation = operation;
}

void rdt_transfer_free(rdt_transfer *transfer) {
  if (!transfer || atomic_fetch_sub(&transfer->refs, 1) != 1) return;
  pthread_cond_destroy(&transfer->completed);
  pthread_mutex_destroy(&transfer->lock);
  rdt_channel_unref(transfer->channel);
  free(transfer);
}

void rdt_transfer_drop(rdt_transfer *transfer) {
  rdt_transfer_free(transfer);
  rdt_transfer_free(transfer);
}

/* From here on completions must wake the progress thread. */
static void begin_sleep(rdt_channel *channel) {
  if (!channel || channel->transport->synchronous) return;
  if (atomic_fetch_add(&channel->waiting.sleepers, 1) == 0) rdt_device_wake(channel->device);
}

static void end_sleep(rdt_channel *channel) {
  if (channel && !channel->transport->synchronous) atomic_fetch_sub(&channel->waiting.sleepers, 1);
}

static void announce(rdt_channel *channel, rdt_event *watchers) {
  while (watchers) {
    rdt_event *next = watchers->next;
    rdt_event_announce_last(watchers);
    end_sleep(channel);
    watchers = next;
  }
}

void rdt_transfer_complete(void *context, rdt_status status) {
  rdt_transfer *transfer = context;
  pthread_mutex_lock(&transfer->lock);
  rdt_event *watchers = transfer->watchers;
  transfer->watchers = NULL;
  transfer->status = status;
  if (!transfer->channel && status < 0)
    snprintf(transfer->text, sizeof(transfer->text), "%s", rdt_last_error());
  pthread_cond_broadcast(&transfer->completed);
  pthread_mutex_unlock(&transfer->lock);
  announce(transfer->channel, watchers);
  rdt_transfer_free(transfer);
}

/* Returns true if this thread may take completions. If the user has handlers, completions stay
 * on the progress thread. */
static bool may_poll(const rdt_transfer *transfer) {
  const rdt_channel *channel = transfer->channel;
  return channel && !channel->transport->synchronous && !channel->device->options.on_notify;
}

static rdt_status submit(rdt_channel *channel, const rdt_op *ops, size_t count,
                         rdt_transfer **transfer) {
  rdt_status at_once;
  if (rdt_channel_post_now(channel, ops, count, &at_once)) {
    if (at_once == RDT_OK) *transfer = NULL;
    return at_once;
  }
  rdt_transfer *waitable = rdt_transfer_new(channel);
  if (!waitable) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  /* A waiter polls for the completion, or asks for an event before it sleeps. */
  const rdt_completion completion = {rdt_transfer_complete, waitable, .wants_event = false};
  rdt_status status = rdt_channel_post_queued(channel, ops, count, &completion);
  if (status != RDT_IN_PROGRESS) {
    rdt_transfer_drop(waitable);
    waitable = NULL;
  } else if (may_poll(waitable)) {
    rdt_channel_waiter_expect(channel);
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

/* On RDT_IN_PROGRESS, *transfer completes when the grant does. */
static rdt_status post_grant(rdt_channel *channel, rdt_registration *registration,
                             rdt_transfer **transfer) {
  rdt_transfer *waitable = rdt_transfer_new(channel);
  if (!waitable) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  const rdt_completion completion = {rdt_transfer_complete, waitable, .wants_event = false};
  rdt_status status = rdt_channel_post_grant(channel, registration, &completion);
  if (status == RDT_IN_PROGRESS) {
    *transfer = waitable;
  } else {
    rdt_transfer_drop(waitable);
  }
  return status;
}

rdt_status rdt_channel_grant(rdt_channel *channel, rdt_registration *registration) {
  rdt_transfer *transfer = NULL;
  rdt_deadline deadline = rdt_deadline_after(RDT_TIMEOUT_DEFAULT);
  if (atomic_load(&channel->down)) return rdt_channel_fail_down(channel);
  rdt_status status = post_grant(channel, registration, &transfer);
  /* A grant need not keep its order among operations, so it does not queue with them. */
  for (; status == RDT_NO_CREDIT && rdt_deadline_left(deadline) > 0; usleep(ROOM_US))
    status = post_grant(channel, registration, &transfer);
  if (status == RDT_NO_CREDIT)
    return rdt_fail(RDT_ERR_DEADLINE, "%s took nothing within the deadline", channel->peer_name);
  if (status != RDT_IN_PROGRESS) return status;
  status = rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT);
  rdt_transfer_free(transfer);
  return status;
}

/* In a child of fork, polling would take what its parent waits for, and a thread that only the parent has may hold the
 * lock. */
static bool is_forked(const rdt_transfer *transfer) {
  return transfer->fork_epoch != rdt_forks_epoch();
}

static rdt_status fail_forked(const rdt_transfer *transfer) {
  if (transfer->status == RDT_OK) return RDT_OK;
  return rdt_fail(RDT_ERR_FORKED,
                  "the transfer was begun before fork, and only the parent learns of its end: wait "
                  "there, and begin transfers of this process with a device of its own");
}

static rdt_status current(rdt_transfer *transfer) {
  pthread_mutex_lock(&transfer->lock);
  rdt_status status = transfer->status;
  pthread_mutex_unlock(&transfer->lock);
  return status;
}

static bool is_complete(rdt_transfer *transfer) { return current(transfer) != RDT_IN_PROGRESS; }

/* Polls for the completion, which saves two thread switches. Returns true if the transfer is
 * complete. */
static bool look(rdt_transfer *transfer) {
  for (int i = 0; i < POLLS_PER_LOOK && !rdt_channel_waiter_poll(transfer->channel); i++) continue;
  return is_complete(transfer);
}

static bool look_for_a_while(rdt_transfer *transfer) {
  int64_t end = rdt_now_us() + (int64_t)rdt_config_number(RDT_CONFIG_SPIN_US);
  while (rdt_now_us() < end) {
    if (!rdt_yield()) return false;
    if (look(transfer)) return true;
  }
  return false;
}

/* Looks before reading the clock, which costs more than many transfers take. */
static bool poll_for_a_while(rdt_transfer *transfer) {
  rdt_channel_waiter_begin(transfer->channel);
  bool complete = look(transfer) || look_for_a_while(transfer);
  rdt_channel_waiter_end(transfer->channel);
  return complete;
}

static void sleep_until_complete(rdt_transfer *transfer, rdt_deadline deadline) {
  begin_sleep(transfer->channel);
  pthread_mutex_lock(&transfer->lock);
  while (transfer->status == RDT_IN_PROGRESS && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&transfer->completed, &transfer->lock, deadline);
  pthread_mutex_unlock(&transfer->lock);
  end_sleep(transfer->channel);
}

/* The operation exists while the transfer is under way, which the lock keeps so until the operation is adopted. */
static void drive(rdt_transfer *transfer, rdt_deadline deadline) {
  if (!transfer->driver || rdt_on_progress_thread()) return;
  pthread_mutex_lock(&transfer->lock);
  const bool adopts =
      transfer->status == RDT_IN_PROGRESS && transfer->driver->adopt(transfer->operation, transfer);
  pthread_mutex_unlock(&transfer->lock);
  if (adopts) transfer->driver->drive(transfer->operation, deadline);
}

rdt_status rdt_transfer_wait(rdt_transfer *transfer, int timeout_ms) {
  if (!transfer) return rdt_fail(RDT_ERR_INVALID, "transfer must not be NULL");
  if (is_forked(transfer)) return fail_forked(transfer);
  bool polls = may_poll(transfer);
  bool complete = is_complete(transfer);
  if (!complete && polls) complete = timeout_ms == 0 ? look(transfer) : poll_for_a_while(transfer);
  if (!complete && timeout_ms != 0) {
    const rdt_deadline deadline = rdt_deadline_after(timeout_ms);
    drive(transfer, deadline);
    sleep_until_complete(transfer, deadline);
  }
  rdt_status status = current(transfer);
  if (status == RDT_IN_PROGRESS && timeout_ms != 0)
    return rdt_fail(RDT_ERR_DEADLINE, "the transfer did not complete within the deadline");
  if (status >= 0) return status;
  return transfer->channel ? rdt_channel_fail_transfer(transfer->channel, status)
                           : rdt_fail(status, "%s", transfer->text);
}

/* Returns false if the transfer is complete. */
static bool add_watcher(rdt_transfer *transfer, rdt_event *event) {
  pthread_mutex_lock(&transfer->lock);
  const bool pending = transfer->status == RDT_IN_PROGRESS;
  if (pending) {
    event->next = transfer->watchers;
    transfer->watchers = event;
  }
  pthread_mutex_unlock(&transfer->lock);
  return pending;
}

rdt_status rdt_transfer_watch(rdt_transfer *transfer, rdt_event_queue *queue, uint64_t token) {
  if (!transfer || !queue) return rdt_fail(RDT_ERR_INVALID, "transfer and queue must not be NULL");
  if (is_forked(transfer)) return fail_forked(transfer);
  rdt_event *event = rdt_event_new(queue, token);
  if (!event) return RDT_ERR_NO_MEMORY;
  begin_sleep(transfer->channel);
  if (add_watcher(transfer, event)) return RDT_IN_PROGRESS;
  end_sleep(transfer->channel);
  rdt_event_free(event);
  return rdt_transfer_wait(transfer, 0);
}
