/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/records.h"

#include <string.h>

#include "base/config.h"

#define RECORD_ALIGN 16u

static uint64_t record_bytes(uint64_t payload) {
  return (sizeof(record_header) + payload + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}

void records_init(records *r, void *data, uint64_t capacity) {
  *r = (records){.data = data, .capacity = capacity};
}

bool records_valid_capacity(uint64_t capacity) {
  return capacity >= RECORDS_MIN_CAPACITY && capacity <= RECORDS_MAX_CAPACITY &&
         (capacity & (capacity - 1)) == 0;
}

uint64_t records_configured_capacity(void) {
  uint64_t capacity = RECORDS_MIN_CAPACITY, wanted = rdt_config_number(RDT_CONFIG_RING_BYTES);
  while (capacity < wanted) capacity *= 2;
  return capacity;
}

uint64_t records_max_payload(const records *r) { return r->capacity / 4; }

/* Positions only grow, and are never further apart than one lap. */
bool records_producer_learn(records *r, uint64_t consumed) {
  if (r->position - consumed > r->capacity) return false;
  r->seen = consumed;
  return true;
}

bool records_consumer_learn(records *r, uint64_t produced) {
  if (produced - r->position > r->capacity) return false;
  r->seen = produced;
  return true;
}

static void store(records *r, uint64_t at, record_kind kind, uint64_t immediate, const void *data,
                  uint32_t size) {
  record_header *record = (record_header *)(r->data + (at & (r->capacity - 1)));
  record->size = size;
  record->kind = kind;
  record->immediate = immediate;
  if (size && data) memcpy(record + 1, data, size);
}

records_result records_put(records *r, uint64_t immediate, const void *data, uint32_t size) {
  uint64_t bytes = record_bytes(size);
  uint64_t to_end = r->capacity - (r->position & (r->capacity - 1));
  uint64_t padding = to_end < bytes ? to_end : 0;
  if (r->capacity - (r->position - r->seen) < padding + bytes) return RECORDS_NONE;
  if (padding)
    store(r, r->position, RECORD_PADDING, 0, NULL, (uint32_t)(padding - sizeof(record_header)));
  store(r, r->position + padding, RECORD_MESSAGE, immediate, data, size);
  r->position += padding + bytes;
  return RECORDS_OK;
}

records_result records_peek(records *r, uint64_t *immediate, const void **data, uint32_t *size) {
  while (r->seen != r->position) {
    uint64_t at = r->position & (r->capacity - 1), available = r->seen - r->position;
    if (available < sizeof(record_header) || at % RECORD_ALIGN) return RECORDS_CORRUPT;
    record_header record; /* a copy, because the producer may change the original meanwhile */
    memcpy(&record, r->data + at, sizeof(record));
    uint64_t bytes = record_bytes(record.size);
    if (bytes > available || bytes > r->capacity - at) return RECORDS_CORRUPT;
    if (record.kind == RECORD_MESSAGE) {
      *immediate = record.immediate;
      *data = r->data + at + sizeof(record);
      *size = record.size;
      return RECORDS_OK;
    }
    if (record.kind != RECORD_PADDING) return RECORDS_CORRUPT;
    r->position += bytes;
  }
  return RECORDS_NONE;
}

void records_pass(records *r, uint32_t size) { r->position += record_bytes(size); }
