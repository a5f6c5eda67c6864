/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/records.h"

#include <string.h>

#include "base/config.h"

#define RDT_RECORD_ALIGN 16u

static uint64_t rdt_record_bytes(uint64_t payload) {
  return (sizeof(rdt_record_header) + payload + RDT_RECORD_ALIGN - 1) &
         ~(uint64_t)(RDT_RECORD_ALIGN - 1);
}

void rdt_records_init(rdt_records *r, void *data, uint64_t capacity) {
  *r = (rdt_records){.data = data, .capacity = capacity};
}

bool rdt_records_valid_capacity(uint64_t capacity) {
  return capacity >= RDT_RECORDS_MIN_CAPACITY && capacity <= RDT_RECORDS_MAX_CAPACITY &&
         (capacity & (capacity - 1)) == 0;
}

uint64_t rdt_records_configured_capacity(void) {
  uint64_t capacity = RDT_RECORDS_MIN_CAPACITY, wanted = rdt_config_number(RDT_CONFIG_RING_BYTES);
  while (capacity < wanted) capacity *= 2;
  return capacity;
}

uint64_t rdt_records_max_payload(const rdt_records *r) { return r->capacity / 4; }

/* Positions only grow, and are never further apart than one lap. */
bool rdt_records_producer_learn(rdt_records *r, uint64_t consumed) {
  if (r->position - consumed > r->capacity) return false;
  r->seen = consumed;
  return true;
}

bool rdt_records_consumer_learn(rdt_records *r, uint64_t produced) {
  if (produced - r->position > r->capacity) return false;
  r->seen = produced;
  return true;
}

static void store(rdt_records *r, uint64_t at, rdt_record_kind kind, uint64_t immediate,
                  const void *data, uint32_t size) {
  rdt_record_header *record = (rdt_record_header *)(r->data + (at & (r->capacity - 1)));
  record->size = size;
  record->kind = kind;
  record->immediate = immediate;
  if (size && data) memcpy(record + 1, data, size);
}

rdt_records_result rdt_records_put(rdt_records *r, uint64_t immediate, const void *data,
                                   uint32_t size) {
  uint64_t bytes = rdt_record_bytes(size);
  uint64_t to_end = r->capacity - (r->position & (r->capacity - 1));
  uint64_t padding = to_end < bytes ? to_end : 0;
  if (r->capacity - (r->position - r->seen) < padding + bytes) return RDT_RECORDS_NONE;
  if (padding)
    store(r, r->position, RDT_RECORD_PADDING, 0, NULL,
          (uint32_t)(padding - sizeof(rdt_record_header)));
  store(r, r->position + padding, RDT_RECORD_MESSAGE, immediate, data, size);
  r->position += padding + bytes;
  return RDT_RECORDS_OK;
}

rdt_records_result rdt_records_peek(rdt_records *r, uint64_t *immediate, const void **data,
                                    uint32_t *size) {
  while (r->seen != r->position) {
    uint64_t at = r->position & (r->capacity - 1), available = r->seen - r->position;
    if (available < sizeof(rdt_record_header) || at % RDT_RECORD_ALIGN) return RDT_RECORDS_CORRUPT;
    rdt_record_header record; /* a copy, because the producer may change the original meanwhile */
    memcpy(&record, r->data + at, sizeof(record));
    uint64_t bytes = rdt_record_bytes(record.size);
    if (bytes > available || bytes > r->capacity - at) return RDT_RECORDS_CORRUPT;
    if (record.kind == RDT_RECORD_MESSAGE) {
      *immediate = record.immediate;
      *data = r->data + at + sizeof(record);
      *size = record.size;
      return RDT_RECORDS_OK;
    }
    if (record.kind != RDT_RECORD_PADDING) return RDT_RECORDS_CORRUPT;
    r->position += bytes;
  }
  return RDT_RECORDS_NONE;
}

void rdt_records_pass(rdt_records *r, uint32_t size) { r->position += rdt_record_bytes(size); }
