/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_TRANSFER_H
#define RDT_CORE_POST_TRANSFER_H

#include "core/objects.h"

/* A completion that a thread can wait for, held twice: by the waiter and for rdt_transfer_complete. Each gives its
 * hold up with rdt_transfer_free. `channel` is NULL for an operation of a group; then an error keeps its text. NULL
 * without memory. */
rdt_transfer *rdt_transfer_new(rdt_channel *channel);
/* Gives up both holds of a transfer whose completion will not come. */
void rdt_transfer_drop(rdt_transfer *transfer);
/* An rdt_done_fn whose context is the transfer. */
void rdt_transfer_complete(void *transfer, rdt_status status);
/* rdt_channel_post_grant to its end, at most DEADLINE_MS. Not on the progress thread. */
rdt_status rdt_channel_grant(rdt_channel *channel, rdt_registration *registration);

#endif
