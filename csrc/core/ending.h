/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_ENDING_H
#define RDT_CORE_ENDING_H

#include "base/log.h"
#include "core/objects.h"

#define RDT_DRAIN_MS 1000 /* time an ending channel has to complete what was posted */

/* These run on the progress thread, and none of them blocks. */

/* Ends traffic at once, with the last error as the cause. */
void rdt_channel_take_down(rdt_channel *channel, rdt_status why, rdt_log_level level);
/* Ends traffic once what was posted is complete, at the latest after RDT_DRAIN_MS. Call it until the channel is
 * down. */
void rdt_channel_close_gently(rdt_channel *channel, rdt_status why, const char *text);
/* Returns true once everything posted to a channel that is down is complete, and tells the client that traffic has
 * ended. Call it until then. */
bool rdt_channel_drain(rdt_channel *channel);
/* Returns true once that is so and, but for a local peer, the peer can reach no memory of ours, which the client learns
 * too. Call it until then. */
bool rdt_channel_end(rdt_channel *channel);
/* Moves a channel that is down towards its end. Returns true when nothing is left to wait for. */
bool rdt_channel_finish(rdt_channel *channel);
/* Reports whether a worker holds the endpoint, with poll_lock. */
bool rdt_channel_runs_task(const rdt_channel *channel);

#endif
