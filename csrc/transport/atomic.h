/* SPDX-License-Identifier: Apache-2.0
 *
 * Atomic operations that a processor executes: the caller's over shm, the owner's over tcp.
 */
#ifndef RDT_TRANSPORT_ATOMIC_H
#define RDT_TRANSPORT_ATOMIC_H

#include <stdbool.h>

#include "rdmatensor.h"

/* Returns whether a processor can execute one at `word`. */
static inline bool rdt_atomic_aligned(const void *word) {
  return (uintptr_t)word % RDT_ATOMIC_SIZE == 0;
}

static inline uint64_t rdt_atomic_fetch_add(void *word, uint64_t added) {
  return __atomic_fetch_add((uint64_t *)word, added, __ATOMIC_SEQ_CST);
}

/* Returns the word's old value, which is `expected` if it was replaced. */
static inline uint64_t rdt_atomic_compare_swap(void *word, uint64_t expected, uint64_t desired) {
  __atomic_compare_exchange_n((uint64_t *)word, &expected, desired, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return expected;
}

#endif
