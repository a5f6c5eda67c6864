/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes on one socket of the TCP transport. Nothing else of the transport sends or receives
 */
#ifndef RDT_TRANSPORT_TCP_SOCKET_IO_H
#define RDT_TRANSPORT_TCP_SOCKET_IO_H

#include <sys/types.h>
#include <sys/uio.h>

#include "base/net.h"

#define RDT_TCP_QUIET_BYTES 8192 /* that make an event on a quiet socket */

/* Prepares a connected socket: no delay, and an end within DEADLINE_MS if the peer's host is gone. */
rdt_status rdt_tcp_socket_open(int socket);
/* Move bytes without blocking. They return the number of bytes, 0 if the socket takes or has none
 * now, or -1 with errno; the end of the stream is ECONNRESET. After send took less than all, the next call
 * must begin with what is left. */
ssize_t rdt_tcp_socket_send(rdt_socket socket, struct iovec *parts, int count);
ssize_t rdt_tcp_socket_receive(rdt_socket socket, struct iovec *parts, int count);
/* Does the same with what the socket does not show any more. */
ssize_t rdt_tcp_socket_receive_held(rdt_socket socket, struct iovec *parts, int count);
/* Lets fewer than RDT_TCP_QUIET_BYTES make no event. If they are there when that ends, they make one
 * then. receive() returns them all the same. */
void rdt_tcp_socket_quiet(rdt_socket socket, bool quiet);
/* Reports whether the kernel can do that. */
bool rdt_tcp_socket_can_be_quiet(void);
/* Reports whether received bytes may be here for which no event comes. */
static inline bool rdt_tcp_socket_holds(rdt_socket socket) {
  return socket.tls && rdt_tls_holds(socket.tls);
}
/* Returns the bytes that the peer's host has not confirmed. */
uint64_t rdt_tcp_socket_unconfirmed(int socket);

#endif
