/* SPDX-License-Identifier: Apache-2.0
 *
 * What the unit programs on CUDA memory share: the stand-in for the driver, tests/support/cuda_driver.c, and its
 * controls.
 */
#ifndef RDT_TESTS_CUDA_STANDIN_H
#define RDT_TESTS_CUDA_STANDIN_H

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "unit.h"

enum { LARGE = 3 << 20 };

static void (*delay)(unsigned us);
static void (*fail)(const char *function, int code);
static void (*fail_after)(int calls, const char *function, int code);
static uint64_t (*allocated)(void), (*pinned)(void), (*copies)(void);
static void (*hold)(int copies);
static int (*queued)(void), (*unmapped_too_early)(void);

static inline void *find(void *library, const char *name) {
  void *found = dlsym(library, name);
  EXPECT(found);
  return found;
}

static inline void load_driver(void) {
  char own[PATH_MAX] = "", path[PATH_MAX + 32];
  EXPECT(readlink("/proc/self/exe", own, sizeof(own) - 1) > 0);
  snprintf(path, sizeof(path), "%s/../cuda/libcuda.so.1", dirname(own));
  void *library = dlopen(path, RTLD_NOW);
  EXPECT(library);
  *(void **)&delay = find(library, "standin_delay");
  *(void **)&fail = find(library, "standin_fail");
  *(void **)&fail_after = find(library, "standin_fail_after");
  *(void **)&allocated = find(library, "standin_allocated");
  *(void **)&pinned = find(library, "standin_pinned");
  *(void **)&copies = find(library, "standin_copies");
  *(void **)&hold = find(library, "standin_hold");
  *(void **)&queued = find(library, "standin_queued");
  *(void **)&unmapped_too_early = find(library, "standin_unmapped_too_early");
}

static inline uint8_t *numbers(size_t size, unsigned from) {
  uint8_t *made = malloc(size);
  EXPECT(made);
  for (size_t i = 0; i < size; i++) made[i] = (uint8_t)((i + from) * 2654435761u >> 13);
  return made;
}

static inline void *on_device(int device, uint64_t size) {
  void *memory = NULL;
  EXPECT_STATUS(RDT_OK, rdt_cuda_alloc(device, size, &memory));
  return memory;
}

static inline bool holds(const void *memory, const uint8_t *wanted, size_t size) {
  uint8_t *seen = malloc(size);
  EXPECT(seen);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(seen, memory, size));
  bool same = memcmp(seen, wanted, size) == 0;
  free(seen);
  return same;
}

#endif
