/* SPDX-License-Identifier: Apache-2.0
 *
 * Shareable memory: sealed memfds, mapped here, that can be handed to other processes.
 */
#ifndef RDT_BASE_MEMORY_H
#define RDT_BASE_MEMORY_H

#include <stdbool.h>

#include "rdmatensor.h"

/* Creates and maps a zero-filled memfd of `size` bytes. Its size is sealed, so that no holder
 * can shrink it under a mapping, which would raise SIGBUS. The caller owns both. */
rdt_status rdt_memory_create(size_t size, int *fd, void **address);
/* Allocates like rdt_memory_alloc, in the file of `block`, which this function allocated; NULL: in a new one. Many
 * blocks so keep one descriptor. Whoever gets that of one block can map the others. */
rdt_status rdt_memory_alloc_beside(const void *block, size_t size, void **address);
/* Finds the memfd and offset behind [address, address + size). Returns RDT_ERR_UNSUPPORTED
 * unless the range lies in one block of rdt_memory_alloc. The block keeps the descriptor. */
rdt_status rdt_memory_find(const void *address, size_t size, int *fd, uint64_t *offset);
/* Finds the block of rdt_memory_alloc that holds [address, address + size). Blocks that were allocated beside others are
 * none: their pages come and go. */
bool rdt_memory_block(const void *address, uint64_t size, void **block, uint64_t *length);
/* Opens another descriptor of the memfd, which cannot be mapped writable. */
rdt_status rdt_memory_reopen_readonly(int fd, int *readonly_fd);
/* Maps a part of a peer's memfd, starting at a page, after checking that it is a sealed memfd
 * and long enough. */
rdt_status rdt_memory_map(int fd, uint64_t offset, size_t size, bool writable, void **address);

#endif
