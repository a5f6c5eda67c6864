/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that poll a channel for their own transfer. Where completions are events, each would wake the progress
 * thread only to find that the waiter has it already, so the channel is silent while a thread waits. As a thread
 * that waited will probably wait again soon, the channel stays silent after it, until a tick finds that
 * the thread did not come back. The one timer of a device, tick_fd, makes the ticks.
 */
#ifndef RDT_CORE_POST_BUSY_POLL_H
#define RDT_CORE_POST_BUSY_POLL_H

#include "core/objects.h"

/* A thread that waits begins, calls rdt_channel_busy_poll, and ends. */
void rdt_channel_waiter_begin(rdt_channel *channel);
void rdt_channel_waiter_end(rdt_channel *channel);
/* A thread posted what it will wait for. If it waited a moment ago, the channel is silent from here on. */
void rdt_channel_waiter_expect(rdt_channel *channel);
/* Whatever begins to want an event wakes the progress thread, which then finds that the channel is silent no more,
 * and arms it. */
bool rdt_channel_is_silent(const rdt_channel *channel);
/* The progress thread calls it at a tick. Returns false if a channel is silent no more, and must be armed before
 * that thread sleeps. */
bool rdt_channels_stay_silent(rdt_device *device);

#endif
