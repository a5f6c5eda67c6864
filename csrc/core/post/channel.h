/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_CHANNEL_H
#define RDT_CORE_POST_CHANNEL_H

#include "core/objects.h"

/* Creates one end of a channel. Fills `offer` with what the peer's end needs. */
rdt_status rdt_channel_create(rdt_device *device, const rdt_transport *transport,
                              rdt_purpose purpose, rdt_bundle *offer, rdt_channel **channel);
/* Returns what the atomic operations of the channel's peer, on memory here, are atomic with. */
rdt_atomics rdt_channel_atomics(const rdt_channel *channel);
/* Records the calling thread's last error as the cause of the channel's end, unless it has one
 * already. */
void rdt_channel_note_cause(rdt_channel *channel);
/* Records the last error as the cause likewise, and has the progress thread end the channel. */
void rdt_channel_break(rdt_channel *channel);
/* Sets the calling thread's error to the reason why the channel carries no traffic, and returns
 * the status. */
rdt_status rdt_channel_fail_down(const rdt_channel *channel);
/* Does the same for a transfer that failed with `status`, alone or with the channel. */
rdt_status rdt_channel_fail_transfer(rdt_channel *channel, rdt_status status);

#endif
