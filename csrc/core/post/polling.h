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
/* Takes completions on a thread that waits for one; see busy_poll.h. Returns true if anything came. */
bool rdt_channel_busy_poll(rdt_channel *channel);
/* A thread takes a channel's notifications itself: it begins, polls, and ends. If it ends in
 * order to sleep, the peer wakes the progress thread from then on; false means that something
 * came meanwhile, and that the thread should poll again instead. */
void rdt_channel_begin_polling(rdt_channel *channel);
int rdt_channel_poll(rdt_channel *channel);
void rdt_channel_end_polling(rdt_channel *channel);
bool rdt_channel_end_polling_to_sleep(rdt_channel *channel);

#endif
