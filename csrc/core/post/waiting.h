/* SPDX-License-Identifier: Apache-2.0
 *
 * Who takes what comes over a channel, and how the progress thread learns of it. One thread takes at a time, under
 * poll_lock. A channel is in one of three modes:
 *
 *   mode        who takes                           the progress thread looks
 *   RDT_ARMED   the progress thread, and waiters    at an event; every LOOK_MS while there are waiters
 *   RDT_SILENT  threads that wait now and then      at a tick
 *   RDT_POLLED  threads that take notifications     every LOOK_MS
 *
 *   from    to      when
 *   armed   silent  a wait ends or is to come, the peer posts nothing of its own, and nothing wants an event
 *   silent  armed   a wait ends otherwise, or a tick finds that no thread came back or that something wants an event
 *   any     polled  a thread begins to take notifications
 *   polled  armed   the last such thread goes to sleep, or nobody polled between two looks
 *
 * The reason for the second mode: where completions are events, each would wake the progress thread only to find
 * that the waiter has it already. A thread that waited will probably wait again soon, so the channel stays silent
 * after it. The one timer of a device makes the ticks.
 */
#ifndef RDT_CORE_POST_WAITING_H
#define RDT_CORE_POST_WAITING_H

#include "core/objects.h"

/* A thread waits for a transfer: it begins, polls until that completes, and ends. */
void rdt_channel_waiter_begin(rdt_channel *channel);
/* Takes completions only. Returns true if anything came. */
bool rdt_channel_waiter_poll(rdt_channel *channel);
void rdt_channel_waiter_end(rdt_channel *channel);
/* A thread posted what it will wait for. If it waited a moment ago, the channel is silent from here on. */
void rdt_channel_waiter_expect(rdt_channel *channel);

/* A thread takes a channel's notifications itself: it begins, polls, and ends. */
void rdt_channel_poller_begin(rdt_channel *channel);
/* Returns the result of the transport's poll. */
int rdt_channel_poller_poll(rdt_channel *channel);
void rdt_channel_poller_end(rdt_channel *channel);
/* Returns true if the progress thread looks at the channel every LOOK_MS. It sees client_work then. */
bool rdt_channel_is_polled(const rdt_channel *channel);
/* Likewise, before the thread sleeps: the peer wakes the progress thread from here on. Returns false if something
 * came meanwhile, and the thread should poll again instead. */
bool rdt_channel_poller_sleep(rdt_channel *channel);

/* Whatever begins to want an event wakes the progress thread, which then finds that the channel is silent no more,
 * and arms it. */
bool rdt_channel_is_silent(const rdt_channel *channel);

/* The rest is for the progress thread. */

/* Returns true if that thread should take, since no other does. */
bool rdt_channel_wants_progress(rdt_channel *channel);
/* Counts a round that took something. After some of them events only cost time until this thread sleeps. */
void rdt_channel_note_busy(rdt_channel *channel);
/* Prepares the channel for this thread's sleep, with events for completions if `completions`. Returns false if
 * something has come already. */
bool rdt_channel_arm(rdt_channel *channel, bool may_take, bool completions);
void rdt_channel_disarm(rdt_channel *channel);
/* Returns for how long the thread may sleep because of threads that poll, in ms, or -1 for ever. */
int rdt_channels_look_ms(const rdt_device *device);
/* Serves a tick. Returns false if a channel is silent no more, and must be armed before the thread sleeps. */
bool rdt_channels_tick(rdt_device *device);

#endif
