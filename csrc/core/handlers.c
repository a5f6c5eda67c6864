/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of the user's channels: it calls the user's handlers. Notifications of devices without an on_notify
 * handler are copied into an inbox, from which any thread takes them. The inbox is bounded: when it is full, the
 * rings fill, and senders wait for credit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "core/client.h"
#include "core/post/channel.h"
#include "core/post/events.h"

/* A notification that waits for rdt_device_next_notification. */
typedef struct entry {
  struct entry *next;
  rdt_notification notification;
} entry;

typedef struct inbox {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  entry *head, **tail;
  uint64_t bytes, limit;
  bool closed;
  rdt_event *watchers; /* each counts as one of the device's readers */
} inbox;

static inbox *inbox_of(const rdt_device *device) {
  return rdt_client_state(device, RDT_PURPOSE_USER);
}

static rdt_status open_inbox(rdt_device *device, void **state) {
  (void)device;
  inbox *in = calloc(1, sizeof(*in));
  if (!in) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  pthread_mutex_init(&in->lock, NULL);
  rdt_cond_init(&in->arrived);
  in->tail = &in->head;
  in->limit = rdt_config_number(RDT_CONFIG_NOTIFY_QUEUE_BYTES);
  *state = in;
  return RDT_OK;
}

static void announce(const inbox *in) {
  for (rdt_event *each = in->watchers; each; each = each->next) rdt_event_announce(each);
}

/* Tells event loops that the device is being closed. */
static void interrupt_inbox(rdt_device *device) {
  inbox *in = inbox_of(device);
  pthread_mutex_lock(&in->lock);
  announce(in);
  pthread_mutex_unlock(&in->lock);
}

static void end_watchers(inbox *in) {
  while (in->watchers) {
    rdt_event *event = in->watchers;
    in->watchers = event->next;
    rdt_event_announce_last(event);
  }
}

/* Drops the notifications and wakes the readers. */
static void close_inbox(rdt_device *device) {
  inbox *in = inbox_of(device);
  pthread_mutex_lock(&in->lock);
  entry *each = in->head;
  in->head = NULL;
  in->tail = &in->head;
  in->closed = true;
  end_watchers(in);
  pthread_cond_broadcast(&in->arrived);
  pthread_mutex_unlock(&in->lock);
  while (each) {
    entry *next = each->next;
    rdt_notification_clear(&each->notification);
    free(each);
    each = next;
  }
}

static void free_inbox(void *state) {
  inbox *in = state;
  pthread_cond_destroy(&in->arrived);
  pthread_mutex_destroy(&in->lock);
  free(in);
}

/* Copies a notification into the inbox. Returns false if there is no memory. */
static bool put(rdt_channel *channel, uint64_t immediate, const void *data, size_t size) {
  inbox *in = inbox_of(channel->device);
  entry *added = calloc(1, sizeof(*added));
  void *copy = size ? malloc(size) : NULL;
  if (!added || (size && !copy)) {
    free(added);
    free(copy);
    return false;
  }
  if (size) memcpy(copy, data, size);
  rdt_channel_ref(channel);
  added->notification = (rdt_notification){channel, immediate, copy, size};
  pthread_mutex_lock(&in->lock);
  *in->tail = added;
  in->tail = &added->next;
  in->bytes += sizeof(*added) + size;
  if (in->bytes >= in->limit) atomic_store(&channel->device->throttled, true);
  pthread_cond_signal(&in->arrived);
  announce(in);
  pthread_mutex_unlock(&in->lock);
  return true;
}

/* From here on notifications must wake the progress thread, also those of channels that are silent. */
static void begin_reading(rdt_device *device) {
  atomic_fetch_add(&device->readers, 1);
  if (atomic_load(&device->tick.runs)) rdt_device_wake(device);
}

/* Takes the oldest notification, or returns NULL at the deadline. Sets *resume if senders that
 * were held up may go on. */
static entry *take(rdt_device *device, rdt_deadline deadline, bool *resume) {
  inbox *in = inbox_of(device);
  pthread_mutex_lock(&in->lock);
  const bool reads = !in->head;
  if (reads) begin_reading(device);
  while (!in->head && !in->closed && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&in->arrived, &in->lock, deadline);
  if (reads) atomic_fetch_sub(&device->readers, 1);
  entry *first = in->head;
  if (first) {
    in->head = first->next;
    if (!in->head) in->tail = &in->head;
    in->bytes -= sizeof(*first) + first->notification.size;
  }
  *resume = in->bytes < in->limit / 2 && atomic_exchange(&device->throttled, false);
  pthread_mutex_unlock(&in->lock);
  return first;
}

/* Reports whether notifications of the device are for the inbox. */
static rdt_status check_reader(const rdt_device *device) {
  rdt_status status = rdt_device_check(device);
  if (status == RDT_OK && device->options.on_notify)
    return rdt_fail(RDT_ERR_INVALID, "device %s has an on_notify handler", device->name);
  return status;
}

rdt_status rdt_device_next_notification(rdt_device *device, int timeout_ms,
                                        rdt_notification *notification) {
  if (!device || !notification) return rdt_fail(RDT_ERR_INVALID, "device must not be NULL");
  rdt_status status = check_reader(device);
  if (status != RDT_OK) return status;
  rdt_device_ref(device); /* it may be closed while we wait */
  bool resume;
  entry *first = take(device, rdt_deadline_after(timeout_ms), &resume);
  if (resume) rdt_device_wake(device);
  status = rdt_device_check(device);
  rdt_device_unref(device);
  if (!first && status != RDT_OK) return status;
  if (!first && timeout_ms == 0) return RDT_IN_PROGRESS;
  if (!first) return rdt_fail(RDT_ERR_DEADLINE, "no notification came within the deadline");
  *notification = first->notification;
  free(first);
  return RDT_OK;
}

void rdt_notification_clear(rdt_notification *notification) {
  if (!notification) return;
  free(notification->data);
  rdt_channel_unref(notification->channel);
  *notification = (rdt_notification){0};
}

/* Returns the link to the queue's event, or to the end of the list. */
static rdt_event **find_watcher(inbox *in, const rdt_event_queue *queue) {
  rdt_event **link = &in->watchers;
  while (*link && (*link)->queue != queue) link = &(*link)->next;
  return link;
}

static rdt_status add_watcher(rdt_device *device, rdt_event *event) {
  inbox *in = inbox_of(device);
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&in->lock);
  rdt_event **link = find_watcher(in, event->queue);
  if (in->closed) {
    status = rdt_fail(RDT_ERR_CLOSED, "device %s is closed", device->name);
  } else if (*link) {
    status = rdt_fail(RDT_ERR_INVALID, "the queue watches device %s already", device->name);
  } else {
    *link = event;
    begin_reading(device);
    if (in->head) rdt_event_announce(event);
  }
  pthread_mutex_unlock(&in->lock);
  return status;
}

rdt_status rdt_device_watch(rdt_device *device, rdt_event_queue *queue, uint64_t token) {
  if (!device || !queue) return rdt_fail(RDT_ERR_INVALID, "device and queue must not be NULL");
  rdt_status status = check_reader(device);
  if (status != RDT_OK) return status;
  rdt_event *event = rdt_event_new(queue, token);
  if (!event) return RDT_ERR_NO_MEMORY;
  status = add_watcher(device, event);
  if (status != RDT_OK) rdt_event_free(event);
  return status;
}

void rdt_device_unwatch(rdt_device *device, const rdt_event_queue *queue) {
  if (!device || rdt_device_check(device) == RDT_ERR_FORKED) return;
  inbox *in = inbox_of(device);
  pthread_mutex_lock(&in->lock);
  rdt_event **link = find_watcher(in, queue);
  rdt_event *event = *link;
  if (event) {
    *link = event->next;
    atomic_fetch_sub(&device->readers, 1);
  }
  pthread_mutex_unlock(&in->lock);
  if (event) rdt_event_free(event);
}

/* The user already knows the channels that this process connected itself. */
static void on_connected(rdt_channel *channel) {
  const rdt_device_options *user = &channel->device->options;
  if (channel->accepted && user->on_connect) user->on_connect(user->context, channel);
}

/* Not inlined, so that calling a handler costs no more than a jump. */
__attribute__((noinline)) static void keep(rdt_channel *channel, uint64_t immediate,
                                           const void *data, size_t size) {
  if (put(channel, immediate, data, size)) return;
  rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a notification from %s", channel->peer_name);
  rdt_channel_break(channel);
}

static void on_notification(rdt_channel *channel, uint64_t immediate, const void *data,
                            size_t size) {
  const rdt_device_options *user = &channel->device->options;
  if (user->on_notify)
    user->on_notify(user->context, channel, immediate, data, size);
  else
    keep(channel, immediate, data, size);
}

static void on_down(rdt_channel *channel) {
  const rdt_device_options *user = &channel->device->options;
  if (!user->on_down) return;
  rdt_channel_fail_transfer(channel, channel->why); /* the handler's rdt_last_error() */
  user->on_down(user->context, channel, channel->why);
}

static void on_released(rdt_channel *channel) {
  const rdt_device_options *user = &channel->device->options;
  if (user->on_released) user->on_released(user->context, channel);
}

__attribute__((constructor)) static void register_handlers(void) {
  static const rdt_client handlers = {.throttled = true,
                                      .open = open_inbox,
                                      .free = free_inbox,
                                      .interrupt = interrupt_inbox,
                                      .closed = close_inbox,
                                      .connected = on_connected,
                                      .down = on_down,
                                      .released = on_released,
                                      .take = on_notification};
  rdt_client_register(RDT_PURPOSE_USER, &handlers);
}
