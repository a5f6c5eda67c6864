/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that poll a channel for their own transfer. Where completions are events, each would wake the progress
 * thread only to find that the helper has it already, so the channel is silent while a thread helps. As a thread
 * that waited will probably wait again soon, the channel lingers after it: it stays silent until a tick finds that
 * the thread did not come back. The one timer of a device, tick_fd, makes the ticks.
 */
#ifndef RDT_CORE_POST_HELPING_H
#define RDT_CORE_POST_HELPING_H

#include "core/objects.h"

/* A thread that waits begins, calls rdt_channel_help, and ends. */
void rdt_channel_begin_help(rdt_channel *channel);
void rdt_channel_end_help(rdt_channel *channel);
/* A thread posted what it will wait for. If it waited a moment ago, the channel lingers from here on. */
void rdt_channel_expect_help(rdt_channel *channel);
/* Whatever begins to want an event wakes the progress thread, which then finds that the channel lingers no more,
 * and arms it. */
bool rdt_channel_lingers(const rdt_channel *channel);
/* The progress thread calls it at a tick. Returns false if a channel lingers no more, and must be armed before
 * that thread sleeps. */
bool rdt_channels_linger_on(rdt_device *device);

#endif
