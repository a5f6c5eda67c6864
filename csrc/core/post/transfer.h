/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_POST_TRANSFER_H
#define RDT_CORE_POST_TRANSFER_H

#include "core/objects.h"

/* Creates a completion that a thread can wait for. The waiter and rdt_transfer_complete each
 * hold it, and each calls rdt_transfer_free. `channel` is NULL for an operation of a group; then
 * an error keeps its text. Returns NULL if there is no memory. */
rdt_transfer *rdt_transfer_new(rdt_channel *channel);
/* Lets a thread that waits drive what the transfer waits for. `adopt` returns false if it can't, `drive` returns when it
 * is over or at `until`. */
typedef struct rdt_transfer_driver {
  bool (*adopt)(void *operation, const rdt_transfer *transfer);
  void (*drive)(void *operation, rdt_deadline until);
} rdt_transfer_driver;
/* `operation` need not exist any more once the transfer is complete. Call it before anybody else has the transfer. */
void rdt_transfer_set_driver(rdt_transfer *transfer, const rdt_transfer_driver *driver,
                             void *operation);
/* Gives up both holds, if the completion will never come. */
void rdt_transfer_drop(rdt_transfer *transfer);
/* The `done` of transfers; its context is the transfer. */
void rdt_transfer_complete(void *transfer, rdt_status status);
/* Posts a grant (rdt_channel_post_grant) and waits for it, for at most DEADLINE_MS. Not on the
 * progress thread. */
rdt_status rdt_channel_grant(rdt_channel *channel, rdt_registration *registration);

#endif
