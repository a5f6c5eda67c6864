/* SPDX-License-Identifier: Apache-2.0
 *
 * Which transport a connection takes: the first that both devices have, that reaches the peer, and
 * over which connecting succeeds.
 */
#ifndef RDT_CORE_MEET_CHOICE_H
#define RDT_CORE_MEET_CHOICE_H

#include "core/meet/handshake.h"

/* Of one connection, which may take several attempts. Set to zero first. */
typedef struct rdt_choice {
  const char *permitted; /* names, separated by commas; NULL: any */
  size_t at;             /* the transport that is chosen, an index of rdt_transports */
  bool made, others;     /* one is chosen; there are others after it */
  bool failed[RDT_MAX_TRANSPORTS];
  char why_not[RDT_MAX_TRANSPORTS][256];
  int64_t since; /* ms: when it was chosen */
} rdt_choice;

/* Chooses for the peer that said `peer`. What can be used depends on its user too: *local is the
 * unix socket over which the transport must be attached, or -1. RDT_ERR_NO_TRANSPORT has the reason
 * for each. */
rdt_status rdt_choice_make(rdt_choice *choice, rdt_device *device, const rdt_hello *peer,
                           rdt_deadline deadline, int *local);
/* Notes that the chosen transport failed with the last error. True if another may be tried, with a
 * greeting of its own. Otherwise *status and the last error say what happened to all. */
bool rdt_choice_fails(rdt_choice *choice, rdt_device *device, const rdt_hello *peer,
                      rdt_status *status);
/* How long the chosen transport may take until it has proved that it reaches the peer. */
rdt_deadline rdt_choice_limit(const rdt_choice *choice, rdt_deadline deadline);
/* Tells the channel, and the log, why it does not use a better one. */
void rdt_choice_explain(const rdt_choice *choice, const rdt_hello *peer, rdt_channel *channel);

#endif
