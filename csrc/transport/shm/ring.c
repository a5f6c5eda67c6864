/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/ring.h"

void rdt_shm_ring_init(rdt_shm_ring *r, void *memory, uint64_t capacity) {
  r->control = memory;
  rdt_records_init(&r->records, (uint8_t *)memory + RDT_SHM_RING_DATA_OFFSET, capacity);
}

static rdt_records_result put(rdt_shm_ring *r, uint64_t immediate, const void *data,
                              uint32_t size) {
  rdt_records_result result = rdt_records_put(&r->records, immediate, data, size);
  if (result != RDT_RECORDS_NONE) return result;
  uint64_t consumed = atomic_load_explicit(&r->control->head, memory_order_acquire);
  if (!rdt_records_producer_learn(&r->records, consumed)) return RDT_RECORDS_CORRUPT;
  return rdt_records_put(&r->records, immediate, data, size);
}

rdt_records_result rdt_shm_ring_produce(rdt_shm_ring *r, uint64_t immediate, const void *data,
                                        uint32_t size) {
  rdt_records_result result = put(r, immediate, data, size);
  if (result == RDT_RECORDS_NONE) {
    atomic_store(&r->control->out_of_space, 1);
    /* The consumer may have freed space before it could see the request. */
    atomic_thread_fence(memory_order_seq_cst);
    result = put(r, immediate, data, size);
  }
  if (result == RDT_RECORDS_OK)
    atomic_store_explicit(&r->control->tail, r->records.position, memory_order_release);
  return result;
}

bool rdt_shm_ring_consumer_sleeps(rdt_shm_ring *r) {
  /* Pairs with the fence in rdt_shm_ring_arm: either this side sees the request, or the consumer sees
   * the record. */
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->sleeping, memory_order_relaxed) &&
         atomic_exchange(&r->control->sleeping, 0);
}

rdt_records_result rdt_shm_ring_peek(rdt_shm_ring *r, uint64_t *immediate, const void **data,
                                     uint32_t *size) {
  rdt_records_result result = rdt_records_peek(&r->records, immediate, data, size);
  if (result != RDT_RECORDS_NONE) return result;
  uint64_t produced = atomic_load_explicit(&r->control->tail, memory_order_acquire);
  if (!rdt_records_consumer_learn(&r->records, produced)) return RDT_RECORDS_CORRUPT;
  return rdt_records_peek(&r->records, immediate, data, size);
}

void rdt_shm_ring_release(rdt_shm_ring *r, uint32_t size) { rdt_records_pass(&r->records, size); }

bool rdt_shm_ring_give_back(rdt_shm_ring *r) {
  atomic_store_explicit(&r->control->head, r->records.position, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->out_of_space, memory_order_relaxed) &&
         atomic_exchange(&r->control->out_of_space, 0);
}

bool rdt_shm_ring_arm(rdt_shm_ring *r) {
  atomic_store_explicit(&r->control->sleeping, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->tail, memory_order_relaxed) == r->records.position;
}

void rdt_shm_ring_disarm(rdt_shm_ring *r) {
  atomic_store_explicit(&r->control->sleeping, 0, memory_order_relaxed);
}
