/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_POLLING_H
#define RDT_CORE_POST_POLLING_H

#include "core/objects.h"

#define RDT_POLL_BUDGET 64 /* notifications of one channel before the next gets its turn */
/* Where a transport hands what it finds for the channel. */
rdt_events rdt_channel_events(rdt_channel *channel);
/* Takes completions and up to `budget` notifications; what the transport's poll returns. */
int rdt_channel_take(rdt_channel *channel, int budget);
/* Takes completions on a thread that waits for one. */
void rdt_channel_help(rdt_channel *channel);
/* A thread begins and ends taking a channel of groups' notifications itself, and does it. One that ends
 * because it is about to sleep has the peer wake the progress thread from then on; false if something came
 * meanwhile, and it should look again instead. */
void rdt_channel_begin_polling(rdt_channel *channel);
int rdt_channel_poll(rdt_channel *channel);
void rdt_channel_end_polling(rdt_channel *channel);
bool rdt_channel_end_polling_to_sleep(rdt_channel *channel);

#endif
