/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies that memcpy is slow at: those larger than a cache, and those between addresses that are too much alike.
 */
#ifndef RDT_BASE_COPY_H
#define RDT_BASE_COPY_H

#include <stddef.h>

/* Up to so many bytes memcpy is as good. */
#define RDT_COPY_SMALL ((size_t)2048)

/* Copies between memory that does not overlap. From `streamed` bytes on past the cache: what does not fit into it
 * anyway need not be read before it is overwritten. Memory is as it should be for whoever learns of it
 * afterwards. Thread-safe. */
void rdt_copy(void *to, const void *from, size_t size, size_t streamed);

/* `streamed` for memory that another process of this machine shares: half of the last cache, of which more than
 * 64 MB are not one thread's; then the other reads no slower what did not stay there. */
size_t rdt_streamed_from(void);

/* The same in pieces, always past the cache; rdt_stream_end before telling anyone. */
void rdt_stream(void *to, const void *from, size_t size);
void rdt_stream_end(void);

#endif
