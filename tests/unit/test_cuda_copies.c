/* SPDX-License-Identifier: Apache-2.0
 *
 * How copies of CUDA memory go, over tests/support/cuda_driver.c: chunks under way together, memory that is pinned, and
 * devices that never get there.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda.h"
#include "base/cuda_driver.h"
#include "base/memory.h"
#include "cuda_standin.h"

enum { CHUNKS_BYTES = 4 << 20, BLOCK = 2 << 20 };
static atomic_int warnings;

static void count_warnings(void *context, rdt_log_level level, const char *line) {
  (void)context;
  if (level == RDT_LOG_WARN && strstr(line, "pin ")) atomic_fetch_add(&warnings, 1);
}

static void set_deadline(const char *ms) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("DEADLINE_MS", ms));
}

/* From now on the device begins so many copies, and no more. */
static void stick_after(int copies) {
  set_deadline("100");
  hold(copies);
}

static void unstick(void) {
  set_deadline("60000");
  hold(-1);
}

/* What was given up goes with the next operation after its end. */
static bool is_allocated(uint64_t wanted) {
  rdt_cuda_free(on_device(0, 1));
  return allocated() == wanted;
}

static bool loads_libcuda(void) {
  char line[512];
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "re");
  EXPECT(maps);
  while (fgets(line, sizeof(line), maps)) found |= strstr(line, "libcuda") != NULL;
  fclose(maps);
  return found;
}

static void test_nothing_is_opened(void) {
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(BLOCK, &block));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_cuda_pin(block));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT(!loads_libcuda());
}

static void test_blocks_are_pinned_for_who_uses_a_device(void) {
  void *block;
  char here[1];
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(BLOCK, &block));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED,
                rdt_cuda_pin(block)); /* the driver is there, and no device is used */
  void *memory = on_device(0, 64);
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_pin(here));
  for (int i = 0; i < 2; i++) EXPECT_STATUS(RDT_OK, rdt_cuda_pin((char *)block + 5));
  EXPECT(pinned() == BLOCK);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT(pinned() == 0 && unmapped_too_early() == 0);
  rdt_cuda_free(memory);
}

static void occupy_default_stream(void *memory) {
  const rdt_cuda_device *entered;
  EXPECT_STATUS(RDT_OK, rdt_cuda_enter(0, &entered));
  EXPECT(rdt_cuda.fill((uintptr_t)memory, 0, 1, NULL) == 0);
  rdt_cuda_leave();
}

/* Whoever waits too long gets an error, and what was not begun does not happen later. */
static void test_deadlines(void) {
  uint8_t *wanted = numbers(LARGE, 1), *seen = calloc(1, LARGE);
  char *first = on_device(0, LARGE), *second = on_device(1, LARGE);
  void *more;
  EXPECT(seen);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(first, wanted, LARGE));
  stick_after(0);
  occupy_default_stream(first);
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(second, wanted, LARGE));
  EXPECT(strstr(rdt_last_error(), "copy 3145728 bytes to or from CUDA device 1 within 100 ms"));
  EXPECT(strstr(rdt_last_error(), "RDMATENSOR_DEADLINE_MS"));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(second, first, LARGE));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(seen, first, LARGE));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy_for_peer(seen, first, LARGE));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_wait(first, 0));
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_alloc(0, 64, &more));
  EXPECT(queued() == 0);
  unstick();
  EXPECT_STATUS(RDT_OK, rdt_cuda_wait(first, 0));
  memset(wanted, 0, LARGE);
  EXPECT(holds(second, wanted, LARGE) && memcmp(seen, wanted, LARGE) == 0);
  rdt_cuda_free(first);
  rdt_cuda_free(second);
  EXPECT(is_allocated(0));
  free(wanted);
  free(seen);
}

/* The device may still use what a copy used that began. Nothing of it goes before. */
static void test_what_still_runs_keeps_its_memory(void) {
  const size_t size = 6 << 20;
  uint8_t *wanted = numbers(size, 2);
  for (int to_device = 0; to_device < 2; to_device++) {
    char *memory = on_device(0, size);
    uint8_t *here = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(here != MAP_FAILED);
    memcpy(here, wanted, size);
    stick_after(1);
    EXPECT_STATUS(RDT_ERR_DEADLINE, to_device ? rdt_cuda_copy(memory, here, size)
                                              : rdt_cuda_copy(here, memory, size));
    EXPECT(queued() ==
           RDT_CUDA_CHUNKS); /* all but the first, and the last for which there was no chunk */
    munmap(here, size);
    rdt_cuda_free(memory);
    EXPECT(allocated() == size);
    unstick();
    UNTIL(is_allocated(0));
    EXPECT(queued() == 0);
  }
  free(wanted);
}

/* Whatever fails, and wherever: no success, no late write to the caller's memory, and the next copy works. */
static void test_failures_in_the_middle(void) {
  static const char *const functions[] = {"cuMemcpyAsync", "cuEventRecord", "cuEventQuery"};
  const size_t size = 9 << 20;
  uint8_t *wanted = numbers(size, 6), *here = malloc(size), *seen = malloc(size);
  char *memory = on_device(0, size);
  EXPECT(here && seen);
  for (int i = 0; i < 3 * 9 * 2; i++) {
    const bool to_device = i % 2;
    memcpy(here, wanted, size);
    delay(100);
    fail_after(i / 6, functions[i / 2 % 3], 400);
    EXPECT_STATUS(RDT_ERR_SYSTEM, to_device ? rdt_cuda_copy(memory, here, size)
                                            : rdt_cuda_copy(here, memory, size));
    memcpy(seen, here, size);
    fail("", 0);
    delay(0);
    EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, wanted, size));
    EXPECT(memcmp(seen, here, size) == 0 && holds(memory, wanted, size));
  }
  rdt_cuda_free(memory);
  UNTIL(is_allocated(0));
  free(here);
  free(seen);
  free(wanted);
}

static void test_thousand_deadlines(void) {
  uint8_t *bytes = numbers(LARGE, 7);
  char *memory = on_device(0, LARGE);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, bytes, LARGE));
  const uint64_t before = pinned();
  stick_after(0);
  set_deadline("1");
  occupy_default_stream(memory);
  for (int i = 0; i < 1000; i++)
    EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(memory, bytes, LARGE));
  EXPECT(pinned() == before);
  for (int i = 0; i < 100; i++) { /* and in the middle of a copy */
    unstick();
    EXPECT_STATUS(RDT_OK, rdt_cuda_wait(memory, 0));
    hold(1);
    set_deadline("1");
    EXPECT(rdt_cuda_copy(memory, bytes, LARGE) == RDT_ERR_DEADLINE);
  }
  unstick();
  EXPECT(holds(memory, bytes, LARGE) && pinned() <= 8 * CHUNKS_BYTES);
  rdt_cuda_free(memory);
  UNTIL(is_allocated(0));
  free(bytes);
}

static void test_between_devices(void) {
  char *first = on_device(0, LARGE), *second = on_device(1, LARGE);
  stick_after(0);
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(second, first, LARGE));
  rdt_cuda_free(first); /* the source of it */
  rdt_cuda_free(second);
  EXPECT(allocated() == 2 * LARGE);
  unstick();
  UNTIL(is_allocated(0));
}

/* A block goes straight once as much as it has was copied. */
static void test_straight_copies(void) {
  uint8_t *wanted = numbers(BLOCK, 3);
  char *memory = on_device(0, BLOCK);
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(BLOCK, &block));
  memcpy(block, wanted, BLOCK);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, block, BLOCK / 2));
  const uint64_t before = pinned();
  EXPECT(before % CHUNKS_BYTES == 0);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory + BLOCK / 2, (char *)block + BLOCK / 2, BLOCK / 2));
  EXPECT(pinned() == before + BLOCK && holds(memory, wanted, BLOCK));
  memset(block, 0, BLOCK);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy((char *)block + 7, memory, BLOCK - 9));
  EXPECT(memcmp((char *)block + 7, wanted, BLOCK - 9) == 0);
  EXPECT(((char *)block)[6] == 0 && ((char *)block)[BLOCK - 2] == 0);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT(pinned() == before && unmapped_too_early() == 0);
  rdt_cuda_free(memory);
  free(wanted);
}

/* Blocks beside others lose their pages while they are used, so no device may keep those. */
static void test_pools_are_not_pinned(void) {
  char *memory = on_device(0, BLOCK);
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc_beside(NULL, BLOCK, &block));
  const uint64_t before = pinned();
  for (int i = 0; i < 3; i++) EXPECT_STATUS(RDT_OK, rdt_cuda_copy(block, memory, BLOCK));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_pin(block));
  EXPECT(pinned() == before);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  rdt_cuda_free(memory);
}

static void test_blocks_that_are_freed_under_a_copy(void) {
  char *memory = on_device(0, BLOCK);
  void *block;
  const uint64_t before = pinned();
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(BLOCK, &block));
  EXPECT_STATUS(RDT_OK, rdt_cuda_pin(block));
  stick_after(0);
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_cuda_copy(block, memory, BLOCK));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT(pinned() == before + BLOCK && queued() == 1); /* the stand-in writes to it later */
  unstick();
  rdt_cuda_free(memory);
  UNTIL(is_allocated(0));
  EXPECT(pinned() == before && unmapped_too_early() == 0);
}

static void enter_and(int (*pin)(void *block), void *block) {
  const rdt_cuda_device *entered;
  EXPECT_STATUS(RDT_OK, rdt_cuda_enter(0, &entered));
  EXPECT(pin(block) == 0);
  rdt_cuda_leave();
}

static int pin_page(void *block) { return rdt_cuda.pin(block, 4096, RDT_CUDA_PORTABLE); }

/* It works without, and says so once. */
static void test_a_driver_that_pins_nothing(void) {
  uint8_t *wanted = numbers(LARGE, 4);
  void *block;
  const uint64_t before = pinned();
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(LARGE, &block));
  fail("cuMemHostRegister_v2", 801);
  char *memory = on_device(1, LARGE);
  memcpy(block, wanted, LARGE);
  for (int i = 0; i < 3; i++) {
    EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, block, LARGE));
    EXPECT(holds(memory, wanted, LARGE));
  }
  EXPECT_STATUS(RDT_ERR_SYSTEM, rdt_cuda_pin(block));
  fail("", 0);
  EXPECT(pinned() == before && atomic_load(&warnings) == 1);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  /* Nor is memory pinned twice. */
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(LARGE, &block));
  enter_and(pin_page, block);
  for (int i = 0; i < 3; i++) EXPECT_STATUS(RDT_OK, rdt_cuda_copy(block, memory, LARGE));
  EXPECT(memcmp(block, wanted, LARGE) == 0 && pinned() == before + 4096);
  enter_and(rdt_cuda.unpin, block);
  EXPECT(atomic_load(&warnings) == 1);
  rdt_cuda_free(memory);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  free(wanted);
}

typedef struct user {
  pthread_t thread;
  unsigned number;
} user;

static void *use(void *argument) {
  const user *self = argument;
  const size_t size = 700000 + 1000 * self->number;
  uint8_t *wanted = numbers(size, self->number);
  char *memory = on_device((int)self->number % 2, size);
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(size, &block));
  for (int i = 0; i < 10; i++) {
    memcpy(block, wanted, size);
    EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, block, size));
    memset(block, 0, size);
    EXPECT_STATUS(RDT_OK, rdt_cuda_copy(block, memory, size));
    EXPECT(memcmp(block, wanted, size) == 0 && holds(memory, wanted, size));
  }
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  rdt_cuda_free(memory);
  free(wanted);
  return NULL;
}

/* However many threads there are, and however often: four lanes of each of two devices are what stays. */
static void test_memory_is_returned(void) {
  user users[12];
  for (unsigned round = 0; round < 9; round++) {
    for (unsigned i = 0; i < 12; i++) {
      users[i].number = i;
      EXPECT(pthread_create(&users[i].thread, NULL, use, &users[i]) == 0);
    }
    for (unsigned i = 0; i < 12; i++) pthread_join(users[i].thread, NULL);
  }
  EXPECT(pinned() <= 8 * CHUNKS_BYTES && pinned() % CHUNKS_BYTES == 0);
  EXPECT(allocated() == 0 && unmapped_too_early() == 0);
}

static void test_child_of_fork(void) {
  uint8_t *wanted = numbers(BLOCK, 5);
  char *memory = on_device(0, BLOCK);
  void *block;
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(BLOCK, &block));
  EXPECT_STATUS(RDT_OK, rdt_cuda_pin(block));
  memcpy(block, wanted, BLOCK);
  pid_t child = fork();
  if (child == 0) {
    memset(block, 0, BLOCK);
    bool refused = rdt_cuda_pin(block) == RDT_ERR_FORKED;
    _exit(refused && rdt_memory_free(block) == RDT_OK ? 0 : 1);
  }
  int status = 1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(memory, block, BLOCK));
  EXPECT(holds(memory, wanted, BLOCK));
  EXPECT_STATUS(RDT_OK, rdt_memory_free(block));
  EXPECT(unmapped_too_early() == 0);
  rdt_cuda_free(memory);
  free(wanted);
}

int main(void) {
  rdt_log_set_sink(count_warnings, NULL);
  set_deadline("60000");
  test_nothing_is_opened();
  load_driver();
  test_blocks_are_pinned_for_who_uses_a_device();
  test_a_driver_that_pins_nothing();
  test_deadlines();
  test_what_still_runs_keeps_its_memory();
  test_failures_in_the_middle();
  test_thousand_deadlines();
  test_between_devices();
  test_straight_copies();
  test_pools_are_not_pinned();
  test_blocks_that_are_freed_under_a_copy();
  test_memory_is_returned();
  test_child_of_fork();
  return 0;
}
