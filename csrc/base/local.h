/* SPDX-License-Identifier: Apache-2.0
 *
 * Unix sockets, over which processes of one user on one host meet and pass descriptors. A
 * descriptor from outside can block whoever closes it: a TCP connection does so for as long as its
 * sender likes (SO_LINGER). So nobody may send descriptors before the system has identified the
 * sender as our user. Since Linux 6.16 a socket can refuse descriptors (SO_PASSRIGHTS); it then
 * has an abstract name, which disappears with its last socket. On older kernels the socket lies in
 * a folder that only our user can enter.
 */
#ifndef RDT_BASE_LOCAL_H
#define RDT_BASE_LOCAL_H

#include "base/net.h"

#define RDT_LOCAL_NAME_SIZE 64

/* Creates a listening socket of type SOCK_SEQPACKET, and returns its name for rdt_local_connect. */
rdt_status rdt_local_listen(char name[RDT_LOCAL_NAME_SIZE], int *socket_out);
/* Closes the socket and removes its folder. */
void rdt_local_unlisten(const char *name, int socket);
/* Checks an accepted connection, which may carry descriptors from then on. Returns
 * RDT_ERR_REFUSED unless a process of our user made it. */
rdt_status rdt_local_admit(int socket);
/* Connects to the socket with an untrusted name. Returns RDT_ERR_REFUSED unless a process of our
 * user listens there, and if this process cannot or should not connect. */
rdt_status rdt_local_connect(const char *name, rdt_deadline deadline, int *socket_out);

#endif
