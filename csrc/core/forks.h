/* SPDX-License-Identifier: Apache-2.0
 *
 * What a child of fork must not keep open. Its copy of a socket would hide the death of this process from
 * peers, who wait for the end of stream, and its copy of a listening port would keep a successor from it.
 */
#ifndef RDT_CORE_FORKS_H
#define RDT_CORE_FORKS_H

#include <stdbool.h>

typedef struct rdt_fork_fd {
  struct rdt_fork_fd *next, **link;
  int *fd;
} rdt_fork_fd;

/* Begins to watch for forks; the first call counts. */
void rdt_forks_watch(void);
/* How many forks lie between this process and the one that watched first. */
unsigned rdt_forks_epoch(void);
/* In children from now on *fd, where it is one (not below 0), is closed and set to -1. `node` is the caller's
 * until rdt_forks_forget, which accepts one that was never added, too. */
void rdt_forks_close_in_child(rdt_fork_fd *node, int *fd);
void rdt_forks_forget(rdt_fork_fd *node);

#endif
