/* SPDX-License-Identifier: Apache-2.0
 *
 * The notification ring: order and content across many laps, credit, and a peer that writes nonsense.
 */
#include <pthread.h>
#include <string.h>

#include "transport/shm/ring.h"
#include "unit.h"

#define CAPACITY 4096u

typedef struct {
  void *memory;
  rdt_shm_ring producer, consumer;
} pair;

static pair new_pair(void) {
  pair p = {.memory = aligned_alloc(4096, RDT_SHM_RING_DATA_OFFSET + CAPACITY)};
  memset(p.memory, 0, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  rdt_shm_ring_init(&p.producer, p.memory, CAPACITY);
  rdt_shm_ring_init(&p.consumer, p.memory, CAPACITY);
  return p;
}

static rdt_records_result take(rdt_shm_ring *r, uint64_t *immediate, uint8_t *into,
                               uint32_t *size) {
  const void *data;
  rdt_records_result result = rdt_shm_ring_peek(r, immediate, &data, size);
  if (result != RDT_RECORDS_OK) return result;
  memcpy(into, data, *size);
  rdt_shm_ring_release(r, *size);
  rdt_shm_ring_give_back(r);
  return RDT_RECORDS_OK;
}

/* Every size up to the largest, so that records end at every distance from the ring's end. */
static void test_laps(void) {
  pair p = new_pair();
  uint8_t sent[CAPACITY], got[CAPACITY];
  for (uint32_t round = 0; round < 20000; round++) {
    uint32_t size = round * 7 % (uint32_t)(rdt_records_max_payload(&p.producer.records) + 1),
             got_size;
    uint64_t immediate;
    memset(sent, (int)(round & 0xff), size);
    EXPECT(rdt_shm_ring_produce(&p.producer, round, sent, size) == RDT_RECORDS_OK);
    EXPECT(take(&p.consumer, &immediate, got, &got_size) == RDT_RECORDS_OK);
    EXPECT(immediate == round && got_size == size && memcmp(sent, got, size) == 0);
  }
  free(p.memory);
}

static void test_credit(void) {
  pair p = new_pair();
  uint8_t payload[100] = {0};
  uint64_t immediate, sent = 0;
  uint32_t size;
  while (rdt_shm_ring_produce(&p.producer, sent, payload, sizeof(payload)) == RDT_RECORDS_OK)
    sent++;
  EXPECT(sent > CAPACITY / 150 && sent < CAPACITY / 100);
  EXPECT(atomic_load(&p.consumer.control->out_of_space) == 1);
  const void *data;
  EXPECT(rdt_shm_ring_peek(&p.consumer, &immediate, &data, &size) == RDT_RECORDS_OK &&
         immediate == 0);
  EXPECT(rdt_shm_ring_produce(&p.producer, sent, payload, sizeof(payload)) == RDT_RECORDS_NONE);
  rdt_shm_ring_release(&p.consumer, size);
  EXPECT(rdt_shm_ring_give_back(&p.consumer));  /* the producer waits for this */
  EXPECT(!rdt_shm_ring_give_back(&p.consumer)); /* and is woken once */
  EXPECT(rdt_shm_ring_produce(&p.producer, sent, payload, sizeof(payload)) == RDT_RECORDS_OK);
  free(p.memory);
}

static void test_sleep_handshake(void) {
  pair p = new_pair();
  EXPECT(!rdt_shm_ring_consumer_sleeps(&p.producer));
  EXPECT(rdt_shm_ring_arm(&p.consumer));
  EXPECT(rdt_shm_ring_produce(&p.producer, 1, NULL, 0) == RDT_RECORDS_OK);
  EXPECT(rdt_shm_ring_consumer_sleeps(&p.producer));
  EXPECT(!rdt_shm_ring_consumer_sleeps(&p.producer)); /* one wake-up each */
  EXPECT(!rdt_shm_ring_arm(&p.consumer));             /* something is there: do not sleep */
  free(p.memory);
}

/* Whatever a hostile peer writes, the result is RDT_RECORDS_CORRUPT, never a read outside the ring. */
static void test_corruption(void) {
  uint64_t immediate;
  const void *data;
  uint32_t size;
  const uint32_t sizes[] = {CAPACITY, CAPACITY * 2, 0x7fffffff, 0xffffffff, 64};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    pair p = new_pair();
    EXPECT(rdt_shm_ring_produce(&p.producer, 1, "x", 1) == RDT_RECORDS_OK);
    ((rdt_record_header *)p.producer.records.data)->size = sizes[i];
    EXPECT(rdt_shm_ring_peek(&p.consumer, &immediate, &data, &size) == RDT_RECORDS_CORRUPT);
    free(p.memory);
  }
  const uint64_t tails[] = {CAPACITY + 1, UINT64_MAX, 8, 1};
  for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
    pair p = new_pair();
    atomic_store(&p.consumer.control->tail, tails[i]);
    EXPECT(rdt_shm_ring_peek(&p.consumer, &immediate, &data, &size) == RDT_RECORDS_CORRUPT);
    free(p.memory);
  }
  pair p = new_pair();
  EXPECT(rdt_shm_ring_produce(&p.producer, 1, "x", 1) == RDT_RECORDS_OK);
  ((rdt_record_header *)p.producer.records.data)->kind = 77;
  EXPECT(rdt_shm_ring_peek(&p.consumer, &immediate, &data, &size) == RDT_RECORDS_CORRUPT);
  while (rdt_shm_ring_produce(&p.producer, 1, "x", 1) == RDT_RECORDS_OK) continue;
  atomic_store(&p.consumer.control->head, UINT64_MAX / 2);
  EXPECT(rdt_shm_ring_produce(&p.producer, 1, "x", 1) == RDT_RECORDS_CORRUPT);
  free(p.memory);
}

#define CONCURRENT 200000u

static void *produce_all(void *argument) {
  rdt_shm_ring *r = argument;
  for (uint64_t i = 0; i < CONCURRENT;)
    if (rdt_shm_ring_produce(r, i, &i, sizeof(i)) == RDT_RECORDS_OK) i++;
  return NULL;
}

static void test_concurrent(void) {
  pair p = new_pair();
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, produce_all, &p.producer) == 0);
  for (uint64_t expected = 0, immediate, payload; expected < CONCURRENT;) {
    uint32_t size;
    rdt_records_result result = take(&p.consumer, &immediate, (uint8_t *)&payload, &size);
    EXPECT(result != RDT_RECORDS_CORRUPT);
    if (result != RDT_RECORDS_OK) continue;
    EXPECT(immediate == expected && payload == expected && size == sizeof(payload));
    expected++;
  }
  pthread_join(thread, NULL);
  free(p.memory);
}

int main(void) {
  test_laps();
  test_credit();
  test_sleep_handshake();
  test_corruption();
  test_concurrent();
  return 0;
}
