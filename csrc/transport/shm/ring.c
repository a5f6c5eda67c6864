/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/ring.h"

void ring_init(ring *r, void *memory, uint64_t capacity) {
  r->control = memory;
  records_init(&r->records, (uint8_t *)memory + RING_DATA_OFFSET, capacity);
}

static records_result put(ring *r, uint64_t immediate, const void *data, uint32_t size) {
  records_result result = records_put(&r->records, immediate, data, size);
  if (result != RECORDS_NONE) return result;
  uint64_t consumed = atomic_load_explicit(&r->control->head, memory_order_acquire);
  if (!records_producer_learn(&r->records, consumed)) return RECORDS_CORRUPT;
  return records_put(&r->records, immediate, data, size);
}

records_result ring_produce(ring *r, uint64_t immediate, const void *data, uint32_t size) {
  records_result result = put(r, immediate, data, size);
  if (result == RECORDS_NONE) {
    atomic_store(&r->control->out_of_space, 1);
    /* The consumer may have freed space before it could see the request. */
    atomic_thread_fence(memory_order_seq_cst);
    result = put(r, immediate, data, size);
  }
  if (result == RECORDS_OK)
    atomic_store_explicit(&r->control->tail, r->records.position, memory_order_release);
  return result;
}

bool ring_consumer_sleeps(ring *r) {
  /* Pairs with the fence in ring_arm: either this side sees the request, or the consumer sees
   * the record. */
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->sleeping, memory_order_relaxed) &&
         atomic_exchange(&r->control->sleeping, 0);
}

records_result ring_peek(ring *r, uint64_t *immediate, const void **data, uint32_t *size) {
  records_result result = records_peek(&r->records, immediate, data, size);
  if (result != RECORDS_NONE) return result;
  uint64_t produced = atomic_load_explicit(&r->control->tail, memory_order_acquire);
  if (!records_consumer_learn(&r->records, produced)) return RECORDS_CORRUPT;
  return records_peek(&r->records, immediate, data, size);
}

void ring_release(ring *r, uint32_t size) { records_pass(&r->records, size); }

bool ring_give_back(ring *r) {
  atomic_store_explicit(&r->control->head, r->records.position, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->out_of_space, memory_order_relaxed) &&
         atomic_exchange(&r->control->out_of_space, 0);
}

bool ring_arm(ring *r) {
  atomic_store_explicit(&r->control->sleeping, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->tail, memory_order_relaxed) == r->records.position;
}

void ring_disarm(ring *r) { atomic_store_explicit(&r->control->sleeping, 0, memory_order_relaxed); }
