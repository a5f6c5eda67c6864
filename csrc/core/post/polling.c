/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes notifications and completions from a channel's endpoint. Usually the progress thread does
 * so; it is one thread at a time in any case.
 */
#include "core/post/polling.h"

#include "core/client.h"
#include "core/post/channel.h"
#include "core/post/posting.h"

static void take_notification(void *context, uint64_t immediate, const void *data, size_t size) {
  rdt_channel *channel = context;
  rdt_device *device = channel->device;
  rdt_count(&device->counters.notifies_received, 1);
  rdt_count(&device->counters.notify_bytes_received, size);
  channel->client->take(channel, immediate, data, size);
}

/* An operation that fails because the channel is down fails with the reason for that. One that
 * fails before is the reason, which its waiter may ask for before the channel is taken down. */
static void take_completion(void *context, rdt_request *request, rdt_status status) {
  rdt_channel *channel = context;
  if (status < 0 && atomic_load(&channel->down)) status = channel->why;
  if (status < 0) rdt_channel_note_cause(channel);
  rdt_posting_complete((rdt_posting *)request, status);
}

rdt_events rdt_channel_events(rdt_channel *channel) {
  return (rdt_events){channel, take_notification, take_completion};
}

bool rdt_channel_hold(rdt_channel *channel) {
  if (pthread_mutex_trylock(&channel->poll_lock) == 0) return true;
  if (!atomic_load(&channel->down) && atomic_load(&channel->waiting.waiters) > 0) return false;
  pthread_mutex_lock(&channel->poll_lock);
  return true;
}

static int poll_and_let_go(rdt_channel *channel, int budget) {
  rdt_events events = rdt_channel_events(channel);
  int taken = channel->transport->poll(channel->endpoint, budget, &events);
  pthread_mutex_unlock(&channel->poll_lock);
  return taken;
}

int rdt_channel_take(rdt_channel *channel, int budget) {
  pthread_mutex_lock(&channel->poll_lock);
  return poll_and_let_go(channel, budget);
}

int rdt_channel_try_take(rdt_channel *channel, int budget) {
  return rdt_channel_hold(channel) ? poll_and_let_go(channel, budget) : 0;
}
