/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_OVERDUE_H
#define RDT_CORE_POST_OVERDUE_H

#include "core/objects.h"

/* A request begins, gets on, and ends. */
void rdt_overdue_begin(rdt_channel *channel, rdt_posting *posting);
void rdt_overdue_moved(const rdt_posting *posting);
void rdt_overdue_end(const rdt_posting *posting);
/* Reports, as the last error, that the transport forgot a request of the channel. Called on the progress thread,
 * three times within DEADLINE_MS. */
bool rdt_overdue_tick(rdt_channel *channel);
/* Requests of all the device's channels that are not complete at present. */
uint64_t rdt_overdue_pending(rdt_device *device);

#endif
