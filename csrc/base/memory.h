/* SPDX-License-Identifier: Apache-2.0
 *
 * Shareable memory: sealed memfds, mapped here, that can be handed to other processes.
 */
#ifndef RDT_BASE_MEMORY_H
#define RDT_BASE_MEMORY_H

#include <stdbool.h>

#include "rdmatensor.h"

/* Creates a zero-filled memfd of `size` bytes whose size is sealed, so that no holder can shrink it
 * under a mapping (that would be SIGBUS), and maps it. The caller owns both. */
rdt_status rdt_memory_create(size_t size, int *fd, void **address);
/* The memfd and offset behind [address, address + size), which must lie in one rdt_memory_alloc block:
 * else RDT_ERR_UNSUPPORTED. The descriptor stays the block's. */
rdt_status rdt_memory_find(const void *address, size_t size, int *fd, uint64_t *offset);
/* A new descriptor for the same memfd that cannot be mapped writable. */
rdt_status rdt_memory_reopen_readonly(int fd, int *readonly_fd);
/* Maps a part of a peer's memfd, from a page's start, after checking that it is one, sealed, and long
 * enough. */
rdt_status rdt_memory_map(int fd, uint64_t offset, size_t size, bool writable, void **address);

#endif
