/* SPDX-License-Identifier: Apache-2.0
 *
 * References, and the functions by which all of the core reaches the progress thread. Dropping the
 * last reference calls the `free` function that the object's creator set, so this file depends on
 * none of them.
 */
#include "core/objects.h"

#include <unistd.h>

#include "base/forks.h"
#include "base/status.h"

rdt_status rdt_device_check(const rdt_device *device) {
  if (device->fork_epoch != rdt_forks_epoch())
    return rdt_fail(RDT_ERR_FORKED,
                    "device %s was opened before fork and its threads are in the parent: open a "
                    "device of its own in each process, or start processes with \"spawn\"",
                    device->name);
  if (atomic_load_explicit(&device->stop, memory_order_relaxed))
    return rdt_fail(RDT_ERR_CLOSED, "device %s is closed", device->name);
  return RDT_OK;
}

void rdt_device_ref(rdt_device *device) { atomic_fetch_add(&device->refs, 1); }

void rdt_device_unref(rdt_device *device) {
  if (atomic_fetch_sub(&device->refs, 1) == 1) device->free(device);
}

void rdt_device_wake(rdt_device *device) {
  uint64_t one = 1;
  ssize_t ignored = write(device->wake_fd, &one, sizeof(one));
  (void)ignored;
}

rdt_status rdt_device_adopt(rdt_channel *channel) {
  rdt_device *device = channel->device;
  rdt_status status = RDT_OK;
  channel->max_notify = channel->transport->max_notify(channel->endpoint);
  pthread_mutex_lock(&device->lock);
  if (device->closing) {
    status = rdt_fail(RDT_ERR_CLOSED, "device %s is closing", device->name);
  } else {
    channel->next = device->arrivals;
    device->arrivals = channel;
  }
  pthread_mutex_unlock(&device->lock);
  if (status == RDT_OK) rdt_device_wake(device);
  return status;
}

static _Thread_local bool on_progress_thread;

bool rdt_on_progress_thread(void) { return on_progress_thread; }

void rdt_begin_progress_thread(void) { on_progress_thread = true; }

void rdt_channel_ref(rdt_channel *channel) {
  atomic_fetch_add_explicit(&channel->refs, 1, memory_order_relaxed);
}

/* A forked child's copy is left alone: over verbs its queue pairs are its parent's. */
void rdt_channel_unref(rdt_channel *channel) {
  if (!channel || channel->device->fork_epoch != rdt_forks_epoch()) return;
  if (atomic_fetch_sub(&channel->refs, 1) == 1) channel->free(channel);
}

void rdt_remote_region_ref(rdt_remote_region *region) {
  atomic_fetch_add_explicit(&region->refs, 1, memory_order_relaxed);
}

/* A forked child's copy is left alone, as that of a channel is. */
void rdt_remote_region_unref(rdt_remote_region *region) {
  if (!region || region->channel->device->fork_epoch != rdt_forks_epoch()) return;
  if (atomic_fetch_sub(&region->refs, 1) == 1) region->free(region);
}
