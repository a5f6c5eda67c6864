/* SPDX-License-Identifier: Apache-2.0
 *
 * Unix sockets, by which processes of one user of one host find each other, and hand over descriptors.
 *
 * A descriptor that comes from outside can block whoever closes it: that of a TCP connection does, for as long as
 * its sender likes (SO_LINGER), even if it was never looked at. So nobody may send one before the system has told
 * that it is our user. Linux 6.16 has sockets that refuse them (SO_PASSRIGHTS), and the name is an abstract
 * one, which is gone with its last socket. Before that, the socket lies in a folder that only our user can enter.
 */
#ifndef RDT_BASE_LOCAL_H
#define RDT_BASE_LOCAL_H

#include "base/net.h"

#define RDT_LOCAL_NAME_SIZE 64

/* A listening socket of type SOCK_SEQPACKET, and the name for rdt_local_connect. */
rdt_status rdt_local_listen(char name[RDT_LOCAL_NAME_SIZE], int *socket_out);
/* Closes it, and removes its folder. */
void rdt_local_unlisten(const char *name, int socket);
/* For a connection that was accepted: RDT_ERR_REFUSED unless a process of our user made it, which may hand over
 * descriptors from now on. */
rdt_status rdt_local_admit(int socket);
/* A connection to the socket of that name, which may be anybody's invention. RDT_ERR_REFUSED unless a process of
 * our user listens there, or if this process could or should not connect to it. */
rdt_status rdt_local_connect(const char *name, rdt_deadline deadline, int *socket_out);

#endif
