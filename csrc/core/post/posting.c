/* SPDX-License-Identifier: Apache-2.0
 *
 * Posting. Operations run at once on the poster's thread. Those that find no credit wait in the
 * channel's queue, in order, for the progress thread.
 */
#include "core/post/posting.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "core/post/channel.h"
#include "core/post/overdue.h"

static rdt_status check_remote(const rdt_channel *channel, const rdt_op *op, uint32_t access) {
  const rdt_remote_region *remote = op->remote;
  if (!remote || remote->channel != channel)
    return rdt_fail(RDT_ERR_INVALID, "the remote region does not belong to this channel");
  if (!(remote->info.access & access))
    return rdt_fail(RDT_ERR_ACCESS, "region %#llx of %s does not permit peers to %s",
                    (unsigned long long)remote->info.key, channel->peer_name,
                    access == RDT_ACCESS_READ ? "read" : "write");
  if (op->remote_offset > remote->info.size || op->size > remote->info.size - op->remote_offset)
    return rdt_fail(RDT_ERR_RANGE, "bytes [%llu, +%llu) lie outside a region of %llu bytes",
                    (unsigned long long)op->remote_offset, (unsigned long long)op->size,
                    (unsigned long long)remote->info.size);
  return RDT_OK;
}

/* Says why the region takes no atomic operations of this channel, if it takes none. */
static rdt_status check_region_atomics(const rdt_channel *channel,
                                       const rdt_remote_region *remote) {
  unsigned long long key = remote->info.key;
  if (remote->atomics == RDT_REGION_UNALIGNED)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "region %#llx of %s takes no atomic operations, because it does not begin at a "
                    "multiple of %d bytes: have the device allocate it",
                    key, channel->peer_name, RDT_ATOMIC_SIZE);
  if (remote->atomics == RDT_REGION_DEVICE)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "region %#llx of %s takes no atomic operations, because it lies in the memory "
                    "of a GPU: keep such words in a region of host memory",
                    key, channel->peer_name);
  if (remote->atomics == RDT_REGION_MIXED)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "region %#llx of %s takes no atomic operations over %s, because peers reach it "
                    "over other transports too, and the RDMA device there is atomic with itself "
                    "only: set %sTRANSPORTS=%s there, or allocate the region from here",
                    key, channel->peer_name, channel->transport->name, RDT_ENV_PREFIX,
                    channel->transport->name);
  return RDT_OK;
}

/* The caller has checked the operations. */
static bool is_atomic(uint32_t kind) { return kind >= RDT_OP_FETCH_ADD; }

/* Not inlined, because it is rare and would slow down the others. */
__attribute__((noinline)) static rdt_status check_atomic(const rdt_channel *channel,
                                                         const rdt_op *op) {
  if (op->kind != RDT_OP_FETCH_ADD && op->kind != RDT_OP_COMPARE_SWAP)
    return rdt_fail(RDT_ERR_INVALID, "%u is not an operation", op->kind);
  if (op->size != RDT_ATOMIC_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "an atomic operation has %d bytes, not %llu", RDT_ATOMIC_SIZE,
                    (unsigned long long)op->size);
  rdt_status status = check_remote(channel, op, RDT_ACCESS_READ);
  if (status == RDT_OK) status = check_remote(channel, op, RDT_ACCESS_WRITE);
  if (status != RDT_OK) return status;
  if (op->remote_offset % RDT_ATOMIC_SIZE)
    return rdt_fail(RDT_ERR_INVALID,
                    "the offset of an atomic operation is a multiple of %d, not %llu",
                    RDT_ATOMIC_SIZE, (unsigned long long)op->remote_offset);
  if (rdt_channel_atomics(channel) == RDT_ATOMICS_NONE)
    return rdt_fail(
        RDT_ERR_UNSUPPORTED,
        "the RDMA device here, or that of %s, has no atomic operations (ibv_devinfo -v: "
        "atomic_cap): connect over another transport, with %sTRANSPORTS",
        channel->peer_name, RDT_ENV_PREFIX);
  return check_region_atomics(channel, op->remote);
}

static rdt_status check_op(const rdt_channel *channel, const rdt_op *op) {
  if (op->size && !op->local) return rdt_fail(RDT_ERR_INVALID, "no local buffer given");
  switch (op->kind) {
    case RDT_OP_READ:
      return check_remote(channel, op, RDT_ACCESS_READ);
    case RDT_OP_WRITE:
    case RDT_OP_WRITE_NOTIFY:
      return check_remote(channel, op, RDT_ACCESS_WRITE);
    case RDT_OP_NOTIFY:
      if (op->size > channel->max_notify)
        return rdt_fail(RDT_ERR_RANGE, "a notification carries at most %llu bytes, not %llu",
                        (unsigned long long)channel->max_notify, (unsigned long long)op->size);
      return RDT_OK;
    default:
      return check_atomic(channel, op);
  }
}

static rdt_status check_post(const rdt_channel *channel, const rdt_op *ops, size_t count) {
  if (!channel || (count && !ops))
    return rdt_fail(RDT_ERR_INVALID, "channel and ops must not be NULL");
  rdt_status status = rdt_device_check(channel->device);
  for (size_t i = 0; i < count && status == RDT_OK; i++) status = check_op(channel, &ops[i]);
  if (status != RDT_OK) return status;
  if (atomic_load(&channel->close_requested))
    return rdt_fail(RDT_ERR_CANCELLED, "the channel to %s was closed here", channel->peer_name);
  return atomic_load(&channel->down) ? rdt_channel_fail_down(channel) : RDT_OK;
}

/* Counts `bytes` of the operation as posted. With `whole`, nothing of it is left. */
static void count_op(rdt_device *device, uint32_t kind, uint64_t bytes, bool whole) {
  rdt_counters *counters = &device->counters;
  if (kind == RDT_OP_READ) {
    rdt_count(&counters->reads, whole);
    rdt_count(&counters->read_bytes, bytes);
  } else if (kind == RDT_OP_NOTIFY) {
    rdt_count(&counters->notifies_sent, whole);
    rdt_count(&counters->notify_bytes_sent, bytes);
  } else {
    rdt_count(&counters->writes, whole);
    rdt_count(&counters->write_bytes, bytes);
  }
}

static bool notifies(const rdt_op *op) {
  return op->kind == RDT_OP_NOTIFY || op->kind == RDT_OP_WRITE_NOTIFY;
}

/* Once its bytes are on their way, only the notification is left of a WRITE_NOTIFY. */
static void keep_notification(rdt_op *op) {
  if (op->kind == RDT_OP_NOTIFY) return;
  op->kind = RDT_OP_NOTIFY;
  op->local = NULL;
  op->size = 0;
}

/* Not inlined, like check_atomic. */
__attribute__((noinline)) static rdt_status change_word(rdt_channel *channel, rdt_op *op,
                                                        rdt_request *request) {
  rdt_status status =
      channel->transport->atomic(channel->endpoint, op->remote->mapping, op, request);
  if (status < 0 || status == RDT_NO_CREDIT) return status;
  rdt_count(&channel->device->counters.atomics, 1);
  return RDT_OK;
}

static rdt_status move(rdt_channel *channel, rdt_op *op, rdt_request *request) {
  if (is_atomic(op->kind)) return change_word(channel, op, request);
  const rdt_transport *transport = channel->transport;
  uint64_t wanted = op->size;
  rdt_status status = op->kind == RDT_OP_READ
                          ? transport->read(channel->endpoint, op->remote->mapping, op, request)
                          : transport->write(channel->endpoint, op->remote->mapping, op, request);
  if (status < 0) return status;
  bool whole = status != RDT_NO_CREDIT;
  count_op(channel->device, op->kind, whole ? wanted : wanted - op->size, whole);
  return whole ? RDT_OK : status;
}

/* Posts the operation as far as credit goes. On RDT_NO_CREDIT, *op is what is left of it. */
static rdt_status execute_op(rdt_channel *channel, rdt_op *op, rdt_request *request) {
  rdt_status status = op->kind == RDT_OP_NOTIFY ? RDT_OK : move(channel, op, request);
  if (status != RDT_OK || !notifies(op)) return status;
  keep_notification(op);
  status = channel->transport->notify(channel->endpoint, op->immediate, op->local, op->size);
  if (status == RDT_OK) count_op(channel->device, op->kind, op->size, true);
  return status;
}

static void ring_doorbell(rdt_channel *channel) {
  int rung = channel->transport->doorbell(channel->endpoint);
  if (rung) rdt_count(&channel->device->counters.doorbells, (uint64_t)rung);
}

static void note_failure(rdt_posting *posting, rdt_status status) {
  int none = RDT_OK;
  if (status < 0) atomic_compare_exchange_strong(&posting->status, &none, status);
}

/* Gives up one hold. Returns true for the last one. */
static bool let_go(rdt_posting *posting, rdt_status status) {
  note_failure(posting, status);
  return atomic_fetch_sub(&posting->request.holds, 1) == 1;
}

static void posting_free(rdt_posting *posting) {
  for (size_t i = 0; i < posting->count; i++) rdt_remote_region_unref(posting->ops[i].remote);
  free(posting);
}

void rdt_posting_complete(rdt_posting *posting, rdt_status status) {
  rdt_overdue_moved(posting);
  if (!let_go(posting, status)) return;
  rdt_overdue_end(posting);
  rdt_done_fn done = posting->done;
  void *context = posting->context;
  rdt_status status_of_all = (rdt_status)atomic_load(&posting->status);
  /* Before `done`, after which the remote regions may be given back to their owner. */
  posting_free(posting);
  if (done) done(context, status_of_all);
}

static rdt_posting *posting_new(rdt_channel *channel, const rdt_op *ops, size_t count,
                                const rdt_completion *completion) {
  rdt_posting *posting =
      count > UINT32_MAX ? NULL : malloc(sizeof(*posting) + count * sizeof(*ops));
  if (!posting) {
    rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
    return NULL;
  }
  *posting = (rdt_posting){.request = {.holds = 1, .wants_event = completion->wants_event},
                           .done = completion->done,
                           .context = completion->context,
                           .count = (uint32_t)count};
  if (count > 0) memcpy(posting->ops, ops, count * sizeof(*ops));
  for (size_t i = 0; i < count; i++)
    if (posting->ops[i].remote) rdt_remote_region_ref(posting->ops[i].remote);
  rdt_overdue_begin(channel, posting);
  return posting;
}

/* Returns RDT_OK when all is posted. This and the functions below run under send_lock. */
static rdt_status execute_posting(rdt_channel *channel, rdt_posting *posting) {
  for (; posting->at < posting->count; posting->at++) {
    rdt_status status = execute_op(channel, &posting->ops[posting->at], &posting->request);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static rdt_status enqueue(rdt_channel *channel, rdt_posting *posting) {
  if (!channel->queue) channel->last_credit = rdt_now_ms();
  *channel->queue_tail = posting;
  channel->queue_tail = &posting->next;
  atomic_store(&channel->queued, true);
  rdt_count(&channel->device->counters.queued, 1);
  rdt_device_wake(channel->device); /* it must watch the deadline from now on */
  return RDT_IN_PROGRESS;
}

static bool any_notifies(const rdt_op *ops, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (notifies(&ops[i])) return true;
  return false;
}

static bool all_complete_at_once(const rdt_channel *channel, const rdt_op *ops, size_t count) {
  if (channel->transport->synchronous) return true;
  for (size_t i = 0; i < count; i++)
    if (ops[i].kind != RDT_OP_NOTIFY) return false;
  return true;
}

/* Posts operations that need no request, unless one finds no credit. */
static rdt_status post_directly(rdt_channel *channel, const rdt_op *ops, size_t count,
                                const rdt_completion *completion) {
  for (size_t at = 0; at < count; at++) {
    rdt_op op = ops[at];
    rdt_status status = execute_op(channel, &op, NULL);
    if (status == RDT_OK) continue;
    if (status != RDT_NO_CREDIT) return status;
    rdt_posting *rest = posting_new(channel, ops + at, count - at, completion);
    if (!rest) return RDT_ERR_NO_MEMORY;
    rest->ops[0] = op;
    return enqueue(channel, rest);
  }
  return RDT_OK;
}

/* If pieces of a failed request are in flight, they complete it. */
static rdt_status end_posting(rdt_posting *posting, rdt_status status) {
  if (!let_go(posting, status)) return RDT_IN_PROGRESS;
  int failure = atomic_load(&posting->status);
  rdt_overdue_end(posting);
  posting_free(posting);
  if (failure < 0) return (rdt_status)failure;
  return status == RDT_NO_CREDIT ? status : RDT_OK;
}

static rdt_status post_in_order(rdt_channel *channel, const rdt_op *ops, size_t count,
                                const rdt_completion *completion) {
  rdt_posting *posting = posting_new(channel, ops, count, completion);
  if (!posting) return RDT_ERR_NO_MEMORY;
  if (channel->queue) return enqueue(channel, posting);
  rdt_status status = execute_posting(channel, posting);
  if (status == RDT_NO_CREDIT) return enqueue(channel, posting);
  return end_posting(posting, status);
}

rdt_status rdt_channel_post_grant(rdt_channel *channel, rdt_registration *registration,
                                  const rdt_completion *completion) {
  if (!channel->transport->region_grant) return RDT_OK;
  rdt_posting *posting = posting_new(channel, NULL, 0, completion);
  if (!posting) return RDT_ERR_NO_MEMORY;
  pthread_mutex_lock(&channel->send_lock);
  rdt_status status =
      atomic_load(&channel->down)
          ? rdt_channel_fail_down(channel)
          : channel->transport->region_grant(channel->endpoint, registration, &posting->request);
  ring_doorbell(channel);
  pthread_mutex_unlock(&channel->send_lock);
  return end_posting(posting, status);
}

/* Returns true if the failure ends the channel. Any other failure concerns one operation only. */
static bool breaks_channel(rdt_status status) {
  return status == RDT_ERR_PROTOCOL || status == RDT_ERR_CONNECTION_LOST;
}

/* A synchronous transport always has credit for all but notifications, and does not change *op. */
static rdt_status move_now(rdt_channel *channel, const rdt_op *op) {
  if (is_atomic(op->kind)) return change_word(channel, (rdt_op *)op, NULL);
  const rdt_transport *transport = channel->transport;
  rdt_status status =
      op->kind == RDT_OP_READ
          ? transport->read(channel->endpoint, op->remote->mapping, (rdt_op *)op, NULL)
          : transport->write(channel->endpoint, op->remote->mapping, (rdt_op *)op, NULL);
  if (status == RDT_OK) count_op(channel->device, op->kind, op->size, true);
  return status;
}

__attribute__((flatten)) bool rdt_channel_post_now(rdt_channel *channel, const rdt_op *ops,
                                                   size_t count, rdt_status *status) {
  if (!channel || !ops || !channel->transport->synchronous || any_notifies(ops, count) ||
      atomic_load_explicit(&channel->queued, memory_order_acquire))
    return false;
  *status = check_post(channel, ops, count);
  for (size_t i = 0; i < count && *status == RDT_OK; i++) *status = move_now(channel, &ops[i]);
  return true;
}

rdt_status rdt_channel_post_queued(rdt_channel *channel, const rdt_op *ops, size_t count,
                                   const rdt_completion *completion) {
  rdt_status status = check_post(channel, ops, count);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&channel->send_lock);
  if (atomic_load(&channel->down))
    status = rdt_channel_fail_down(channel);
  else if (!channel->queue && all_complete_at_once(channel, ops, count))
    status = post_directly(channel, ops, count, completion);
  else
    status = post_in_order(channel, ops, count, completion);
  ring_doorbell(channel);
  const rdt_transport *transport = channel->transport;
  bool stalled = transport->wants_doorbell && transport->wants_doorbell(channel->endpoint);
  pthread_mutex_unlock(&channel->send_lock);
  bool silent = completion->wants_event && atomic_load(&channel->waiting.mode) == RDT_SILENT;
  if (stalled || silent) rdt_device_wake(channel->device); /* completions matter from now on */
  if (!breaks_channel(status)) return status;
  rdt_channel_break(channel);
  return RDT_ERR_CONNECTION_LOST;
}

rdt_status rdt_channel_post(rdt_channel *channel, const rdt_op *ops, size_t count, rdt_done_fn done,
                            void *context) {
  rdt_status status;
  if (rdt_channel_post_now(channel, ops, count, &status)) return status;
  const rdt_completion completion = {done, context, .wants_event = done != NULL};
  return rdt_channel_post_queued(channel, ops, count, &completion);
}

static void complete_all(rdt_posting *posting, rdt_status status) {
  while (posting) {
    rdt_posting *next = posting->next;
    rdt_posting_complete(posting, status);
    posting = next;
  }
}

/* Takes the requests before `stop` off the queue, or all if it is NULL. */
static rdt_posting *detach_until(rdt_channel *channel, rdt_posting *stop) {
  rdt_posting *first = channel->queue;
  rdt_posting **link = &channel->queue;
  while (*link && *link != stop) link = &(*link)->next;
  *link = NULL;
  channel->queue = stop;
  if (!stop) channel->queue_tail = &channel->queue;
  atomic_store_explicit(&channel->queued, stop != NULL, memory_order_release);
  return first == stop ? NULL : first;
}

/* Executes requests as far as credit goes. Returns the first one that still waits, or NULL. */
static rdt_posting *execute_queue(rdt_channel *channel, rdt_status *status) {
  rdt_posting *posting = channel->queue;
  for (*status = RDT_OK; posting; posting = posting->next) {
    size_t at = posting->at;
    uint64_t left = at < posting->count ? posting->ops[at].size : 0;
    *status = execute_posting(channel, posting);
    if (*status == RDT_OK || posting->at != at || posting->ops[at].size != left) {
      channel->last_credit = rdt_now_ms();
      rdt_overdue_moved(posting);
    }
    if (*status == RDT_NO_CREDIT || breaks_channel(*status)) break;
    note_failure(posting, *status);
  }
  return posting;
}

/* Returns true if the peer has given no credit for too long. While our messages are still in
 * flight, it cannot have; overdue.c watches these. */
static bool is_stuck(rdt_channel *channel, int64_t limit) {
  const rdt_transport *transport = channel->transport;
  int64_t now = rdt_now_ms();
  if (transport->delivering && transport->delivering(channel->endpoint)) channel->last_credit = now;
  return now - channel->last_credit > limit;
}

void rdt_channel_flush(rdt_channel *channel) {
  rdt_status status;
  const rdt_transport *transport = channel->transport;
  if (!atomic_load_explicit(&channel->queued, memory_order_acquire) &&
      !(transport->wants_doorbell && transport->wants_doorbell(channel->endpoint)))
    return;
  pthread_mutex_lock(&channel->send_lock);
  rdt_posting *waiting = execute_queue(channel, &status);
  rdt_posting *finished = detach_until(channel, waiting);
  int64_t limit = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  bool stuck = waiting && is_stuck(channel, limit);
  ring_doorbell(channel);
  pthread_mutex_unlock(&channel->send_lock);
  if (stuck)
    rdt_fail(RDT_ERR_CONNECTION_LOST, "it took nothing for %lld ms (%sDEADLINE_MS)",
             (long long)limit, RDT_ENV_PREFIX);
  if (stuck || breaks_channel(status)) rdt_channel_break(channel);
  complete_all(finished, RDT_OK);
}

void rdt_channel_end_queue(rdt_channel *channel, rdt_status why) {
  pthread_mutex_lock(&channel->send_lock);
  rdt_posting *pending = detach_until(channel, NULL);
  pthread_mutex_unlock(&channel->send_lock);
  complete_all(pending, why);
}

void rdt_channel_stop(rdt_channel *channel) {
  rdt_channel_end_queue(channel, channel->why);
  pthread_mutex_lock(&channel->send_lock);
  if (channel->transport->endpoint_stop) channel->transport->endpoint_stop(channel->endpoint);
  pthread_mutex_unlock(&channel->send_lock);
}

void rdt_channel_probe(rdt_channel *channel) {
  pthread_mutex_lock(&channel->send_lock);
  rdt_status status = channel->transport->probe(channel->endpoint);
  ring_doorbell(channel);
  pthread_mutex_unlock(&channel->send_lock);
  if (status < 0) rdt_channel_break(channel);
}
