/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets with deadlines, and messages over them: streams (TCP) during bootstrap, and sequenced
 * packets (unix) that carry file descriptors.
 */
#ifndef RDT_BASE_NET_H
#define RDT_BASE_NET_H

#include <sys/socket.h>

#include "base/clock.h"
#include "base/tls.h"
#include "base/wire.h"

#define RDT_ADDRESS_SIZE 280 /* "host:port" with its terminating zero */
#define RDT_MAX_FDS 4

/* A connected socket, and what encrypts its bytes; NULL: nothing does. */
typedef struct rdt_socket {
  int fd;
  rdt_tls *tls;
} rdt_socket;
#define RDT_NO_SOCKET ((rdt_socket){.fd = -1})
static inline rdt_socket rdt_socket_of(int fd) { return (rdt_socket){.fd = fd}; }
/* Closes it, if there is one. */
void rdt_socket_close(rdt_socket *socket);

/* File descriptors in flight; whoever holds the struct owns them. */
typedef struct rdt_fds {
  int fd[RDT_MAX_FDS];
  int count;
  bool lost; /* some were lost, because this process may open no more */
} rdt_fds;
void rdt_fds_close(rdt_fds *fds);
/* Moves the first descriptor out; -1 if there is none. */
int rdt_fds_take(rdt_fds *fds);

/* Returns RDT_ERR_LIMIT if descriptors from the peer were lost because this process may open no
 * more. */
rdt_status rdt_fds_check(const rdt_fds *fds);

/* Listens on the first address of `host` that belongs to this machine, at the first free port from `first` to
 * `last`; 0 takes any. `address` gets its "host:port". The deadline limits looking up a name. RDT_ERR_LIMIT if all
 * these ports are in use. */
rdt_status rdt_net_listen(const char *host, uint16_t first, uint16_t last, rdt_deadline deadline,
                          int *socket_out, char *address);
rdt_status rdt_net_connect(const char *address, rdt_deadline deadline, int *socket_out);

/* Connects once more to where `other`, which rdt_net_connect made, leads; `reached` tells where. */
typedef struct rdt_reached {
  struct sockaddr_storage address;
  socklen_t length;
} rdt_reached;
rdt_status rdt_net_reached(int other, rdt_reached *reached);
rdt_status rdt_net_connect_again(const rdt_reached *reached, const char *where,
                                 rdt_deadline deadline, int *socket_out);

/* Reports whether the socket carries packets (unix) rather than a stream (TCP). */
bool rdt_net_has_packets(rdt_socket socket);

/* Sends or receives one whole message, and blocks until `deadline`. Returns
 * RDT_ERR_CONNECTION_LOST at the end of the stream. `fds` may be NULL, and is for unix sockets
 * only; the caller keeps the descriptors that were sent. */
rdt_status rdt_net_send(rdt_socket socket, const rdt_wire *wire, const rdt_fds *fds,
                        rdt_deadline deadline);
rdt_status rdt_net_receive(rdt_socket socket, rdt_wire *wire, rdt_fds *fds, rdt_deadline deadline);
/* Sends as much as the socket takes without blocking: at least one byte, else returns
 * RDT_IN_PROGRESS. */
rdt_status rdt_net_send_part(rdt_socket socket, const uint8_t *data, size_t size,
                             const rdt_fds *fds, size_t *sent);
/* Receives without blocking, and returns RDT_IN_PROGRESS until the message is whole. *have
 * counts the bytes that have arrived; set it to 0 first. */
rdt_status rdt_net_receive_part(rdt_socket socket, rdt_wire *wire, size_t *have, rdt_fds *fds);

#endif
