/* SPDX-License-Identifier: Apache-2.0
 *
 * One device (the hub) and many peers in a few processes. An *edge* is a region of the hub that one peer writes
 * to: payload, then a notification with its sum. The hub sums up what lies in its memory, compares, and
 * answers with what it found, which the peer compares again; then the edge's next transfer begins. Some
 * payloads are read back too. So every byte is checked at both ends, order and number by a sequence.
 */
#ifndef RDT_TESTS_LOAD_H
#define RDT_TESTS_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "rdmatensor.h"

#define SMALL_BYTES 1024u
#define LARGE_BYTES (256u * 1024)
#define LARGE_EVERY 100u   /* edges, one of which has large payloads */
#define READ_BACK_EVERY 8u /* transfers, one of which is read back */
#define WINDOW 16u         /* transfers that a peer has under way */
#define MAX_PROCESSES 64

typedef struct settings {
  uint32_t peers, processes, edges;
  uint64_t transfers; /* in all; 0: until `seconds` are over */
  uint32_t seconds;
} settings;

/* What a transfer's notification carries; the answer carries the sum alone. */
typedef struct header {
  uint64_t sequence, size, sum;
} header;

/* Shared by all processes. */
typedef struct board {
  settings given;
  char address[280];
  atomic_int ready, connected, go, stop, failed; /* peers, except for flags */
  _Atomic uint64_t transfers, bytes, reads, errors;
} board;

static inline uint64_t edge_bytes(uint32_t edge) {
  return edge % LARGE_EVERY == LARGE_EVERY - 1 ? LARGE_BYTES : SMALL_BYTES;
}

/* Where in the hub's memory it begins. */
static inline uint64_t edge_offset(uint32_t edge) {
  uint64_t large = edge / LARGE_EVERY;
  return large * LARGE_BYTES + (edge - large) * SMALL_BYTES;
}

static inline uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29);
}

/* Depends on every bit and its place; `size` is a multiple of 8. */
static inline uint64_t sum_of(const void *data, uint64_t size) {
  const uint64_t *words = data;
  uint64_t sum = size;
  for (uint64_t i = 0; i < size / 8; i++) sum = mix(sum + words[i]);
  return sum;
}

/* Says what is wrong, and counts it. */
__attribute__((format(printf, 2, 3))) void wrong(board *board, const char *format, ...);

/* In a process of its own: opens `count` peers, from `first`, and lets them work until the end. */
int run_peers(board *board, uint32_t first, uint32_t count);

#endif
