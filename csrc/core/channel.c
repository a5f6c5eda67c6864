/* SPDX-License-Identifier: Apache-2.0
 *
 * Posting: operations run at once on the poster's thread; what finds no credit waits in the channel's
 * queue, in order, for the progress thread.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/config.h"
#include "core/objects.h"
#include "core/status.h"

rdt_status rdt_channel_create(rdt_device *device, const rdt_transport *transport, rdt_bundle *offer,
                              rdt_channel **channel_out) {
  rdt_channel *channel = calloc(1, sizeof(*channel));
  if (!channel) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = transport->endpoint_create(&channel->endpoint, offer);
  if (status != RDT_OK) {
    free(channel);
    return status;
  }
  atomic_init(&channel->refs, 1);
  channel->device = device;
  rdt_device_ref(device);
  channel->transport = transport;
  channel->control = -1;
  channel->queue_tail = &channel->queue;
  channel->control_watch = (rdt_watch){channel, true};
  channel->event_watch = (rdt_watch){channel, false};
  pthread_mutex_init(&channel->send_lock, NULL);
  pthread_mutex_init(&channel->lock, NULL);
  rdt_cond_init(&channel->answered);
  *channel_out = channel;
  return RDT_OK;
}

static void channel_free(rdt_channel *channel) {
  if (channel->control >= 0) close(channel->control);
  channel->transport->endpoint_destroy(channel->endpoint);
  pthread_mutex_destroy(&channel->send_lock);
  pthread_mutex_destroy(&channel->lock);
  pthread_cond_destroy(&channel->answered);
  rdt_device *device = channel->device;
  free(channel);
  rdt_device_unref(device);
}

void rdt_channel_ref(rdt_channel *channel) {
  atomic_fetch_add_explicit(&channel->refs, 1, memory_order_relaxed);
}

void rdt_channel_unref(rdt_channel *channel) {
  if (channel && atomic_fetch_sub(&channel->refs, 1) == 1) channel_free(channel);
}

void rdt_channel_close(rdt_channel *channel) {
  if (!channel || rdt_device_check(channel->device) != RDT_OK) return;
  if (!atomic_exchange(&channel->close_requested, true)) rdt_device_wake(channel->device);
}

rdt_status rdt_channel_get_info(const rdt_channel *channel, rdt_channel_info *info) {
  if (!channel || !info) return rdt_fail(RDT_ERR_INVALID, "channel and info must not be NULL");
  *info = (rdt_channel_info){
      .peer_name = channel->peer_name,
      .peer_address = channel->peer_address,
      .transport = channel->transport->name,
      .capabilities = channel->transport->capabilities,
      .generation = channel->peer_generation,
      .max_notify = channel->transport->max_notify(channel->endpoint),
      .up = !atomic_load(&channel->down) && !atomic_load(&channel->close_requested),
  };
  return RDT_OK;
}

void rdt_channel_set_context(rdt_channel *channel, void *context) {
  atomic_store(&channel->context, context);
}

void *rdt_channel_context(const rdt_channel *channel) {
  return atomic_load(&((rdt_channel *)channel)->context);
}

/* ---- checks -------------------------------------------------------------------------------------- */

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
      return rdt_fail(RDT_ERR_INVALID, "%u is not an operation", op->kind);
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
  if (atomic_load(&channel->down))
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "the connection to %s at %s is lost",
                    channel->peer_name, channel->peer_address);
  return RDT_OK;
}

/* ---- execution ----------------------------------------------------------------------------------- */

static rdt_status do_write(rdt_channel *channel, const rdt_op *op) {
  rdt_count(&channel->device->counters.writes, 1);
  rdt_count(&channel->device->counters.write_bytes, op->size);
  return channel->transport->write(op->remote->mapping, op->remote_offset, op->local, op->size);
}

static rdt_status do_read(rdt_channel *channel, const rdt_op *op) {
  rdt_count(&channel->device->counters.reads, 1);
  rdt_count(&channel->device->counters.read_bytes, op->size);
  return channel->transport->read(op->remote->mapping, op->remote_offset, op->local, op->size);
}

/* Under send_lock. */
static rdt_status do_notify(rdt_channel *channel, const rdt_op *op) {
  bool payload = op->kind == RDT_OP_NOTIFY;
  rdt_status status = channel->transport->notify(
      channel->endpoint, op->immediate, payload ? op->local : NULL, payload ? op->size : 0);
  if (status == RDT_OK) {
    rdt_count(&channel->device->counters.notifies_sent, 1);
    if (payload) rdt_count(&channel->device->counters.notify_bytes_sent, op->size);
  }
  return status;
}

/* Executes ops[*at..count) until one finds no credit (RDT_IN_PROGRESS) or fails. Under send_lock if
 * any op notifies. */
static rdt_status execute(rdt_channel *channel, const rdt_op *ops, size_t count, size_t *at) {
  rdt_status status = RDT_OK;
  for (; *at < count; (*at)++) {
    const rdt_op *op = &ops[*at];
    if (op->kind == RDT_OP_READ) status = do_read(channel, op);
    if (op->kind == RDT_OP_WRITE || op->kind == RDT_OP_WRITE_NOTIFY) status = do_write(channel, op);
    if (status == RDT_OK && (op->kind == RDT_OP_NOTIFY || op->kind == RDT_OP_WRITE_NOTIFY))
      status = do_notify(channel, op);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static void ring_doorbell(rdt_channel *channel) {
  if (channel->transport->doorbell(channel->endpoint))
    rdt_count(&channel->device->counters.doorbells, 1);
}

/* An operation without credit has moved its bytes: only its notification is left to do. */
static void keep_notification(rdt_op *op) {
  if (op->kind == RDT_OP_WRITE_NOTIFY) {
    op->kind = RDT_OP_NOTIFY;
    op->size = 0;
  }
}

/* Puts ops[at..count) behind what waits already. Under send_lock. */
static rdt_status enqueue(rdt_channel *channel, const rdt_op *ops, size_t count, size_t at,
                          bool without_credit, rdt_done_fn done, void *context) {
  size_t rest = count - at;
  rdt_request *request = malloc(sizeof(*request) + rest * sizeof(*ops));
  if (!request) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *request = (rdt_request){.done = done, .context = context, .at = 0, .count = rest};
  memcpy(request->ops, ops + at, rest * sizeof(*ops));
  for (size_t i = 0; i < rest; i++)
    if (request->ops[i].remote) rdt_remote_region_ref(request->ops[i].remote);
  if (without_credit) keep_notification(&request->ops[0]);
  if (!channel->queue) channel->last_credit = rdt_now_ms();
  *channel->queue_tail = request;
  channel->queue_tail = &request->next;
  atomic_store(&channel->queued, true);
  rdt_count(&channel->device->counters.queued, 1);
  rdt_device_wake(channel->device); /* it must watch the deadline from now on */
  return RDT_IN_PROGRESS;
}

static bool needs_lock(const rdt_channel *channel, const rdt_op *ops, size_t count) {
  if (atomic_load_explicit(&channel->queued, memory_order_acquire)) return true;
  for (size_t i = 0; i < count; i++)
    if (ops[i].kind == RDT_OP_NOTIFY || ops[i].kind == RDT_OP_WRITE_NOTIFY) return true;
  return false;
}

static rdt_status lose(rdt_channel *channel) {
  atomic_store(&channel->broken, true);
  rdt_device_wake(channel->device);
  return RDT_ERR_CONNECTION_LOST;
}

rdt_status rdt_channel_post(rdt_channel *channel, const rdt_op *ops, size_t count, rdt_done_fn done,
                            void *context) {
  size_t at = 0;
  rdt_status status = check_post(channel, ops, count);
  if (status != RDT_OK) return status;
  if (!needs_lock(channel, ops, count)) return execute(channel, ops, count, &at);
  pthread_mutex_lock(&channel->send_lock);
  if (atomic_load(&channel->down))
    status = rdt_fail(RDT_ERR_CONNECTION_LOST, "the connection to %s is lost", channel->peer_name);
  else if (channel->queue)
    status = enqueue(channel, ops, count, 0, false, done, context);
  else if ((status = execute(channel, ops, count, &at)) == RDT_IN_PROGRESS)
    status = enqueue(channel, ops, count, at, true, done, context);
  ring_doorbell(channel);
  pthread_mutex_unlock(&channel->send_lock);
  return status == RDT_ERR_PROTOCOL ? lose(channel) : status;
}

/* ---- queue --------------------------------------------------------------------------------------- */

static void complete(rdt_request *request, rdt_status status) {
  for (size_t i = 0; i < request->count; i++) rdt_remote_region_unref(request->ops[i].remote);
  if (request->done) request->done(request->context, status);
  free(request);
}

static void complete_all(rdt_request *request, rdt_status status) {
  while (request) {
    rdt_request *next = request->next;
    complete(request, status);
    request = next;
  }
}

/* Takes what stands before `stop` off the queue; everything when it is NULL. Under send_lock. */
static rdt_request *detach_until(rdt_channel *channel, rdt_request *stop) {
  rdt_request *first = channel->queue;
  rdt_request **link = &channel->queue;
  while (*link && *link != stop) link = &(*link)->next;
  *link = NULL;
  channel->queue = stop;
  if (!stop) channel->queue_tail = &channel->queue;
  atomic_store_explicit(&channel->queued, stop != NULL, memory_order_release);
  return first == stop ? NULL : first;
}

/* Executes what has credit and returns the first request that waits on, NULL if none does. */
static rdt_request *execute_queue(rdt_channel *channel, rdt_status *status) {
  rdt_request *request = channel->queue;
  for (*status = RDT_OK; request; request = request->next) {
    size_t before = request->at;
    *status = execute(channel, request->ops, request->count, &request->at);
    if (request->at != before) channel->last_credit = rdt_now_ms();
    if (*status != RDT_OK) break;
  }
  if (*status == RDT_IN_PROGRESS) keep_notification(&request->ops[request->at]);
  return request;
}

void rdt_channel_flush(rdt_channel *channel) {
  rdt_status status;
  if (!atomic_load_explicit(&channel->queued, memory_order_acquire)) return;
  pthread_mutex_lock(&channel->send_lock);
  rdt_request *waiting = execute_queue(channel, &status);
  rdt_request *finished = detach_until(channel, waiting);
  bool stuck = waiting && rdt_now_ms() - channel->last_credit >
                              (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  ring_doorbell(channel);
  pthread_mutex_unlock(&channel->send_lock);
  complete_all(finished, RDT_OK);
  if (stuck || status == RDT_ERR_PROTOCOL) atomic_store(&channel->broken, true);
}

void rdt_channel_fail_queue(rdt_channel *channel, rdt_status why) {
  pthread_mutex_lock(&channel->send_lock);
  rdt_request *pending = detach_until(channel, NULL);
  pthread_mutex_unlock(&channel->send_lock);
  complete_all(pending, why);
}
