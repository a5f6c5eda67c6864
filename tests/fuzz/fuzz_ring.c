/* SPDX-License-Identifier: Apache-2.0
 *
 * Entries of a ring whose other end writes what it likes: into the records, the positions, and while a
 * record is being used. Nothing outside of the ring is touched, and nothing is announced twice.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "fuzz.h"
#include "transport/shm/ring.h"

#define CAPACITY RDT_RECORDS_MIN_CAPACITY
#define STEPS 256

static uint8_t *memory;  /* of the ring, with nothing around it */
static rdt_shm_ring own; /* the end that is tested */
static atomic_bool scribbling;

static uint8_t *records_start(void) { return memory + RDT_SHM_RING_DATA_OFFSET; }

/* Writes into the ring all the time, as a peer in another process could. */
static void *scribble(void *unused) {
  uint64_t number = 1;
  (void)unused;
  for (;;) {
    struct timespec pause = {.tv_nsec = 50000};
    nanosleep(&pause, NULL);
    for (int i = 0; i < 1000 && atomic_load(&scribbling); i++) {
      number = number * 6364136223846793005u + 1442695040888963407u;
      volatile uint8_t *at = records_start() + (number >> 33) % CAPACITY;
      *at = (uint8_t)(number >> 50);
    }
  }
  return NULL;
}

static void start(void) {
  pthread_t thread;
  if (memory) return;
  memory = aligned_alloc(RDT_SHM_RING_LINE, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  FUZZ_EXPECT(memory && pthread_create(&thread, NULL, scribble, NULL) == 0);
  pthread_detach(thread);
}

static void touch(const void *data, uint32_t size) {
  static volatile uint8_t last;
  for (uint32_t i = 0; i < size; i++) last = ((const uint8_t *)data)[i];
  (void)last;
}

static void write_raw(fuzz_input *input) {
  size_t at = fuzz_u16(input) % CAPACITY, size;
  const uint8_t *bytes = fuzz_chunk(input, &size);
  if (size > CAPACITY - at) size = CAPACITY - at;
  memcpy(records_start() + at, bytes, size);
}

/* A header that stands where the consumer looks next. */
static void write_header(fuzz_input *input) {
  rdt_record_header record = {.size = (uint32_t)fuzz_number(input, fuzz_u8(input) & 1 ? 4 : 1)};
  record.kind = fuzz_u8(input) % 4u;
  record.immediate = fuzz_u64(input);
  memcpy(records_start() + (own.records.position & (CAPACITY - 1)), &record, sizeof(record));
}

static void claim(_Atomic uint64_t *word, fuzz_input *input) {
  uint8_t how = fuzz_u8(input);
  uint64_t number = fuzz_number(input, how & 1 ? 8 : 2);
  atomic_store(word, how & 2 ? number : own.records.position + number);
}

/* True if the ring goes on. */
static bool consume(fuzz_input *input) {
  uint64_t immediate, before = own.records.position;
  const void *data;
  uint32_t size;
  rdt_records_result result = rdt_shm_ring_peek(&own, &immediate, &data, &size);
  if (result != RDT_RECORDS_OK) return result != RDT_RECORDS_CORRUPT;
  const uint8_t *first = data;
  FUZZ_EXPECT(first >= records_start() && first <= records_start() + CAPACITY);
  FUZZ_EXPECT(size <= (size_t)(records_start() + CAPACITY - first));
  touch(data, size);
  /* What the record says now does not count any more. */
  if (fuzz_u8(input) & 1) memset(records_start(), (int)fuzz_u8(input), CAPACITY);
  rdt_shm_ring_release(&own, size);
  rdt_shm_ring_give_back(&own);
  FUZZ_EXPECT(own.records.position - before <= CAPACITY);
  return true;
}

static bool produce(fuzz_input *input) {
  static const uint8_t payload[CAPACITY / 4];
  uint32_t size = fuzz_u16(input) % (uint32_t)(rdt_records_max_payload(&own.records) + 1);
  uint64_t before = own.records.position;
  rdt_records_result result = rdt_shm_ring_produce(&own, 1, payload, size);
  uint64_t moved = own.records.position - before;
  if (result == RDT_RECORDS_OK)
    FUZZ_EXPECT(moved >= size + sizeof(rdt_record_header) && moved <= CAPACITY);
  else
    FUZZ_EXPECT(moved == 0);
  rdt_shm_ring_consumer_sleeps(&own);
  return result != RDT_RECORDS_CORRUPT;
}

static bool step(bool consumer, fuzz_input *input) {
  rdt_shm_ring_control *control = own.control;
  switch (fuzz_u8(input) % 8) {
    case 0:
      write_raw(input);
      return true;
    case 1:
      write_header(input);
      return true;
    case 2:
      claim(consumer ? &control->tail : &control->head, input);
      return true;
    case 3:
      atomic_store(&control->sleeping, fuzz_u32(input));
      atomic_store(&control->out_of_space, fuzz_u32(input));
      return true;
    case 4:
      if (consumer && rdt_shm_ring_arm(&own)) rdt_shm_ring_disarm(&own);
      return true;
    default:
      return consumer ? consume(input) : produce(input);
  }
}

/* The first byte says which end this is, and whether another thread writes meanwhile. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  start();
  memset(memory, 0, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  rdt_shm_ring_init(&own, memory, CAPACITY);
  uint8_t how = fuzz_u8(&input);
  atomic_store(&scribbling, (how & 2) != 0);
  for (int i = 0; i < STEPS && input.left > 0; i++)
    if (!step(how & 1, &input)) break;
  atomic_store(&scribbling, false);
  return 0;
}

/* Records of several sizes, taken; with what a real producer wrote into the ring. */
static size_t seed_of_consumer(uint8_t *seed, size_t capacity, uint32_t payload,
                               bool other_thread) {
  fuzz_output out = {seed, 0, capacity};
  rdt_shm_ring producer;
  uint8_t bytes[CAPACITY] = {1, 2, 3};
  start();
  memset(memory, 0, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  rdt_shm_ring_init(&producer, memory, CAPACITY);
  unsigned count = 0;
  while (count < 4 && rdt_shm_ring_produce(&producer, count, bytes, payload) == RDT_RECORDS_OK)
    count++;
  fuzz_put_number(&out, other_thread ? 3 : 1, 1);
  fuzz_put_number(&out, 0, 1 + 2);
  fuzz_put_chunk(&out, records_start(), (size_t)producer.records.position);
  fuzz_put_number(&out, 2, 1 + 1);
  fuzz_put_number(&out, producer.records.position, 2);
  for (unsigned i = 0; i < count; i++) fuzz_put_number(&out, 5, 1 + 1);
  fuzz_put_number(&out, 4, 1);
  return out.size;
}

static size_t seed_of_producer(uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  fuzz_put_number(&out, 0, 1);
  for (unsigned i = 0; i < 6; i++) {
    fuzz_put_number(&out, 5, 1);
    fuzz_put_number(&out, 200 * i, 2);
    if (i < 3) continue;
    fuzz_put_number(&out, 2, 1);
    fuzz_put_number(&out, 0, 1 + 2); /* all of it was consumed */
  }
  return out.size;
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  static const uint32_t payloads[] = {0, 1, 100, 1000};
  if (number < 4) return seed_of_consumer(seed, capacity, payloads[number], number & 1);
  return number == 4 ? seed_of_producer(seed, capacity) : 0;
}
