/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring of variable-length records in memory shared by one producer and one consumer process.
 *
 * Neither trusts the other: each keeps its own position privately and treats what it reads from shared
 * memory as a claim to be checked. Free space is the producer's credit.
 */
#ifndef RDT_TRANSPORT_SHM_RING_H
#define RDT_TRANSPORT_SHM_RING_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_DATA_OFFSET 4096 /* control words in the first page, records behind it */
#define RING_LINE 64

/* Each word on a cache line of its own: producer and consumer write different ones. */
typedef struct ring_control {
  alignas(RING_LINE) _Atomic uint64_t tail;         /* bytes ever produced */
  alignas(RING_LINE) _Atomic uint64_t head;         /* bytes ever consumed */
  alignas(RING_LINE) _Atomic uint32_t sleeping;     /* consumer: wake me at the next record */
  alignas(RING_LINE) _Atomic uint32_t out_of_space; /* producer: wake me when space frees */
} ring_control;

typedef struct ring_record {
  uint32_t size; /* payload bytes */
  uint32_t kind; /* ring_record_kind */
  uint64_t immediate;
} ring_record;

typedef enum { RING_MESSAGE = 1, RING_PADDING = 2 } ring_record_kind;

/* One process's view of a ring; `position` is its own side's, `seen` the last checked value of the
 * other's. */
typedef struct ring {
  ring_control *control;
  uint8_t *data;
  uint64_t capacity; /* bytes of data, a power of two */
  uint64_t position, seen;
} ring;

/* `memory` holds RING_DATA_OFFSET + capacity bytes. */
void ring_init(ring *r, void *memory, uint64_t capacity);
/* Largest payload of one record. */
uint64_t ring_max_payload(const ring *r);

typedef enum { RING_OK, RING_FULL, RING_CORRUPT } ring_result;

/* Copies one record in and publishes it. RING_FULL leaves a request to be woken. */
ring_result ring_produce(ring *r, uint64_t immediate, const void *data, uint32_t size);
/* True if the consumer asked to be woken; takes the request back, so that one wake-up is sent. */
bool ring_consumer_sleeps(ring *r);

/* The oldest record, in place: RING_FULL here means there is none. The payload stays valid until
 * ring_release; its producer may still change it. */
ring_result ring_peek(ring *r, uint64_t *immediate, const void **data, uint32_t *size);
/* Passes over the record last peeked. Space is not given back before ring_give_back. */
void ring_release(ring *r, uint32_t size);
/* Returns consumed space to the producer; true if it waits to be woken. */
bool ring_give_back(ring *r);
/* Asks to be woken; false if a record is there after all. */
bool ring_arm(ring *r);
void ring_disarm(ring *r);

#endif
