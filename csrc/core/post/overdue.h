/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_OVERDUE_H
#define RDT_CORE_POST_OVERDUE_H

#include "core/objects.h"

/* A request begins, makes progress, and ends. */
void rdt_overdue_begin(rdt_channel *channel, rdt_posting *posting);
void rdt_overdue_moved(const rdt_posting *posting);
void rdt_overdue_end(const rdt_posting *posting);
/* Returns true, with the reason as the last error, if the transport forgot a request of the
 * channel. Call it on the progress thread, three times within DEADLINE_MS. */
bool rdt_overdue_tick(rdt_channel *channel);
/* Returns the number of incomplete requests of the channel. */
unsigned rdt_overdue_waiting(const rdt_channel *channel);
/* Returns the number of incomplete requests of all the device's channels. */
uint64_t rdt_overdue_pending(rdt_device *device);

#endif
