/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets that a child of fork must not keep open. Its copy of a connection would hide the death
 * of this process from peers, who wait for the end of the stream. Its copy of a listening socket
 * would keep the port from a successor.
 */
#ifndef RDT_BASE_FORKS_H
#define RDT_BASE_FORKS_H

/* Starts to watch for forks. Later calls do nothing. */
void rdt_forks_watch(void);
/* Returns the number of forks between the process that first watched and this one. */
unsigned rdt_forks_epoch(void);

/* socket(2) and accept(2), with SOCK_CLOEXEC and SOCK_NONBLOCK, for sockets that children close.
 * They return -1 and set errno on failure. Close such a socket with rdt_forks_close only: a
 * child would otherwise close whatever has its number by then. Thread-safe. */
int rdt_forks_socket(int domain, int type);
int rdt_forks_accept(int listener);
/* Closes a socket. Ignores negative numbers. */
void rdt_forks_close(int fd);

#endif
