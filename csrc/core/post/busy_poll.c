/* SPDX-License-Identifier: Apache-2.0 */
#include "core/post/busy_poll.h"

#include <sys/timerfd.h>

#include "base/clock.h"
#include "core/post/channel.h"
#include "core/post/overdue.h"

#define TICK_US 100u       /* from a channel's first silence to the first tick */
#define MOST_TICK_US 6400u /* between ticks */
#define STILL_US 1000000   /* what a peer posts after such a pause may wait for a tick */
#define NONE 0u            /* no channel has this number */
#define SEVERAL UINT64_MAX

static void start_tick(rdt_device *device, uint64_t for_channel, unsigned us, int64_t now) {
  const struct itimerspec once = {.it_value.tv_nsec = us * 1000};
  atomic_store(&device->tick_of, for_channel);
  atomic_store(&device->tick_us, us);
  atomic_store(&device->tick_began, now);
  timerfd_settime(device->tick_fd, 0, &once, NULL);
}

static void start_next_tick(rdt_device *device, uint64_t for_channel, int64_t now) {
  const unsigned last = atomic_load(&device->tick_us);
  start_tick(device, for_channel, last < MOST_TICK_US ? 2 * last : last, now);
}

/* A tick would disturb the thread that is busy, so that thread puts it off. Timers are dear on virtual machines, so
 * it does so rarely, and the longer the channel has been silent, the longer may it go on. Only the one channel that a
 * tick is for may put it off, as others wait for it. */
static void keep_silent(rdt_channel *channel, int64_t now) {
  rdt_device *device = channel->device;
  atomic_store(&channel->silent, true);
  if (!atomic_exchange(&device->ticking, true))
    start_tick(device, channel->number, TICK_US, now);
  else if (atomic_load(&device->tick_of) != channel->number)
    atomic_store(&device->tick_of, SEVERAL);
  else if (now - atomic_load(&device->tick_began) >= atomic_load(&device->tick_us) / 2)
    start_next_tick(device, channel->number, now);
}

/* Reports whether something waits for what comes over the channel, other than a thread that polls it. */
static bool wants_events(const rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  return atomic_load(&channel->down) || atomic_load(&channel->sleepers) > 0 ||
         atomic_load(&channel->eventful) > 0 || atomic_load(&channel->queued) ||
         atomic_load(&channel->device->readers) > 0 ||
         (transport->wants_doorbell && transport->wants_doorbell(channel->endpoint));
}

bool rdt_channel_is_silent(const rdt_channel *channel) {
  return atomic_load(&channel->silent) && !wants_events(channel);
}

/* Reports whether a thread will probably wait for something on the channel again. */
static bool stays_silent(const rdt_channel *channel, int64_t now) {
  int64_t longest = atomic_load(&channel->waiters) > 0 ? MOST_TICK_US : TICK_US;
  return now - atomic_load(&channel->waited_us) < longest && !wants_events(channel);
}

bool rdt_channels_stay_silent(rdt_device *device) {
  const int64_t now = rdt_now_us();
  uint64_t still = NONE;
  bool all = true;
  atomic_store(&device->ticking, false); /* a channel that is silent from here on starts it again */
  for (rdt_channel *channel = device->active; channel; channel = channel->next) {
    if (!atomic_load(&channel->silent)) continue;
    if (stays_silent(channel, now)) {
      still = still == NONE ? channel->number : SEVERAL;
    } else {
      atomic_store(&channel->silent, false);
      all = false;
    }
  }
  if (still != NONE && !atomic_exchange(&device->ticking, true))
    start_next_tick(device, still, now);
  return all;
}

/* A silent channel delays what the peer posts. The peer must therefore have posted nothing since the last wait. If no
 * operation is under way that a thread may wait for, the peer must have been still for STILL_US. */
static bool may_be_silent(rdt_channel *channel, int64_t now) {
  if (channel->purpose != RDT_PURPOSE_USER || atomic_load(&channel->warm) || wants_events(channel))
    return false;
  const uint64_t seen = channel->transport->silence(channel->endpoint);
  const bool any = seen != channel->seen;
  if (any) channel->seen_us = now;
  channel->seen = seen;
  return !any && (rdt_overdue_waiting(channel) > 0 || now - channel->seen_us >= STILL_US);
}

void rdt_channel_waiter_expect(rdt_channel *channel) {
  if (!channel->transport->silence || atomic_load(&channel->silent)) return;
  const int64_t now = rdt_now_us();
  if (now - atomic_load(&channel->waited_us) >= TICK_US) return;
  if (pthread_mutex_trylock(&channel->poll_lock) != 0) return;
  if (may_be_silent(channel, now)) keep_silent(channel, now);
  pthread_mutex_unlock(&channel->poll_lock);
}

void rdt_channel_waiter_begin(rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  if (!transport->silence || atomic_fetch_add(&channel->waiters, 1) > 0) return;
  if (atomic_load(&channel->silent)) return;
  if (pthread_mutex_trylock(&channel->poll_lock) != 0) return;
  transport->silence(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
}

void rdt_channel_waiter_end(rdt_channel *channel) {
  const rdt_transport *transport = channel->transport;
  if (!transport->silence || atomic_fetch_sub(&channel->waiters, 1) > 1) return;
  const int64_t now = rdt_now_us();
  bool quiet = true;
  atomic_store(&channel->waited_us, now);
  pthread_mutex_lock(&channel->poll_lock);
  bool silent = may_be_silent(channel, now);
  if (silent)
    keep_silent(channel, now);
  else
    atomic_store(&channel->silent, false);
  if (!silent && !atomic_load(&channel->down) && !atomic_load(&channel->warm))
    quiet = transport->arm(channel->endpoint, true, true);
  pthread_mutex_unlock(&channel->poll_lock);
  if (!quiet) rdt_device_wake(channel->device);
}
