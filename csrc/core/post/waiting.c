/* SPDX-License-Identifier: Apache-2.0 */
#include "core/post/waiting.h"

#include <sys/timerfd.h>

#include "base/clock.h"
#include "core/post/channel.h"
#include "core/post/overdue.h"
#include "core/post/polling.h"
#include "core/post/posting.h"

#define LOOK_MS 1 /* interval of checking channels that other threads poll */
#define BUSY_ROUNDS \
  4 /* with something to take since the progress thread slept, after which events are silent */

#define TICK_US 100u       /* from a channel's first silence to the first tick */
#define MOST_TICK_US 6400u /* between ticks */
#define STILL_US 1000000   /* what a peer posts after such a pause may wait for a tick */
#define NONE 0u            /* no channel has this number */
#define SEVERAL UINT64_MAX

static bool in_mode(const rdt_channel *channel, rdt_waiting_mode mode) {
  return atomic_load(&channel->waiting.mode) == mode;
}

/* Ends a mode, unless another thread has ended it. */
static void leave(rdt_channel *channel, rdt_waiting_mode mode) {
  rdt_waiting_mode expected = mode;
  atomic_compare_exchange_strong(&channel->waiting.mode, &expected, RDT_ARMED);
}

static void start_tick(rdt_tick *tick, uint64_t channel, unsigned us, int64_t now) {
  const struct itimerspec once = {.it_value.tv_nsec = us * 1000};
  atomic_store(&tick->channel, channel);
  atomic_store(&tick->us, us);
  atomic_store(&tick->began, now);
  timerfd_settime(tick->fd, 0, &once, NULL);
}

static void start_next_tick(rdt_tick *tick, uint64_t channel, int64_t now) {
  const unsigned last = atomic_load(&tick->us);
  start_tick(tick, channel, last < MOST_TICK_US ? 2 * last : last, now);
}

/* A tick would disturb the thread that is busy, so that thread puts it off. Timers are dear on virtual machines, so
 * it does so rarely, and the longer the channel has been silent, the longer may it go on. Only the one channel that a
 * tick is for may put it off, as others wait for it. */
static void keep_silent(rdt_channel *channel, int64_t now) {
  rdt_tick *tick = &channel->device->tick;
  atomic_store(&channel->waiting.mode, RDT_SILENT);
  if (!atomic_exchange(&tick->runs, true))
    start_tick(tick, channel->number, TICK_US, now);
  else if (atomic_load(&tick->channel) != channel->number)
    atomic_store(&tick->channel, SEVERAL);
  else if (now - atomic_load(&tick->began) >= atomic_load(&tick->us) / 2)
    start_next_tick(tick, channel->number, now);
}

/* Reports whether something waits for what comes over the channel, other than a thread that polls it. */
static bool wants_events(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return atomic_load(&channel->down) || atomic_load(&channel->waiting.sleepers) > 0 ||
         atomic_load(&channel->eventful) > 0 || atomic_load(&channel->queued) ||
         atomic_load(&channel->device->readers) > 0 ||
         (transport->wants_doorbell && transport->wants_doorbell(channel->endpoint));
}

bool rdt_channel_is_silent(const rdt_channel *channel) {
  return in_mode(channel, RDT_SILENT) && !wants_events(channel);
}

/* Reports whether a thread will probably wait for something on the channel again. */
static bool stays_silent(const rdt_channel *channel, int64_t now) {
  int64_t longest = atomic_load(&channel->waiting.waiters) > 0 ? MOST_TICK_US : TICK_US;
  return now - atomic_load(&channel->waiting.waited_us) < longest && !wants_events(channel);
}

bool rdt_channels_tick(rdt_device *device) {
  const int64_t now = rdt_now_us();
  uint64_t still = NONE;
  bool all = true;
  atomic_store(&device->tick.runs,
               false); /* a channel that is silent from here on starts it again */
  for (rdt_channel *channel = device->active; channel; channel = channel->next) {
    if (!in_mode(channel, RDT_SILENT)) continue;
    if (stays_silent(channel, now)) {
      still = still == NONE ? channel->number : SEVERAL;
    } else {
      leave(channel, RDT_SILENT);
      all = false;
    }
  }
  if (still != NONE && !atomic_exchange(&device->tick.runs, true))
    start_next_tick(&device->tick, still, now);
  return all;
}

/* A silent channel delays what the peer posts. The peer must therefore have posted nothing since the last wait. If no
 * operation is under way that a thread may wait for, the peer must have been still for STILL_US. Under poll_lock. */
static bool may_be_silent(rdt_channel *channel, int64_t now) {
  rdt_waiting *waiting = &channel->waiting;
  if (channel->purpose != RDT_PURPOSE_USER || in_mode(channel, RDT_POLLED) || wants_events(channel))
    return false;
  const uint64_t seen = channel->transport->silence(channel->endpoint);
  const bool any = seen != waiting->seen;
  if (any) waiting->seen_us = now;
  waiting->seen = seen;
  return !any && (rdt_overdue_waiting(channel) > 0 || now - waiting->seen_us >= STILL_US);
}

void rdt_channel_waiter_expect(rdt_channel *channel) {
  if (!channel->transport->silence || in_mode(channel, RDT_SILENT)) return;
  const int64_t now = rdt_now_us();
  if (now - atomic_load(&channel->waiting.waited_us) >= TICK_US) return;
  if (pthread_mutex_trylock(&channel->poll_lock) != 0) return;
  if (may_be_silent(channel, now)) keep_silent(channel, now);
  pthread_mutex_unlock(&channel->poll_lock);
}

void rdt_channel_waiter_begin(rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  if (!transport->silence || atomic_fetch_add(&channel->waiting.waiters, 1) > 0) return;
  if (in_mode(channel, RDT_SILENT)) return;
  if (pthread_mutex_trylock(&channel->poll_lock) != 0) return;
  transport->silence(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
}

void rdt_channel_waiter_end(rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  if (!transport->silence || atomic_fetch_sub(&channel->waiting.waiters, 1) > 1) return;
  const int64_t now = rdt_now_us();
  bool quiet = true;
  atomic_store(&channel->waiting.waited_us, now);
  pthread_mutex_lock(&channel->poll_lock);
  if (may_be_silent(channel, now)) {
    keep_silent(channel, now);
  } else {
    leave(channel, RDT_SILENT);
    if (!atomic_load(&channel->down) && in_mode(channel, RDT_ARMED))
      quiet = transport->arm(channel->endpoint, true, true);
  }
  pthread_mutex_unlock(&channel->poll_lock);
  if (!quiet) rdt_device_wake(channel->device);
}

/* The progress thread sleeps meanwhile, so what waited for room is sent here. */
static int poll_instead(rdt_channel *channel, int budget) {
  rdt_events events = rdt_channel_events(channel);
  if (atomic_load(&channel->down) || pthread_mutex_trylock(&channel->poll_lock) != 0) return 0;
  int taken = channel->transport->poll(channel->endpoint, budget, &events);
  unsigned polls = atomic_load_explicit(&channel->waiting.polls, memory_order_relaxed);
  atomic_store_explicit(&channel->waiting.polls, polls + 1, memory_order_relaxed);
  pthread_mutex_unlock(&channel->poll_lock);
  if (taken < 0)
    rdt_channel_break(channel);
  else
    rdt_channel_flush(channel);
  return taken;
}

bool rdt_channel_waiter_poll(rdt_channel *channel) { return poll_instead(channel, 0) != 0; }

int rdt_channel_poller_poll(rdt_channel *channel) { return poll_instead(channel, RDT_POLL_BUDGET); }

void rdt_channel_poller_begin(rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  atomic_fetch_add(&channel->waiting.pollers, 1);
  if (in_mode(channel, RDT_POLLED)) return;
  pthread_mutex_lock(&channel->poll_lock);
  atomic_store(&channel->waiting.mode, RDT_POLLED);
  if (transport->silence)
    transport->silence(channel->endpoint);
  else
    transport->disarm(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
  rdt_device_wake(channel->device); /* it must look by itself now */
}

bool rdt_channel_is_polled(const rdt_channel *channel) {
  return in_mode(channel, RDT_POLLED) && !atomic_load(&channel->down);
}

void rdt_channel_poller_end(rdt_channel *channel) {
  atomic_fetch_sub(&channel->waiting.pollers, 1);
}

bool rdt_channel_poller_sleep(rdt_channel *channel) {
  bool quiet = true;
  pthread_mutex_lock(&channel->poll_lock);
  if (atomic_fetch_sub(&channel->waiting.pollers, 1) == 1 && !atomic_load(&channel->down)) {
    atomic_store(&channel->waiting.mode, RDT_ARMED);
    quiet = channel->transport->arm(channel->endpoint, true, true);
  }
  pthread_mutex_unlock(&channel->poll_lock);
  return quiet;
}

/* Returns true if another thread has polled since the last call. That thread will poll again, but not while it is
 * busy with what it found. */
static bool others_poll(rdt_waiting *waiting) {
  if (atomic_load(&waiting->pollers) + atomic_load(&waiting->waiters) == 0) return false;
  unsigned polls = atomic_load_explicit(&waiting->polls, memory_order_relaxed);
  bool polled = polls != waiting->polls_seen;
  waiting->polls_seen = polls;
  return polled;
}

bool rdt_channel_wants_progress(rdt_channel *channel) {
  return !rdt_channel_is_silent(channel) && !others_poll(&channel->waiting);
}

void rdt_channel_note_busy(rdt_channel *channel) {
  if (!channel->transport->silence || ++channel->waiting.busy != BUSY_ROUNDS) return;
  if (!rdt_channel_hold(channel)) return;
  channel->transport->silence(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
}

/* Ends the mode when nobody has polled between two checks. */
static bool stays_polled(rdt_channel *channel) {
  rdt_waiting *waiting = &channel->waiting;
  if (!in_mode(channel, RDT_POLLED)) return false;
  unsigned polls = atomic_load(&waiting->polls);
  bool used = atomic_load(&waiting->pollers) > 0 ||
              (polls != waiting->polls_armed && atomic_load(&channel->device->client_work) == 0);
  waiting->polls_armed = polls;
  if (!used) leave(channel, RDT_POLLED);
  return used;
}

bool rdt_channel_arm(rdt_channel *channel, bool may_take, bool completions) {
  bool down = atomic_load(&channel->down);
  if (!down && (stays_polled(channel) || rdt_channel_is_silent(channel))) return true;
  if (!rdt_channel_hold(channel)) return true; /* whoever polls arms it in the end */
  bool quiet = (!down && atomic_load(&channel->waiting.waiters) > 0) ||
               channel->transport->arm(channel->endpoint, may_take && !down, completions);
  pthread_mutex_unlock(&channel->poll_lock);
  return quiet;
}

void rdt_channel_disarm(rdt_channel *channel) {
  channel->waiting.busy = 0;
  if (!rdt_channel_hold(channel)) return;
  channel->transport->disarm(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
}

int rdt_channels_look_ms(const rdt_device *device) {
  for (const rdt_channel *channel = device->active; channel; channel = channel->next)
    if (in_mode(channel, RDT_POLLED) ||
        (atomic_load(&channel->waiting.waiters) > 0 && !rdt_channel_is_silent(channel)))
      return LOOK_MS;
  return -1;
}
