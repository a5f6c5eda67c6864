/* SPDX-License-Identifier: Apache-2.0
 *
 * Variable-length records in a ring of bytes with one producer and one consumer: the layout that every
 * transport's notification queue has. How the two sides learn of each other's position is the
 * transport's business. Neither trusts the other: what it says is a claim to be checked.
 */
#ifndef RDT_TRANSPORT_RECORDS_H
#define RDT_TRANSPORT_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDS_MIN_CAPACITY 4096u
#define RECORDS_MAX_CAPACITY (1024u * 1024 * 1024)

typedef struct record_header {
  uint32_t size; /* payload bytes */
  uint32_t kind; /* record_kind */
  uint64_t immediate;
} record_header;

typedef enum { RECORD_MESSAGE = 1, RECORD_PADDING = 2 } record_kind;

/* One side's view; `position` counts the bytes it ever produced or consumed, `seen` is the last
 * checked value of the other side's. */
typedef struct records {
  uint8_t *data;
  uint64_t capacity; /* a power of two */
  uint64_t position, seen;
} records;

typedef enum { RECORDS_OK, RECORDS_NONE, RECORDS_CORRUPT } records_result;

void records_init(records *r, void *data, uint64_t capacity);
/* A capacity between the limits and a power of two. */
bool records_valid_capacity(uint64_t capacity);
/* RING_BYTES rounded up to a valid capacity. */
uint64_t records_configured_capacity(void);
/* Largest payload of one record. A producer that learns of every quarter of the ring that is freed
 * can always go on. */
uint64_t records_max_payload(const records *r);

/* The other side's new position; false if it cannot be true. */
bool records_producer_learn(records *r, uint64_t consumed);
bool records_consumer_learn(records *r, uint64_t produced);

/* Copies a record in; RECORDS_NONE if there is no room as far as is known. */
records_result records_put(records *r, uint64_t immediate, const void *data, uint32_t size);
/* The oldest record, in place; RECORDS_NONE if none is known. The payload stays valid until
 * records_pass; its producer may still change it. */
records_result records_peek(records *r, uint64_t *immediate, const void **data, uint32_t *size);
/* Passes over the record last peeked. */
void records_pass(records *r, uint32_t size);

#endif
