/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/ring.h"

#include <string.h>

#define RECORD_ALIGN 16u

static uint64_t record_bytes(uint64_t payload) {
  return (sizeof(ring_record) + payload + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}

void ring_init(ring *r, void *memory, uint64_t capacity) {
  r->control = memory;
  r->data = (uint8_t *)memory + RING_DATA_OFFSET;
  r->capacity = capacity;
  r->position = r->seen = 0;
}

uint64_t ring_max_payload(const ring *r) { return r->capacity / 4; }

/* Reads the other side's position; it must have moved forward and lie within one lap of ours. */
static bool refresh(ring *r, _Atomic uint64_t *theirs, bool producer) {
  uint64_t claimed = atomic_load_explicit(theirs, memory_order_acquire);
  uint64_t distance = producer ? r->position - claimed : claimed - r->position;
  if (distance > r->capacity) return false;
  r->seen = claimed;
  return true;
}

static void store_record(ring *r, uint64_t at, ring_record_kind kind, uint64_t immediate,
                         const void *data, uint32_t size) {
  ring_record *record = (ring_record *)(r->data + (at & (r->capacity - 1)));
  record->size = size;
  record->kind = kind;
  record->immediate = immediate;
  if (size && data) memcpy(record + 1, data, size);
}

static ring_result find_space(ring *r, uint64_t need) {
  if (r->capacity - (r->position - r->seen) >= need) return RING_OK;
  if (!refresh(r, &r->control->head, true)) return RING_CORRUPT;
  return r->capacity - (r->position - r->seen) >= need ? RING_OK : RING_FULL;
}

ring_result ring_produce(ring *r, uint64_t immediate, const void *data, uint32_t size) {
  uint64_t bytes = record_bytes(size);
  uint64_t to_end = r->capacity - (r->position & (r->capacity - 1));
  uint64_t padding = to_end < bytes ? to_end : 0;
  ring_result result = find_space(r, padding + bytes);
  if (result == RING_FULL) {
    atomic_store(&r->control->out_of_space, 1);
    /* The consumer may have given space back before it could see the request. */
    atomic_thread_fence(memory_order_seq_cst);
    result = find_space(r, padding + bytes);
  }
  if (result != RING_OK) return result;
  if (padding)
    store_record(r, r->position, RING_PADDING, 0, NULL, (uint32_t)(padding - sizeof(ring_record)));
  store_record(r, r->position + padding, RING_MESSAGE, immediate, data, size);
  r->position += padding + bytes;
  atomic_store_explicit(&r->control->tail, r->position, memory_order_release);
  return RING_OK;
}

bool ring_consumer_sleeps(ring *r) {
  /* Pairs with the fence in ring_arm: either we see the request or the consumer sees the record. */
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->sleeping, memory_order_relaxed) &&
         atomic_exchange(&r->control->sleeping, 0);
}

ring_result ring_peek(ring *r, uint64_t *immediate, const void **data, uint32_t *size) {
  for (;;) {
    if (r->seen == r->position) {
      if (!refresh(r, &r->control->tail, false)) return RING_CORRUPT;
      if (r->seen == r->position) return RING_FULL;
    }
    uint64_t at = r->position & (r->capacity - 1), available = r->seen - r->position;
    if (available < sizeof(ring_record) || at % RECORD_ALIGN) return RING_CORRUPT;
    ring_record record; /* a copy: the producer may change its own under us */
    memcpy(&record, r->data + at, sizeof(record));
    uint64_t bytes = record_bytes(record.size);
    if (bytes > available || bytes > r->capacity - at) return RING_CORRUPT;
    if (record.kind == RING_MESSAGE) {
      *immediate = record.immediate;
      *data = r->data + at + sizeof(record);
      *size = record.size;
      return RING_OK;
    }
    if (record.kind != RING_PADDING) return RING_CORRUPT;
    r->position += bytes;
  }
}

void ring_release(ring *r, uint32_t size) { r->position += record_bytes(size); }

bool ring_give_back(ring *r) {
  atomic_store_explicit(&r->control->head, r->position, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->out_of_space, memory_order_relaxed) &&
         atomic_exchange(&r->control->out_of_space, 0);
}

bool ring_arm(ring *r) {
  atomic_store_explicit(&r->control->sleeping, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return atomic_load_explicit(&r->control->tail, memory_order_relaxed) == r->position;
}

void ring_disarm(ring *r) { atomic_store_explicit(&r->control->sleeping, 0, memory_order_relaxed); }
