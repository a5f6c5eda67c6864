/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_BASE_RESOLVE_H
#define RDT_BASE_RESOLVE_H

#include <netdb.h>

#include "base/clock.h"
#include "rdmatensor.h"

/* getaddrinfo(3) for stream sockets and numeric ports, which ends at the deadline or when rdt_wait_interrupt_by says
 * so, whatever the name server does. `flags` are of getaddrinfo. The caller frees *found (freeaddrinfo).
 * RDT_ERR_UNREACHABLE: there is no such name. RDT_ERR_DEADLINE, RDT_ERR_CLOSED. RDT_ERR_LIMIT: too many lookups that
 * were given up have not ended yet. */
rdt_status rdt_resolve(const char *host, const char *port, int flags, rdt_deadline deadline,
                       struct addrinfo **found);

#endif
