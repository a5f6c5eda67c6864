/* SPDX-License-Identifier: Apache-2.0
 *
 * A channel from its creation to its end, and the reason of that end.
 */
#include "core/post/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/client.h"
#include "core/workers.h"
#include "transport/registry.h"

static void free_unfreed(rdt_remote_region *each) {
  while (each) {
    rdt_remote_region *next = each->next;
    free(each);
    each = next;
  }
}

static void free_now(void *argument) {
  rdt_channel *channel = argument;
  rdt_socket_close(&channel->control);
  channel->transport->endpoint_destroy(channel->endpoint);
  free(channel->unsent);
  free_unfreed(channel->unfreed);
  free(channel->passed_over);
  rdt_pool_unref(channel->pool);
  pthread_mutex_destroy(&channel->poll_lock);
  pthread_mutex_destroy(&channel->send_lock);
  pthread_mutex_destroy(&channel->control_lock);
  pthread_mutex_destroy(&channel->lock);
  pthread_cond_destroy(&channel->answered);
  rdt_device *device = channel->device;
  rdt_admission_leave(&device->admission, channel->guest);
  free(channel);
  rdt_device_unref(device);
}

/* A driver may take long to destroy a queue pair: neither the device's other channels nor the caller wait for it. */
static void channel_free(rdt_channel *channel) {
  if (!rdt_worker_start(channel->device, RDT_TASK_ENDING, free_now, channel)) free_now(channel);
}

rdt_status rdt_channel_create(rdt_device *device, const rdt_transport *transport,
                              rdt_purpose purpose, rdt_bundle *offer, rdt_channel **channel_out) {
  rdt_channel *channel = calloc(1, sizeof(*channel));
  if (!channel) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  const rdt_device_transport *own = &device->transports[rdt_transport_index(transport)];
  transport = own->ops;
  rdt_status status = transport->endpoint_create(own->domain, &channel->endpoint, offer);
  if (status != RDT_OK) {
    free(channel);
    return status;
  }
  static _Atomic uint64_t channels;
  atomic_init(&channel->refs, 1);
  channel->free = channel_free;
  channel->purpose = purpose;
  channel->client = rdt_client_of(purpose);
  channel->number = atomic_fetch_add(&channels, 1) + 1;
  channel->device = device;
  rdt_device_ref(device);
  channel->transport = transport;
  channel->control = RDT_NO_SOCKET;
  channel->queue_tail = &channel->queue;
  channel->control_watch = (rdt_watch){.kind = RDT_WATCH_CONTROL, .channel = channel};
  channel->event_watch = (rdt_watch){.kind = RDT_WATCH_ENDPOINT, .channel = channel};
  pthread_mutex_init(&channel->poll_lock, NULL);
  pthread_mutex_init(&channel->send_lock, NULL);
  pthread_mutex_init(&channel->control_lock, NULL);
  pthread_mutex_init(&channel->lock, NULL);
  rdt_cond_init(&channel->answered);
  channel->pool = rdt_pool_create();
  *channel_out = channel;
  return RDT_OK;
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
      .capabilities = channel->transport->capabilities |
                      (channel->control.tls ? RDT_CAP_ENCRYPTED : 0) |
                      (rdt_channel_atomics(channel) == RDT_ATOMICS_NONE ? 0 : RDT_CAP_ATOMIC),
      .memory_kinds = channel->transport->memory_kinds,
      .generation = channel->peer_generation,
      .max_notify = channel->transport->max_notify(channel->endpoint),
      .up = !atomic_load(&channel->down) && !atomic_load(&channel->close_requested),
  };
  return RDT_OK;
}

rdt_atomics rdt_channel_atomics(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return transport->atomics ? transport->atomics(channel->endpoint) : RDT_ATOMICS_CPU;
}

const char *rdt_channel_passed_over(const rdt_channel *channel) {
  return channel && channel->passed_over ? channel->passed_over : "";
}

const char *rdt_channel_better(const rdt_channel *channel) {
  return channel ? channel->better : "";
}

void rdt_channel_set_context(rdt_channel *channel, void *context) {
  atomic_store(&channel->context, context);
}

void *rdt_channel_context(const rdt_channel *channel) {
  return atomic_load(&((rdt_channel *)channel)->context);
}

rdt_status rdt_channel_fail_down(const rdt_channel *channel) {
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "the connection to %s at %s is lost: %s",
                  channel->peer_name, channel->peer_address, channel->cause);
}

void rdt_channel_note_cause(rdt_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  if (!channel->cause[0]) snprintf(channel->cause, sizeof(channel->cause), "%s", rdt_last_error());
  pthread_mutex_unlock(&channel->lock);
}

rdt_status rdt_channel_fail_transfer(rdt_channel *channel, rdt_status status) {
  char cause[sizeof(channel->cause)];
  pthread_mutex_lock(&channel->lock);
  memcpy(cause, channel->cause, sizeof(cause));
  pthread_mutex_unlock(&channel->lock);
  if (cause[0])
    return rdt_fail(status, "the connection to %s at %s is lost: %s", channel->peer_name,
                    channel->peer_address, cause);
  return rdt_fail(status, "the transfer failed: %s", rdt_status_text(status));
}

void rdt_channel_break(rdt_channel *channel) {
  rdt_channel_note_cause(channel);
  if (!atomic_exchange(&channel->broken, true)) rdt_device_wake(channel->device);
}
