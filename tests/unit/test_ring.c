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
  ring producer, consumer;
} pair;

static pair new_pair(void) {
  pair p = {.memory = aligned_alloc(4096, RING_DATA_OFFSET + CAPACITY)};
  memset(p.memory, 0, RING_DATA_OFFSET + CAPACITY);
  ring_init(&p.producer, p.memory, CAPACITY);
  ring_init(&p.consumer, p.memory, CAPACITY);
  return p;
}

static records_result take(ring *r, uint64_t *immediate, uint8_t *into, uint32_t *size) {
  const void *data;
  records_result result = ring_peek(r, immediate, &data, size);
  if (result != RECORDS_OK) return result;
  memcpy(into, data, *size);
  ring_release(r, *size);
  ring_give_back(r);
  return RECORDS_OK;
}

/* Every size up to the largest, so that records end at every distance from the ring's end. */
static void test_laps(void) {
  pair p = new_pair();
  uint8_t sent[CAPACITY], got[CAPACITY];
  for (uint32_t round = 0; round < 20000; round++) {
    uint32_t size = round * 7 % (uint32_t)(records_max_payload(&p.producer.records) + 1), got_size;
    uint64_t immediate;
    memset(sent, (int)(round & 0xff), size);
    EXPECT(ring_produce(&p.producer, round, sent, size) == RECORDS_OK);
    EXPECT(take(&p.consumer, &immediate, got, &got_size) == RECORDS_OK);
    EXPECT(immediate == round && got_size == size && memcmp(sent, got, size) == 0);
  }
  free(p.memory);
}

static void test_credit(void) {
  pair p = new_pair();
  uint8_t payload[100] = {0};
  uint64_t immediate, sent = 0;
  uint32_t size;
  while (ring_produce(&p.producer, sent, payload, sizeof(payload)) == RECORDS_OK) sent++;
  EXPECT(sent > CAPACITY / 150 && sent < CAPACITY / 100);
  EXPECT(atomic_load(&p.consumer.control->out_of_space) == 1);
  const void *data;
  EXPECT(ring_peek(&p.consumer, &immediate, &data, &size) == RECORDS_OK && immediate == 0);
  EXPECT(ring_produce(&p.producer, sent, payload, sizeof(payload)) == RECORDS_NONE);
  ring_release(&p.consumer, size);
  EXPECT(ring_give_back(&p.consumer));  /* the producer waits for this */
  EXPECT(!ring_give_back(&p.consumer)); /* and is woken once */
  EXPECT(ring_produce(&p.producer, sent, payload, sizeof(payload)) == RECORDS_OK);
  free(p.memory);
}

static void test_sleep_handshake(void) {
  pair p = new_pair();
  EXPECT(!ring_consumer_sleeps(&p.producer));
  EXPECT(ring_arm(&p.consumer));
  EXPECT(ring_produce(&p.producer, 1, NULL, 0) == RECORDS_OK);
  EXPECT(ring_consumer_sleeps(&p.producer));
  EXPECT(!ring_consumer_sleeps(&p.producer)); /* one wake-up each */
  EXPECT(!ring_arm(&p.consumer));             /* something is there: do not sleep */
  free(p.memory);
}

/* Whatever a hostile peer writes, the result is RECORDS_CORRUPT, never a read outside the ring. */
static void test_corruption(void) {
  uint64_t immediate;
  const void *data;
  uint32_t size;
  const uint32_t sizes[] = {CAPACITY, CAPACITY * 2, 0x7fffffff, 0xffffffff, 64};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    pair p = new_pair();
    EXPECT(ring_produce(&p.producer, 1, "x", 1) == RECORDS_OK);
    ((record_header *)p.producer.records.data)->size = sizes[i];
    EXPECT(ring_peek(&p.consumer, &immediate, &data, &size) == RECORDS_CORRUPT);
    free(p.memory);
  }
  const uint64_t tails[] = {CAPACITY + 1, UINT64_MAX, 8, 1};
  for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
    pair p = new_pair();
    atomic_store(&p.consumer.control->tail, tails[i]);
    EXPECT(ring_peek(&p.consumer, &immediate, &data, &size) == RECORDS_CORRUPT);
    free(p.memory);
  }
  pair p = new_pair();
  EXPECT(ring_produce(&p.producer, 1, "x", 1) == RECORDS_OK);
  ((record_header *)p.producer.records.data)->kind = 77;
  EXPECT(ring_peek(&p.consumer, &immediate, &data, &size) == RECORDS_CORRUPT);
  while (ring_produce(&p.producer, 1, "x", 1) == RECORDS_OK) continue;
  atomic_store(&p.consumer.control->head, UINT64_MAX / 2);
  EXPECT(ring_produce(&p.producer, 1, "x", 1) == RECORDS_CORRUPT);
  free(p.memory);
}

#define CONCURRENT 200000u

static void *produce_all(void *argument) {
  ring *r = argument;
  for (uint64_t i = 0; i < CONCURRENT;)
    if (ring_produce(r, i, &i, sizeof(i)) == RECORDS_OK) i++;
  return NULL;
}

static void test_concurrent(void) {
  pair p = new_pair();
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, produce_all, &p.producer) == 0);
  for (uint64_t expected = 0, immediate, payload; expected < CONCURRENT;) {
    uint32_t size;
    records_result result = take(&p.consumer, &immediate, (uint8_t *)&payload, &size);
    EXPECT(result != RECORDS_CORRUPT);
    if (result != RECORDS_OK) continue;
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
