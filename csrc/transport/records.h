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

#define RDT_RECORDS_MIN_CAPACITY 4096u
#define RDT_RECORDS_MAX_CAPACITY (1024u * 1024 * 1024)

typedef struct rdt_record_header {
  uint32_t size; /* payload bytes */
  uint32_t kind; /* rdt_record_kind */
  uint64_t immediate;
} rdt_record_header;

typedef enum { RDT_RECORD_MESSAGE = 1, RDT_RECORD_PADDING = 2 } rdt_record_kind;

/* One side's view of the ring. `position` counts the bytes it ever produced or consumed; `seen`
 * is the other side's position, as last checked. */
typedef struct rdt_records {
  uint8_t *data;
  uint64_t capacity; /* a power of two */
  uint64_t position, seen;
} rdt_records;

typedef enum { RDT_RECORDS_OK, RDT_RECORDS_NONE, RDT_RECORDS_CORRUPT } rdt_records_result;

void rdt_records_init(rdt_records *r, void *data, uint64_t capacity);
/* Reports whether a capacity is a power of two between the limits. */
bool rdt_records_valid_capacity(uint64_t capacity);
/* RING_BYTES rounded up to a valid capacity. */
uint64_t rdt_records_configured_capacity(void);
/* Returns the largest payload of one record: a producer that learns of every quarter of the ring
 * that is freed can always go on. */
uint64_t rdt_records_max_payload(const rdt_records *r);

/* Takes the other side's new position. Returns false if it is impossible. */
bool rdt_records_producer_learn(rdt_records *r, uint64_t consumed);
bool rdt_records_consumer_learn(rdt_records *r, uint64_t produced);

/* Copies a record into the ring. Returns RDT_RECORDS_NONE if no free space is known. */
rdt_records_result rdt_records_put(rdt_records *r, uint64_t immediate, const void *data,
                                   uint32_t size);
/* Finds the oldest record, or returns RDT_RECORDS_NONE. The payload stays in place and is valid
 * until rdt_records_pass; its producer may still change it. */
rdt_records_result rdt_records_peek(rdt_records *r, uint64_t *immediate, const void **data,
                                    uint32_t *size);
/* Passes over the record last peeked. */
void rdt_records_pass(rdt_records *r, uint32_t size);

#endif
