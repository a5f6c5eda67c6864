/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies for which memcpy is slow: larger than a cache, or between addresses that are too similar.
 */
#ifndef RDT_BASE_COPY_H
#define RDT_BASE_COPY_H

#include <stddef.h>

/* memcpy is as fast up to this many bytes. */
#define RDT_COPY_SMALL ((size_t)2048)

/* Copies between memory that does not overlap. Copies of `streamed` bytes or more bypass the
 * cache: lines that do not fit into it need not be read before they are overwritten. Whoever
 * learns of the copy afterwards sees it whole. Thread-safe. */
void rdt_copy(void *to, const void *from, size_t size, size_t streamed);

/* The value of `streamed` for memory that another process of this machine shares: half of the
 * last-level cache, of which one thread uses at most 64 MB. The other process then reads no
 * slower. */
size_t rdt_streamed_from(void);

/* Copies one piece, always past the cache. Call rdt_stream_end before anybody is told of the
 * pieces. */
void rdt_stream(void *to, const void *from, size_t size);
void rdt_stream_end(void);

#endif
