/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects requests that a transport took and never completes: a device that lost a completion
 * would otherwise keep their owners waiting for ever. Requests are counted in two batches. New
 * requests join the newer one; when the older batch is complete, the newer takes its place. A long
 * backlog is no fault. The channel is lost only if nothing of the older batch moved for
 * DEADLINE_MS: no piece completed, and no operation left the queue.
 */
#include "core/post/overdue.h"

#include "base/config.h"
#include "base/status.h"

#define QUIET_TICKS 3 /* together DEADLINE_MS */

void rdt_overdue_begin(rdt_channel *channel, rdt_posting *posting) {
  posting->channel = channel;
  posting->batch = atomic_load(&channel->batch);
  atomic_fetch_add(&channel->batches[posting->batch].waiting, 1);
  if (posting->request.wants_event) atomic_fetch_add(&channel->eventful, 1);
}

void rdt_overdue_moved(const rdt_posting *posting) {
  atomic_store_explicit(&posting->channel->batches[posting->batch].moved, true,
                        memory_order_relaxed);
}

void rdt_overdue_end(const rdt_posting *posting) {
  if (posting->request.wants_event) atomic_fetch_sub(&posting->channel->eventful, 1);
  atomic_fetch_sub(&posting->channel->batches[posting->batch].waiting, 1);
}

unsigned rdt_overdue_waiting(const rdt_channel *channel) {
  return atomic_load(&channel->batches[0].waiting) + atomic_load(&channel->batches[1].waiting);
}

static uint64_t pending_of(const rdt_channel *channels) {
  uint64_t pending = 0;
  for (const rdt_channel *each = channels; each; each = each->next)
    for (size_t i = 0; i < 2; i++)
      pending += atomic_load_explicit(&each->batches[i].waiting, memory_order_relaxed);
  return pending;
}

uint64_t rdt_overdue_pending(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  uint64_t pending = pending_of(device->active) + pending_of(device->arrivals);
  pthread_mutex_unlock(&device->lock);
  return pending;
}

bool rdt_overdue_tick(rdt_channel *channel) {
  unsigned older = !atomic_load(&channel->batch);
  if (atomic_load(&channel->batches[older].waiting) == 0) {
    channel->quiet_ticks = 0;
    atomic_store(&channel->batch, older);
    return false;
  }
  bool moved = atomic_exchange(&channel->batches[older].moved, false);
  channel->quiet_ticks = moved ? 0 : channel->quiet_ticks + 1;
  if (channel->quiet_ticks < QUIET_TICKS) return false;
  rdt_fail(RDT_ERR_CONNECTION_LOST, "%s did not complete an operation for %llu ms (%sDEADLINE_MS)",
           channel->transport->name, (unsigned long long)rdt_config_number(RDT_CONFIG_DEADLINE_MS),
           RDT_ENV_PREFIX);
  return true;
}
