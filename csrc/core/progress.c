/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress thread of a device: takes notifications, sends what waited, serves control messages,
 * and carries channels through their end. It polls while there is work and for SPIN_US after; then it
 * asks every peer for a wake-up and sleeps, so that an idle process uses no core.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/config.h"
#include "core/control.h"
#include "core/log.h"
#include "core/objects.h"
#include "core/status.h"

#define POLL_BUDGET 64       /* notifications of one channel before the next gets its turn */
#define EVENTS_EVERY 64      /* rounds between looks at sockets while polling */
#define QUEUE_WATCH_MS 50    /* how often a queue without credit is looked at while asleep */
#define CONTROL_PER_EVENT 16 /* control messages of one channel before the next gets its turn */

static _Thread_local bool on_progress_thread;

bool rdt_on_progress_thread(void) { return on_progress_thread; }

/* ---- a channel's end ------------------------------------------------------------------------------ */

/* Ends traffic; what the peer may still use of ours ends in finish(). */
static void take_down(rdt_channel *channel, rdt_status why, rdt_log_level level) {
  rdt_device *device = channel->device;
  if (atomic_exchange(&channel->down, true)) return;
  if (level == RDT_LOG_WARN) rdt_count(&device->counters.channels_lost, 1);
  rdt_log(level, "device %s: the channel to %s at %s ended: %s", device->name, channel->peer_name,
          channel->peer_address, rdt_last_error());
  rdt_channel_fail_queue(channel, why);
  rdt_control_fail_calls(channel, why);
  if (!channel->peer_gone) rdt_control_say_goodbye(channel);
  if (device->options.on_down) device->options.on_down(device->options.context, channel, why);
}

/* Moves a channel that is down towards its end; true when nothing is left to wait for. */
static bool finish(rdt_channel *channel) {
  rdt_device *device = channel->device;
  if (!channel->own_end_sent && !rdt_channel_holds_regions(channel)) {
    shutdown(channel->control, SHUT_WR);
    channel->own_end_sent = true;
  }
  if (channel->peer_gone && !channel->released) {
    channel->released = true;
    rdt_regions_free(device, channel);
    if (device->options.on_released) device->options.on_released(device->options.context, channel);
  }
  return channel->released && channel->own_end_sent;
}

static void forget(rdt_device *device, rdt_channel *channel) {
  rdt_channel **link = &device->active;
  while (*link != channel) link = &(*link)->next;
  *link = channel->next;
  epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->control, NULL);
  epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->transport->event_fd(channel->endpoint), NULL);
  rdt_channel_unref(channel);
}

/* ---- arrivals -------------------------------------------------------------------------------------- */

rdt_status rdt_progress_adopt(rdt_channel *channel) {
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

static bool watch(rdt_device *device, int fd, rdt_watch *target) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = target};
  return epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void adopt_arrivals(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  rdt_channel *arrived = device->arrivals;
  device->arrivals = NULL;
  pthread_mutex_unlock(&device->lock);
  while (arrived) {
    rdt_channel *channel = arrived;
    arrived = channel->next;
    channel->next = device->active;
    device->active = channel;
    rdt_count(&device->counters.channels_opened, 1);
    bool watched =
        watch(device, channel->control, &channel->control_watch) &&
        watch(device, channel->transport->event_fd(channel->endpoint), &channel->event_watch);
    if (channel->accepted && device->options.on_connect)
      device->options.on_connect(device->options.context, channel);
    if (!watched) take_down(channel, rdt_fail_errno(errno, "epoll"), RDT_LOG_WARN);
  }
}

/* ---- work ------------------------------------------------------------------------------------------ */

static void take_notification(void *context, uint64_t immediate, const void *data, size_t size) {
  rdt_channel *channel = context;
  rdt_device *device = channel->device;
  rdt_count(&device->counters.notifies_received, 1);
  rdt_count(&device->counters.notify_bytes_received, size);
  if (device->options.on_notify) {
    device->options.on_notify(device->options.context, channel, immediate, data, size);
  } else if (!rdt_inbox_put(&device->inbox, channel, immediate, data, size)) {
    rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a notification from %s", channel->peer_name);
    atomic_store(&channel->broken, true);
  }
}

/* The number of notifications taken. */
static int advance_channel(rdt_channel *channel, bool may_take) {
  if (atomic_load_explicit(&channel->down, memory_order_relaxed)) return 0;
  int taken = 0;
  if (may_take)
    taken = channel->transport->poll(channel->endpoint, POLL_BUDGET, take_notification, channel);
  rdt_channel_flush(channel);
  if (taken < 0) {
    take_down(channel, (rdt_status)taken, RDT_LOG_WARN);
  } else if (atomic_load_explicit(&channel->broken, memory_order_relaxed)) {
    rdt_fail(RDT_ERR_CONNECTION_LOST,
             "it took no notifications for too long, or corrupted its ring");
    take_down(channel, RDT_ERR_CONNECTION_LOST, RDT_LOG_WARN);
  } else if (atomic_load_explicit(&channel->close_requested, memory_order_relaxed)) {
    rdt_fail(RDT_ERR_CANCELLED, "closed here");
    take_down(channel, RDT_ERR_CANCELLED, RDT_LOG_DEBUG);
  }
  return taken < 0 ? 0 : taken;
}

static int advance_all(rdt_device *device, bool may_take) {
  int taken = 0;
  for (rdt_channel *channel = device->active, *next; channel; channel = next) {
    next = channel->next;
    taken += advance_channel(channel, may_take);
    if (atomic_load_explicit(&channel->down, memory_order_relaxed) && finish(channel))
      forget(device, channel);
  }
  return taken;
}

static void serve_control(rdt_device *device, rdt_channel *channel) {
  rdt_status status = RDT_OK;
  for (int i = 0; i < CONTROL_PER_EVENT && status == RDT_OK; i++)
    status = rdt_control_receive(channel);
  if (status >= 0) return;
  bool goodbye = status == RDT_ERR_CANCELLED;
  if (!goodbye) {
    channel->peer_gone = true;
    epoll_ctl(device->epoll_fd, EPOLL_CTL_DEL, channel->control, NULL);
  }
  /* Records that the peer completed before it left are still good. */
  while (advance_channel(channel, true) == POLL_BUDGET) continue;
  take_down(channel, RDT_ERR_CONNECTION_LOST, goodbye ? RDT_LOG_DEBUG : RDT_LOG_WARN);
}

static void drain_wake_fd(rdt_device *device) {
  uint64_t count;
  ssize_t ignored = read(device->wake_fd, &count, sizeof(count));
  (void)ignored;
}

static void serve_events(rdt_device *device, int timeout_ms) {
  struct epoll_event events[32];
  int count = epoll_wait(device->epoll_fd, events, 32, timeout_ms);
  for (int i = 0; i < count; i++) {
    rdt_watch *target = events[i].data.ptr;
    if (!target)
      drain_wake_fd(device);
    else if (target->is_control)
      serve_control(device, target->channel);
    /* A transport's event only wakes us: advance_all finds what happened. */
  }
}

/* ---- sleep ------------------------------------------------------------------------------------------ */

static bool arm_all(rdt_device *device, bool may_take) {
  bool quiet = true;
  for (rdt_channel *channel = device->active; channel; channel = channel->next)
    if (may_take && !atomic_load(&channel->down))
      quiet &= channel->transport->arm(channel->endpoint);
  return quiet;
}

static void disarm_all(rdt_device *device) {
  for (rdt_channel *channel = device->active; channel; channel = channel->next)
    channel->transport->disarm(channel->endpoint);
}

static int sleep_limit(const rdt_device *device) {
  for (const rdt_channel *channel = device->active; channel; channel = channel->next)
    if (atomic_load(&channel->queued)) return QUEUE_WATCH_MS;
  return -1;
}

static void sleep_until_event(rdt_device *device, bool may_take) {
  if (arm_all(device, may_take)) {
    serve_events(device, sleep_limit(device));
    rdt_count(&device->counters.wakeups, 1);
  }
  disarm_all(device);
}

static void *run_progress(void *argument) {
  rdt_device *device = argument;
  int64_t spin_us = (int64_t)rdt_config_number(RDT_CONFIG_SPIN_US), last_work = 0;
  bool queues = device->options.on_notify == NULL;
  on_progress_thread = true;
  for (unsigned round = 0; !atomic_load(&device->stop); round++) {
    if (round % EVENTS_EVERY == 0) serve_events(device, 0);
    adopt_arrivals(device);
    bool may_take = !(queues && rdt_inbox_full(&device->inbox));
    if (advance_all(device, may_take) > 0) {
      last_work = rdt_now_us();
    } else if (rdt_now_us() - last_work >= spin_us) {
      sleep_until_event(device, may_take);
      last_work = rdt_now_us();
    } else {
      sched_yield(); /* on a busy machine whoever we wait for may need this core */
    }
  }
  adopt_arrivals(device);
  while (device->active) {
    rdt_channel *channel = device->active;
    rdt_fail(RDT_ERR_CLOSED, "the device was closed");
    take_down(channel, RDT_ERR_CLOSED, RDT_LOG_DEBUG);
    finish(channel);
    forget(device, channel);
  }
  return NULL;
}

rdt_status rdt_progress_start(rdt_device *device) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
  device->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (device->epoll_fd < 0) return rdt_fail_errno(errno, "cannot create an epoll instance");
  int error = epoll_ctl(device->epoll_fd, EPOLL_CTL_ADD, device->wake_fd, &event) == 0 ? 0 : errno;
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
