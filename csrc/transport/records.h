/* SPDX-License-Identifier: Apache-2.0
 *
 * Variable-length records in a ring of bytes with one producer and one consumer: the layout of
 * every transport's notification queue. The transport tells each side the other's position.
 * Neither side trusts the other, and checks every position it learns.
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

/* One side's view of the ring. `position` counts the bytes it ever produced or consumed; `seen`
 * is the other side's position, as last checked. */
typedef struct records {
  uint8_t *data;
  uint64_t capacity; /* a power of two */
  uint64_t position, seen;
} records;

typedef enum { RECORDS_OK, RECORDS_NONE, RECORDS_CORRUPT } records_result;

void records_init(records *r, void *data, uint64_t capacity);
/* Reports whether a capacity is a power of two between the limits. */
bool records_valid_capacity(uint64_t capacity);
/* RING_BYTES rounded up to a valid capacity. */
uint64_t records_configured_capacity(void);
/* Returns the largest payload of one record: a producer that learns of every quarter of the ring
 * that is freed can always go on. */
uint64_t records_max_payload(const records *r);

/* Takes the other side's new position. Returns false if it is impossible. */
bool records_producer_learn(records *r, uint64_t consumed);
bool records_consumer_learn(records *r, uint64_t produced);

/* Copies a record into the ring. Returns RECORDS_NONE if no free space is known. */
records_result records_put(records *r, uint64_t immediate, const void *data, uint32_t size);
/* Finds the oldest record, or returns RECORDS_NONE. The payload stays in place and is valid
 * until records_pass; its producer may still change it. */
records_result records_peek(records *r, uint64_t *immediate, const void **data, uint32_t *size);
/* Passes over the record last peeked. */
void records_pass(records *r, uint32_t size);

#endif
