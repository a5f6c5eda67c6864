/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets with deadlines, and messages over them: streams (TCP) during bootstrap, and sequenced
 * packets (unix) that carry file descriptors.
 */
#ifndef RDT_BASE_NET_H
#define RDT_BASE_NET_H

#include "base/clock.h"
#include "base/wire.h"

#define RDT_ADDRESS_SIZE 280 /* "host:port" with its terminating zero */
#define RDT_MAX_FDS 4

/* File descriptors in flight; whoever holds the struct owns them. */
typedef struct rdt_fds {
  int fd[RDT_MAX_FDS];
  int count;
  bool lost; /* some did not fit into this process */
} rdt_fds;
void rdt_fds_close(rdt_fds *fds);
/* Moves the first descriptor out; -1 if there is none. */
int rdt_fds_take(rdt_fds *fds);

/* RDT_ERR_LIMIT if descriptors that the peer sent were lost because this process may open no more. */
rdt_status rdt_fds_check(const rdt_fds *fds);

/* From now on every wait of the calling thread in the functions below ends with RDT_ERR_CLOSED as soon as `fd` is
 * readable; -1: none does. */
void rdt_net_interrupt_by(int fd);

/* Waits until the socket is ready for `events` (of poll); one below 0 never is. RDT_ERR_DEADLINE says that the peer
 * did not answer in time, and `what` was waited for. */
rdt_status rdt_net_wait(int socket, short events, rdt_deadline deadline, const char *what);

/* Listens on the first address of `host` that belongs to this machine; `address` gets its "host:port". The deadline
 * bounds the lookup of a name. */
rdt_status rdt_net_listen(const char *host, uint16_t port, rdt_deadline deadline, int *socket_out,
                          char *address);
rdt_status rdt_net_connect(const char *address, rdt_deadline deadline, int *socket_out);

/* Does it carry packets (unix), and not a stream (TCP)? */
bool rdt_net_has_packets(int socket);

/* One whole message; blocks until `deadline`. RDT_ERR_CONNECTION_LOST at end of stream. `fds` may be
 * NULL, and is only for unix sockets; descriptors sent stay the caller's. */
rdt_status rdt_net_send(int socket, const rdt_wire *wire, const rdt_fds *fds,
                        rdt_deadline deadline);
rdt_status rdt_net_receive(int socket, rdt_wire *wire, rdt_fds *fds, rdt_deadline deadline);
/* The same without blocking. Sends what the socket takes, at least one byte, or RDT_IN_PROGRESS. */
rdt_status rdt_net_send_part(int socket, const uint8_t *data, size_t size, const rdt_fds *fds,
                             size_t *sent);
/* RDT_IN_PROGRESS until the message is whole; *have, 0 at first, counts its bytes that are there. */
rdt_status rdt_net_receive_part(int socket, rdt_wire *wire, size_t *have, rdt_fds *fds);

#endif
