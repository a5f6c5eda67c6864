/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the pages of a range resident before they are pinned.
 */
#ifndef RDT_TRANSPORT_VERBS_PRETOUCH_H
#define RDT_TRANSPORT_VERBS_PRETOUCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes the pages of [address, address + size) resident, from up to eight threads for large ranges, as
 * if they were written (`write`) or read; contents stay as they are. Registering memory faults pages in
 * one by one, which takes most of its time; this does the same in parallel. An optimization that may do
 * nothing: what is not mapped, or not for writing, is left to the registration to complain of.
 * Thread-safe; others may use the memory meanwhile. */
void rdt_verbs_pretouch(void *address, uint64_t size, bool write);

/* Does the same for whole pages, in this thread and without madvise, for kernels older than
 * 5.14. Does nothing unless the range is anonymous memory or in one rdt_memory_alloc block, and
 * mapped with the access needed: touching anything else could kill the process. Returns true if
 * it touched the pages. */
bool rdt_verbs_touch_by_hand(char *start, size_t size, bool write);

/* Returns the number of threads to use if this process may run on `processors`; at least one. */
unsigned rdt_verbs_pretouch_threads(uint64_t size, unsigned processors);

#endif
