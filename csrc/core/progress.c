/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread of a device: takes notifications, sends what waited, serves control messages,
 * and carries channels through their end. It polls while there is work and for two fifths of SPIN_US after; then it
 * asks every peer for a wake-up and sleeps, so that an idle process uses no core.
 */
#include "core/progress.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"
#include "core/client.h"
#include "core/ending.h"
#include "core/memory/control.h"
#include "core/post/channel.h"
#include "core/post/overdue.h"
#include "core/post/polling.h"
#include "core/post/posting.h"
#include "core/post/waiting.h"
#include "transport/registry.h"

#define EVENTS_EVERY 64      /* rounds between checks of sockets while polling, */
#define EVENTS_US 1000       /* and time in which rounds have something to take */
#define WATCH_MS 50          /* interval of checking what no event announces, while asleep */
#define CONTROL_PER_EVENT 16 /* control messages of one channel before the next gets its turn */

static void forget(rdt_device *device, rdt_channel *channel) {
  rdt_channel **link = &device->active;
  while (*link != channel) link = &(*link)->next;
  pthread_mutex_lock(&device->lock);
  *link = channel->next;
  pthread_mutex_unlock(&device->lock);
  epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->control.fd, NULL);
  epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->transport->event_fd(channel->endpoint), NULL);
  rdt_channel_unref(channel);
}

static bool watch(rdt_device *device, int fd, rdt_watch *target) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = target};
  return epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Moves arrivals to the front of device->active, the first that came at the very front: clients meet channels in
 * that order. Returns the first channel that was active before. */
static rdt_channel *activate_arrivals(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  rdt_channel *known = device->active;
  while (device->arrivals) {
    rdt_channel *latest = device->arrivals;
    device->arrivals = latest->next;
    latest->next = device->active;
    device->active = latest;
  }
  pthread_mutex_unlock(&device->lock);
  return known;
}

static void adopt_arrivals(rdt_device *device) {
  rdt_channel *known = activate_arrivals(device);
  for (rdt_channel *channel = device->active; channel != known; channel = channel->next) {
    rdt_count(&device->counters.channels_opened, 1);
    bool watched =
        watch(device, channel->control.fd, &channel->control_watch) &&
        watch(device, channel->transport->event_fd(channel->endpoint), &channel->event_watch);
    channel->client->connected(channel);
    if (!watched)
      rdt_channel_take_down(channel, rdt_fail_errno(errno, "it cannot be watched for events"),
                            RDT_LOG_WARN);
    if (device->transports[rdt_transport_index(channel->transport)].lost)
      rdt_channel_take_down(
          channel, rdt_fail(RDT_ERR_CONNECTION_LOST, "its device failed meanwhile"), RDT_LOG_WARN);
  }
}

/* Returns the number of notifications and completions taken. */
static int advance_channel(rdt_channel *channel, bool may_take) {
  if (channel->drained) return 0;
  bool down = atomic_load_explicit(&channel->down, memory_order_relaxed);
  int taken = 0;
  if (down)
    taken = rdt_channel_runs_task(channel) ? 0 : rdt_channel_take(channel, 0);
  else if (rdt_channel_wants_progress(channel))
    taken = rdt_channel_try_take(channel, may_take ? RDT_POLL_BUDGET : 0);
  rdt_control_flush(channel);
  if (down) return taken;
  if (taken > 0) rdt_channel_note_busy(channel);
  rdt_channel_flush(channel);
  if (taken < 0) {
    rdt_channel_take_down(channel, RDT_ERR_CONNECTION_LOST, RDT_LOG_WARN);
  } else if (atomic_load_explicit(&channel->broken, memory_order_relaxed)) {
    rdt_channel_take_down(channel, RDT_ERR_CONNECTION_LOST, RDT_LOG_WARN);
  } else if (atomic_load_explicit(&channel->close_requested, memory_order_relaxed)) {
    rdt_channel_close_gently(channel, RDT_ERR_CANCELLED, "closed here");
  }
  return taken < 0 ? 0 : taken;
}

static void serve_control(rdt_device *device, rdt_channel *channel) {
  rdt_status status = RDT_OK;
  for (int i = 0; i < CONTROL_PER_EVENT && status == RDT_OK; i++)
    status = rdt_control_receive(channel);
  if (status >= 0) return;
  bool goodbye = status == RDT_ERR_CANCELLED;
  if (channel->peer_gone) {
    epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->control.fd, NULL);
  } else if (!goodbye) {
    /* The peer broke the protocol. It gets a goodbye, and we wait for its end of the stream. */
    rdt_channel_take_down(channel, RDT_ERR_CONNECTION_LOST, RDT_LOG_WARN);
    return;
  }
  /* The peer may have completed transfers before it left. They count, unless this end is already down. */
  while (!atomic_load(&channel->down) &&
         rdt_channel_take(channel, RDT_POLL_BUDGET) >= RDT_POLL_BUDGET)
    continue;
  rdt_fail(RDT_ERR_CONNECTION_LOST, goodbye ? "%s closed the channel" : "%s closed the connection",
           channel->peer_name);
  rdt_channel_take_down(channel, RDT_ERR_CONNECTION_LOST, goodbye ? RDT_LOG_DEBUG : RDT_LOG_WARN);
}

/* Reports whether control messages may be here for which no event comes. */
static bool holds_control(const rdt_channel *channel) {
  return channel->control.tls && !atomic_load(&channel->down) &&
         rdt_tls_holds(channel->control.tls);
}

static int advance_all(rdt_device *device, bool may_take) {
  int taken = 0;
  for (rdt_channel *channel = device->active, *next; channel; channel = next) {
    next = channel->next;
    if (holds_control(channel)) serve_control(device, channel);
    taken += advance_channel(channel, may_take || !channel->client->throttled);
    if (atomic_load_explicit(&channel->down, memory_order_relaxed) && rdt_channel_finish(channel))
      forget(device, channel);
  }
  return taken;
}

static void drain_counter(int fd) {
  uint64_t count;
  ssize_t ignored = read(fd, &count, sizeof(count));
  (void)ignored;
}

/* The transport's port or adapter is gone, and its channels with it. */
static void serve_domain(rdt_device *device, size_t index) {
  const rdt_transport *transport = device->transports[index].ops;
  rdt_domain *domain = device->transports[index].domain;
  if (transport->domain_events(domain) == RDT_OK) return;
  device->transports[index].lost = true;
  /* A removed device would report that for ever and keep this thread awake. */
  epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, transport->domain_event_fd(domain), NULL);
  for (rdt_channel *channel = device->active; channel; channel = channel->next)
    if (channel->transport == transport)
      rdt_channel_take_down(channel, RDT_ERR_CONNECTION_LOST, RDT_LOG_WARN);
}

/* Returns true if nothing came but a tick that changes nothing. */
static bool serve_events(rdt_device *device, int timeout_ms) {
  struct epoll_event events[32];
  bool changes_nothing = false;
  int count = epoll_wait(device->epoll_fd, events, 32, timeout_ms);
  for (int i = 0; i < count; i++) {
    rdt_watch *target = events[i].data.ptr;
    if (!target)
      drain_counter(device->wake_fd);
    else if (target->kind == RDT_WATCH_CONTROL)
      serve_control(device, target->channel);
    else if (target->kind == RDT_WATCH_DOMAIN)
      serve_domain(device, target->transport);
    else if (target->kind == RDT_WATCH_TICK) {
      drain_counter(device->tick.fd);
      changes_nothing = rdt_channels_tick(device) && count == 1;
    }
    /* An endpoint's event only wakes us: advance_all finds what happened. */
  }
  return changes_nothing;
}

/* Probes channels that are silent and breaks those that forgot a request. Returns when to call
 * it again, in milliseconds, or -1. */
static int probe_all(rdt_device *device) {
  int64_t now = rdt_now_ms(), every = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS) / 3 + 1;
  int64_t next = -1;
  for (rdt_channel *channel = device->active; channel; channel = channel->next) {
    if (channel->transport->synchronous || atomic_load(&channel->down)) continue;
    if (now >= channel->next_probe) {
      if (channel->next_probe && channel->transport->probe) rdt_channel_probe(channel);
      if (channel->next_probe && rdt_overdue_tick(channel)) rdt_channel_break(channel);
      channel->next_probe = now + every;
    }
    if (next < 0 || channel->next_probe - now < next) next = channel->next_probe - now;
  }
  return (int)next;
}

/* Completions of our operations need to wake us only if something waits for them. */
static bool wants_completions(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return atomic_load(&channel->down) || channel->closing || atomic_load(&channel->queued) ||
         atomic_load(&channel->waiting.sleepers) > 0 ||
         (transport->wants_doorbell && transport->wants_doorbell(channel->endpoint));
}

static bool arm(rdt_channel *channel, bool may_take) {
  return !holds_control(channel) &&
         rdt_channel_arm(channel, may_take || !channel->client->throttled,
                         wants_completions(channel));
}

static bool arm_all(rdt_device *device, bool may_take) {
  bool quiet = true;
  for (rdt_channel *channel = device->active; channel; channel = channel->next)
    if (!channel->drained && !rdt_channel_runs_task(channel)) quiet &= arm(channel, may_take);
  return quiet;
}

static void disarm_all(rdt_device *device) {
  for (rdt_channel *channel = device->active; channel; channel = channel->next)
    if (!rdt_channel_runs_task(channel)) rdt_channel_disarm(channel);
}

/* Returns true if the channel waits for something that no event announces: a queue's deadline,
 * or a peer that does not take our bytes. */
static bool needs_watching(const rdt_channel *channel) {
  bool ending = channel->closing || atomic_load(&channel->down);
  return atomic_load(&channel->queued) || atomic_load(&channel->has_unsent) ||
         (ending && !channel->drained);
}

static int shorter(int limit, int wanted) { return limit < 0 || limit > wanted ? wanted : limit; }

static int sleep_limit(rdt_device *device) {
  int limit = probe_all(device);
  for (const rdt_channel *channel = device->active; channel; channel = channel->next)
    if (needs_watching(channel)) limit = shorter(limit, WATCH_MS);
  return limit;
}

static void sleep_until_event(rdt_device *device, bool may_take) {
  int limit = sleep_limit(device);
  bool quiet = arm_all(device, may_take);
  const int look = rdt_channels_look_ms(device); /* which arm_all may have changed */
  if (look >= 0) limit = shorter(limit, look);
  /* After arm_all: who adds to it wakes this thread unless a channel is polled (group/run/caller.c). */
  if (atomic_load(&device->client_work) > 0) limit = shorter(limit, WATCH_MS);
  const int64_t end = rdt_now_ms() + limit;
  /* The wake-up that came with `stop` may be drained already. */
  if (quiet && !atomic_load(&device->stop)) {
    while (serve_events(device, limit) && (limit < 0 || rdt_now_ms() < end)) continue;
    rdt_count(&device->counters.wakeups, 1);
  }
  disarm_all(device);
}

/* Ends all channels of a closing device, gently for at most RDT_DRAIN_MS. */
static void end_all(rdt_device *device) {
  int64_t deadline = rdt_now_ms() + 2 * RDT_DRAIN_MS;
  adopt_arrivals(device);
  for (bool waiting = true; waiting && rdt_now_ms() < deadline;) {
    waiting = false;
    for (rdt_channel *channel = device->active; channel; channel = channel->next) {
      if (!atomic_load(&channel->down))
        rdt_channel_close_gently(channel, RDT_ERR_CLOSED, "the device was closed");
      advance_channel(channel, false);
      waiting |= !atomic_load(&channel->down) || !rdt_channel_end(channel);
    }
    if (waiting) serve_events(device, 1);
  }
  while (device->active) {
    rdt_channel *channel = device->active;
    rdt_channel_take_down(channel, RDT_ERR_CLOSED, RDT_LOG_DEBUG);
    channel->drain_deadline = 0;
    rdt_channel_finish(channel);
    forget(device, channel);
  }
}

static void *run_progress(void *argument) {
  rdt_device *device = argument;
  int64_t spin_us = (int64_t)rdt_config_number(RDT_CONFIG_SPIN_US) * 2 / 5;
  int64_t last_work = 0, looked = 0;
  rdt_begin_progress_thread();
  for (unsigned round = 0; !atomic_load(&device->stop); round++) {
    if (round % EVENTS_EVERY == 0 || last_work - looked >= EVENTS_US) {
      looked = rdt_now_us();
      serve_events(device, 0);
      probe_all(device);
    }
    adopt_arrivals(device);
    bool may_take = !atomic_load_explicit(&device->throttled, memory_order_relaxed);
    int taken = advance_all(device, may_take);
    if (atomic_load_explicit(&device->client_work, memory_order_relaxed) > 0)
      taken += rdt_clients_progress(device);
    if (taken > 0) {
      last_work = rdt_now_us();
    } else if (rdt_now_us() - last_work >= spin_us || !rdt_yield()) {
      sleep_until_event(device, may_take);
      last_work = rdt_now_us();
    }
  }
  end_all(device);
  return NULL;
}

static bool watch_domains(rdt_device *device) {
  for (size_t i = 0; i < rdt_transport_count; i++) {
    rdt_device_transport *each = &device->transports[i];
    if (!each->open || !rdt_transports[i]->domain_event_fd) continue;
    each->watch = (rdt_watch){.kind = RDT_WATCH_DOMAIN, .transport = i};
    if (!watch(device, rdt_transports[i]->domain_event_fd(each->domain), &each->watch))
      return false;
  }
  return true;
}

rdt_status rdt_progress_start(rdt_device *device) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  device->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (device->epoll_fd < 0) return rdt_fail_errno(errno, "cannot create an epoll instance");
  int error = epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, device->wake_fd, &event) == 0 ? 0 : errno;
  device->tick.watch.kind = RDT_WATCH_TICK;
  if (!error && !watch(device, device->tick.fd, &device->tick.watch)) error = errno;
  if (!error && !watch_domains(device)) error = errno;
  if (!error) error = pthread_create(&device->progress_thread, NULL, run_progress, device);
  if (!error) return RDT_OK;
  close(device->epoll_fd);
  return rdt_fail_errno(error, "cannot start the progress thread");
}

void rdt_progress_stop(rdt_device *device) {
  atomic_store(&device->stop, true);
  rdt_device_wake(device);
  pthread_join(device->progress_thread, NULL);
  close(device->epoll_fd);
}
