/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of a device that serve the further streams of its endpoints. Long operations go over all streams, and
 * one thread cannot copy for two of them at a time. An I/O thread receives what is written to regions, sends what
 * was posted, and notes what the peer acknowledged; completions and notifications remain to the thread that
 * polls the endpoint.
 */
#ifndef RDT_TRANSPORT_TCP_IO_THREADS_H
#define RDT_TRANSPORT_TCP_IO_THREADS_H

#include "transport/tcp/objects.h"

/* Returns the number of I/O threads that this process has processors for beside the polling thread. */
uint32_t rdt_tcp_io_threads_useful(void);
/* Hands over a stream whose socket is open. Without an I/O thread, because the domain permits none or no thread can
 * start, it remains to the polling thread. Any thread. */
void rdt_tcp_io_attach(rdt_tcp_stream *stream);
/* Takes the endpoint's streams back. No I/O thread touches them any more when it returns, for which it waits no longer
 * than one system call of them takes. Any thread. */
void rdt_tcp_io_detach(rdt_endpoint *endpoint);
/* Ends the domain's I/O threads, which have no streams left. */
void rdt_tcp_io_threads_stop(rdt_domain *domain);

#endif
