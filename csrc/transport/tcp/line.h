/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes on one socket of the TCP transport. Nothing else of the transport sends or receives, so
 * encryption has its place here.
 */
#ifndef RDT_TRANSPORT_TCP_LINE_H
#define RDT_TRANSPORT_TCP_LINE_H

#include <sys/types.h>
#include <sys/uio.h>

#include "rdmatensor.h"

/* Prepares a connected socket: no delay, and an end within DEADLINE_MS if the peer's host is gone. */
rdt_status rdt_tcp_line_open(int socket);
/* Move bytes without blocking. They return the number of bytes, 0 if the socket takes or has none
 * now, or -1 with errno; the end of the stream is ECONNRESET. */
ssize_t rdt_tcp_line_send(int socket, struct iovec *parts, int count);
ssize_t rdt_tcp_line_receive(int socket, struct iovec *parts, int count);
/* Returns the bytes that the peer's host has not confirmed. */
uint64_t rdt_tcp_line_unconfirmed(int socket);

#endif
