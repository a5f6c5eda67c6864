/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of a device that serve the further streams of its endpoints. Long operations go over all streams, and
 * one thread cannot copy for two of them at a time. A carrier receives what is written to regions, sends what
 * was posted, and notes what the peer acknowledged; completions and notifications remain to the thread that
 * polls the endpoint.
 */
#ifndef RDT_TRANSPORT_TCP_CARRIERS_H
#define RDT_TRANSPORT_TCP_CARRIERS_H

#include "transport/tcp/objects.h"

/* Returns the number of carriers that this process has processors for beside the polling thread. */
uint32_t rdt_tcp_carriers_useful(void);
/* Hands over a stream whose socket is open. Without a carrier, because the domain permits none or no thread can
 * start, it remains to the polling thread. Any thread. */
void rdt_tcp_carry(rdt_tcp_stream *stream);
/* Takes the endpoint's streams back. No carrier touches them any more when it returns, for which it waits no longer
 * than one system call of them takes. Any thread. */
void rdt_tcp_carry_no_more(rdt_endpoint *endpoint);
/* Ends the domain's carriers, which have no streams left. */
void rdt_tcp_carriers_stop(rdt_domain *domain);

#endif
