/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools of shareable memory: many pieces in a few blocks of one file.
 *
 * Each block of rdt_memory_alloc keeps a file open. A program that traces ever new graphs would
 * have thousands of them.
 */
#ifndef RDT_BASE_POOL_H
#define RDT_BASE_POOL_H

#include "rdmatensor.h"

/* Thread-safe. Lives until the last reference is dropped; each piece holds one. */
typedef struct rdt_pool rdt_pool;

/* NULL without memory. The caller holds a reference. */
rdt_pool *rdt_pool_create(void);
/* NULL is ignored. */
void rdt_pool_unref(rdt_pool *pool);
/* Takes zero-filled memory, whole pages. A peer that may open one piece can reach the others of its
 * pool over shared memory. Returns RDT_ERR_LIMIT if its file would be one of the last that this
 * process may open. */
rdt_status rdt_pool_take(rdt_pool *pool, size_t size, void **address);
/* Gives a piece of `size` bytes back. A block goes with its last piece. */
void rdt_pool_give_back(rdt_pool *pool, void *address, size_t size);

#endif
