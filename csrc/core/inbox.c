/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications of devices without an on_notify handler: copied here by the progress thread, taken by
 * any thread. Bounded: when full, the rings fill, and senders wait for credit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "core/objects.h"

void rdt_inbox_init(rdt_inbox *inbox) {
  pthread_mutex_init(&inbox->lock, NULL);
  rdt_cond_init(&inbox->arrived);
  inbox->head = NULL;
  inbox->tail = &inbox->head;
  inbox->bytes = 0;
  inbox->limit = rdt_config_number(RDT_CONFIG_NOTIFY_QUEUE_BYTES);
}

static void free_entry(rdt_inbox_entry *entry) {
  rdt_notification_clear(&entry->notification);
  free(entry);
}

void rdt_inbox_close(rdt_inbox *inbox) {
  pthread_mutex_lock(&inbox->lock);
  rdt_inbox_entry *entry = inbox->head;
  inbox->head = NULL;
  inbox->tail = &inbox->head;
  inbox->closed = true;
  pthread_cond_broadcast(&inbox->arrived);
  pthread_mutex_unlock(&inbox->lock);
  while (entry) {
    rdt_inbox_entry *next = entry->next;
    free_entry(entry);
    entry = next;
  }
}

void rdt_inbox_destroy(rdt_inbox *inbox) {
  pthread_cond_destroy(&inbox->arrived);
  pthread_mutex_destroy(&inbox->lock);
}

bool rdt_inbox_put(rdt_inbox *inbox, rdt_channel *channel, uint64_t immediate, const void *data,
                   size_t size) {
  rdt_inbox_entry *entry = calloc(1, sizeof(*entry));
  void *copy = size ? malloc(size) : NULL;
  if (!entry || (size && !copy)) {
    free(entry);
    free(copy);
    return false;
  }
  if (size) memcpy(copy, data, size);
  rdt_channel_ref(channel);
  entry->notification = (rdt_notification){channel, immediate, copy, size};
  pthread_mutex_lock(&inbox->lock);
  *inbox->tail = entry;
  inbox->tail = &entry->next;
  inbox->bytes += sizeof(*entry) + size;
  pthread_cond_signal(&inbox->arrived);
  pthread_mutex_unlock(&inbox->lock);
  return true;
}

bool rdt_inbox_full(rdt_inbox *inbox) {
  pthread_mutex_lock(&inbox->lock);
  bool full = inbox->throttled = inbox->bytes >= inbox->limit;
  pthread_mutex_unlock(&inbox->lock);
  return full;
}

static rdt_inbox_entry *take(rdt_inbox *inbox, rdt_deadline deadline) {
  while (!inbox->head && !inbox->closed && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&inbox->arrived, &inbox->lock, deadline);
  rdt_inbox_entry *entry = inbox->head;
  if (!entry) return NULL;
  inbox->head = entry->next;
  if (!inbox->head) inbox->tail = &inbox->head;
  inbox->bytes -= sizeof(*entry) + entry->notification.size;
  return entry;
}

rdt_status rdt_device_next_notification(rdt_device *device, int timeout_ms,
                                        rdt_notification *notification) {
  if (!device || !notification) return rdt_fail(RDT_ERR_INVALID, "device must not be NULL");
  rdt_status status = rdt_device_check(device);
  if (status != RDT_OK) return status;
  if (device->options.on_notify)
    return rdt_fail(RDT_ERR_INVALID, "device %s has an on_notify handler", device->name);
  rdt_device_ref(device); /* it may be closed while we wait */
  pthread_mutex_lock(&device->inbox.lock);
  rdt_inbox_entry *entry = take(&device->inbox, rdt_deadline_after(timeout_ms));
  bool resume = device->inbox.throttled && device->inbox.bytes < device->inbox.limit / 2;
  if (resume) device->inbox.throttled = false;
  pthread_mutex_unlock(&device->inbox.lock);
  if (resume) rdt_device_wake(device);
  status = rdt_device_check(device);
  rdt_device_unref(device);
  if (!entry && status != RDT_OK) return status;
  if (!entry && timeout_ms == 0) return RDT_IN_PROGRESS;
  if (!entry) return rdt_fail(RDT_ERR_DEADLINE, "no notification came within the deadline");
  *notification = entry->notification;
  free(entry);
  return RDT_OK;
}

void rdt_notification_clear(rdt_notification *notification) {
  if (!notification) return;
  free(notification->data);
  rdt_channel_unref(notification->channel);
  *notification = (rdt_notification){0};
}
