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

#define RDT_SHM_RING_DATA_OFFSET 4096 /* control words in the first page, records behind it */
#define RDT_SHM_RING_LINE 64

/* Each word on a cache line of its own: producer and consumer write different ones. */
typedef struct rdt_shm_ring_control {
  alignas(RDT_SHM_RING_LINE) _Atomic uint64_t tail; /* bytes ever produced */
  alignas(RDT_SHM_RING_LINE) _Atomic uint64_t head; /* bytes ever consumed */
  alignas(RDT_SHM_RING_LINE) _Atomic uint32_t
      sleeping; /* set by the consumer: wake me at the next record */
  alignas(RDT_SHM_RING_LINE) _Atomic uint32_t
      out_of_space; /* set by the producer: wake me when space frees */
} rdt_shm_ring_control;

/* One process's view of a ring. */
typedef struct rdt_shm_ring {
  rdt_shm_ring_control *control;
  rdt_records records;
} rdt_shm_ring;

/* `memory` holds RDT_SHM_RING_DATA_OFFSET + capacity bytes. */
void rdt_shm_ring_init(rdt_shm_ring *r, void *memory, uint64_t capacity);

/* Copies one record into the ring and publishes it. If there is no room, returns RDT_RECORDS_NONE
 * and leaves a request to be woken. */
rdt_records_result rdt_shm_ring_produce(rdt_shm_ring *r, uint64_t immediate, const void *data,
                                        uint32_t size);
/* Returns true if the consumer asked to be woken, and clears the request, so that only one wake-
 * up is sent. */
bool rdt_shm_ring_consumer_sleeps(rdt_shm_ring *r);

/* Same as rdt_records_peek and rdt_records_pass. Space is freed by rdt_shm_ring_give_back only. */
rdt_records_result rdt_shm_ring_peek(rdt_shm_ring *r, uint64_t *immediate, const void **data,
                                     uint32_t *size);
void rdt_shm_ring_release(rdt_shm_ring *r, uint32_t size);
/* Returns consumed space to the producer. Returns true if the producer waits to be woken. */
bool rdt_shm_ring_give_back(rdt_shm_ring *r);
/* Asks to be woken. Returns false if there is a record already. */
bool rdt_shm_ring_arm(rdt_shm_ring *r);
void rdt_shm_ring_disarm(rdt_shm_ring *r);

#endif
