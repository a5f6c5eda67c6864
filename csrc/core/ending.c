/* SPDX-License-Identifier: Apache-2.0
 *
 * Carries a channel through its end: traffic stops, what was posted completes, the peer's access to
 * our memory ends. Drivers may take long to destroy queue pairs and to deregister memory (Linux's
 * SoftRoCE waits for up to 50 s for what still uses them), and the progress thread has other channels,
 * so a worker does that.
 */
#include "core/ending.h"

#include <sys/socket.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "core/client.h"
#include "core/memory/control.h"
#include "core/memory/region.h"
#include "core/memory/remote.h"
#include "core/post/channel.h"
#include "core/post/polling.h"
#include "core/post/posting.h"
#include "core/workers.h"

static void run_task(void *argument) {
  rdt_channel *channel = argument;
  channel->run_task(channel);
  atomic_store(&channel->task, RDT_TASK_DONE);
  rdt_device_wake(channel->device);
  rdt_channel_unref(channel);
}

/* Has a worker run the task, or runs it here if none can start. Returns true once it is done. */
static bool task_done(rdt_channel *channel, void (*run)(rdt_channel *)) {
  if (atomic_load(&channel->task) == RDT_TASK_NONE) {
    channel->run_task = run;
    atomic_store(&channel->task, RDT_TASK_RUNS);
    rdt_channel_ref(channel);
    if (!rdt_worker_start(channel->device, RDT_TASK_ENDING, run_task, channel)) run_task(channel);
  }
  if (atomic_load(&channel->task) != RDT_TASK_DONE) return false;
  atomic_store(&channel->task, RDT_TASK_NONE);
  return true;
}

bool rdt_channel_runs_task(const rdt_channel *channel) {
  return atomic_load_explicit(&channel->task, memory_order_acquire) == RDT_TASK_RUNS;
}

static void sever(rdt_channel *channel) {
  pthread_mutex_lock(&channel->poll_lock);
  if (channel->transport->endpoint_sever) channel->transport->endpoint_sever(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
}

/* Some devices execute what has come until the endpoint is severed: SoftRoCE does, also in the state of errors. Nobody
 * polls a channel that is down, but a thread that had begun before may still do so. */
static void end_access(rdt_channel *channel) {
  pthread_mutex_lock(&channel->poll_lock);
  pthread_mutex_unlock(&channel->poll_lock);
  if (channel->transport->endpoint_sever) channel->transport->endpoint_sever(channel->endpoint);
  rdt_regions_free(channel->device, channel);
}

static bool idle(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return !transport->endpoint_idle || transport->endpoint_idle(channel->endpoint);
}

/* When a peer ends, all channels to it do, one after the other. One line of the log says so. */
static bool is_news(const rdt_channel *lost) {
  if (rdt_now_ms() < lost->announced_until) return false;
  int64_t until = rdt_now_ms() + (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  for (rdt_channel *each = lost->device->active; each; each = each->next)
    if (each->peer_generation == lost->peer_generation) each->announced_until = until;
  return true;
}

/* rdt_channel_finish ends the peer's access to our memory. */
void rdt_channel_take_down(rdt_channel *channel, rdt_status why, rdt_log_level level) {
  rdt_device *device = channel->device;
  if (atomic_load(&channel->down)) return;
  rdt_channel_note_cause(channel);
  channel->why = why;
  atomic_store(&channel->down, true);
  if (level == RDT_LOG_WARN) {
    rdt_count(&device->counters.channels_lost, 1);
    if (!is_news(channel)) level = RDT_LOG_DEBUG;
  }
  rdt_log(level, "device %s: the channel to %s at %s ended: %s", device->name, channel->peer_name,
          channel->peer_address, channel->cause);
  rdt_channel_stop(channel);
  rdt_control_fail_calls(channel, why);
  if (!channel->peer_gone) rdt_control_say_goodbye(channel);
  channel->drain_deadline = rdt_now_ms() + RDT_DRAIN_MS;
}

/* The peer still gets what was posted before the close, if it takes it in time. */
void rdt_channel_close_gently(rdt_channel *channel, rdt_status why, const char *text) {
  if (!channel->closing) {
    channel->closing = true;
    channel->drain_deadline = rdt_now_ms() + RDT_DRAIN_MS;
    rdt_channel_end_queue(channel, why);
    if (channel->transport->probe) rdt_channel_probe(channel);
  }
  if (!idle(channel) && rdt_now_ms() < channel->drain_deadline) return;
  rdt_fail(why, "%s", text);
  rdt_channel_take_down(channel, why, RDT_LOG_DEBUG);
}

bool rdt_channel_drain(rdt_channel *channel) {
  if (channel->drained) return true;
  if (atomic_load(&channel->task) != RDT_TASK_NONE || !idle(channel)) {
    if (rdt_now_ms() < channel->drain_deadline || !task_done(channel, sever)) return false;
    rdt_events events = rdt_channel_events(channel);
    pthread_mutex_lock(&channel->poll_lock);
    channel->transport->endpoint_abort(channel->endpoint, &events);
    pthread_mutex_unlock(&channel->poll_lock);
  }
  rdt_channel_take(channel,
                   0); /* what arrived before it stopped used receives that all peers share */
  channel->drained = true;
  channel->client->down(channel);
  return true;
}

static bool has_tenants(rdt_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  const bool any = channel->tenant_count > 0;
  pthread_mutex_unlock(&channel->lock);
  return any;
}

/* Returns true once the peer can reach no memory of ours, and tells the client. */
static bool withdraw(rdt_channel *channel) {
  rdt_device *device = channel->device;
  if (channel->withdrawn) return true;
  /* A local peer has our memory mapped until it lets go; elsewhere the severed endpoint keeps it out. */
  if (!channel->peer_gone && channel->transport->local) return false;
  pthread_mutex_lock(&device->lock);
  channel->released = true; /* no region can be added for it any more */
  pthread_mutex_unlock(&device->lock);
  const bool takes_long = atomic_load(&channel->task) != RDT_TASK_NONE ||
                          channel->transport->endpoint_sever || has_tenants(channel);
  if (takes_long && !task_done(channel, end_access)) return false;
  channel->withdrawn = true;
  channel->client->released(channel);
  return true;
}

bool rdt_channel_end(rdt_channel *channel) {
  return rdt_channel_drain(channel) && (channel->transport->local || withdraw(channel));
}

bool rdt_channel_finish(rdt_channel *channel) {
  if (!rdt_channel_drain(channel)) return false;
  if (!channel->own_end_sent && !rdt_channel_holds_regions(channel)) {
    shutdown(channel->control.fd, SHUT_WR);
    channel->own_end_sent = true;
  }
  return withdraw(channel) && (channel->own_end_sent || !channel->transport->local);
}
