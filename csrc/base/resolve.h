/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_BASE_RESOLVE_H
#define RDT_BASE_RESOLVE_H

#include <netdb.h>

#include "base/clock.h"
#include "rdmatensor.h"

/* Looks up a name for stream sockets, as getaddrinfo(3) with `flags` does, but returns at the
 * deadline or at an interrupt (rdt_wait_interrupt_by) whatever the name server does. The caller
 * frees *found with freeaddrinfo. Returns RDT_ERR_UNREACHABLE if there is no such name,
 * RDT_ERR_DEADLINE, RDT_ERR_CLOSED, or RDT_ERR_LIMIT if too many abandoned lookups have not
 * ended yet. */
rdt_status rdt_resolve(const char *host, const char *port, int flags, rdt_deadline deadline,
                       struct addrinfo **found);

#endif
