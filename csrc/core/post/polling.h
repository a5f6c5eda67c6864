/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_POLLING_H
#define RDT_CORE_POST_POLLING_H

#include "core/objects.h"

#define RDT_POLL_BUDGET 64 /* notifications of one channel before the next channel's turn */
/* The callbacks to which a transport hands what it finds for the channel. */
rdt_events rdt_channel_events(rdt_channel *channel);
/* Takes poll_lock, unless a thread that busy-polls has it. To wait for that one would put this thread to sleep, and
 * cost the other a system call each time it lets go. A thread that moves a group's data has other channels to poll,
 * and this one takes its turn. */
bool rdt_channel_hold(rdt_channel *channel);
/* Takes completions and up to `budget` notifications. Returns the result of the transport's
 * poll. */
int rdt_channel_take(rdt_channel *channel, int budget);
/* Likewise, or returns 0 if rdt_channel_hold fails. */
int rdt_channel_try_take(rdt_channel *channel, int budget);

#endif
