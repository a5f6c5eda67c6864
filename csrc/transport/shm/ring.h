/* SPDX-License-Identifier: Apache-2.0
 *
 * A ring of records in memory shared by two processes: positions, sleep and wake-up are words beside
 * the records. Free space is the producer's credit.
 */
#ifndef RDT_TRANSPORT_SHM_RING_H
#define RDT_TRANSPORT_SHM_RING_H

#include <stdalign.h>
#include <stdatomic.h>

#include "transport/records.h"

#define RING_DATA_OFFSET 4096 /* control words in the first page, records behind it */
#define RING_LINE 64

/* Each word on a cache line of its own: producer and consumer write different ones. */
typedef struct ring_control {
  alignas(RING_LINE) _Atomic uint64_t tail; /* bytes ever produced */
  alignas(RING_LINE) _Atomic uint64_t head; /* bytes ever consumed */
  alignas(
      RING_LINE) _Atomic uint32_t sleeping; /* set by the consumer: wake me at the next record */
  alignas(RING_LINE) _Atomic uint32_t
      out_of_space; /* set by the producer: wake me when space frees */
} ring_control;

/* One process's view of a ring. */
typedef struct ring {
  ring_control *control;
  records records;
} ring;

/* `memory` holds RING_DATA_OFFSET + capacity bytes. */
void ring_init(ring *r, void *memory, uint64_t capacity);

/* Copies one record into the ring and publishes it. If there is no room, returns RECORDS_NONE
 * and leaves a request to be woken. */
records_result ring_produce(ring *r, uint64_t immediate, const void *data, uint32_t size);
/* Returns true if the consumer asked to be woken, and clears the request, so that only one wake-
 * up is sent. */
bool ring_consumer_sleeps(ring *r);

/* Same as records_peek and records_pass. Space is freed by ring_give_back only. */
records_result ring_peek(ring *r, uint64_t *immediate, const void **data, uint32_t *size);
void ring_release(ring *r, uint32_t size);
/* Returns consumed space to the producer. Returns true if the producer waits to be woken. */
bool ring_give_back(ring *r);
/* Asks to be woken. Returns false if there is a record already. */
bool ring_arm(ring *r);
void ring_disarm(ring *r);

#endif
