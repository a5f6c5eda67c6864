/* SPDX-License-Identifier: Apache-2.0
 *
 * What a child of fork must not keep open. Its copy of a socket would hide the death of this process from
 * peers, who wait for the end of stream, and its copy of a listening port would keep a successor from it.
 */
#ifndef RDT_BASE_FORKS_H
#define RDT_BASE_FORKS_H

/* Begins to watch for forks; the first call counts. */
void rdt_forks_watch(void);
/* How many forks lie between this process and the one that watched first. */
unsigned rdt_forks_epoch(void);

/* socket(2) and accept(2) for sockets that children do not keep, from the first moment on: SOCK_CLOEXEC and
 * SOCK_NONBLOCK. -1 with errno. Only rdt_forks_close closes them: a child would else close whatever has the
 * number by then. Thread-safe. */
int rdt_forks_socket(int domain, int type);
int rdt_forks_accept(int listener);
/* Closes one; below 0: nothing. */
void rdt_forks_close(int fd);

#endif
