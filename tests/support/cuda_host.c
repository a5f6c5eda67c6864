/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that is registered with the stand-in for CUDA's driver.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda_driver.h"

#define PORTABLE 1u
#define PAGE 4096u

typedef struct range {
  struct range *next;
  uint64_t start;
  size_t size;
} range;

static range *pinned; /* under the lock */
static int unmapped_too_early;

int standin_is_pinned(uint64_t address, size_t size) {
  const range *each = pinned;
  while (each &&
         (address - each->start >= each->size || size > each->size - (address - each->start)))
    each = each->next;
  return each != NULL;
}

/* Returns the bytes of host memory that are registered now. */
API uint64_t standin_pinned(void) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&standin_lock);
  for (const range *each = pinned; each; each = each->next) bytes += each->size;
  pthread_mutex_unlock(&standin_lock);
  return bytes;
}

/* Returns how often memory was unmapped that was still registered. */
API int standin_unmapped_too_early(void) { return unmapped_too_early; }

API int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  CHECK_CONTEXT();
  const uint64_t start = (uintptr_t)address;
  if (flags != PORTABLE || !size || start % PAGE) return INVALID;
  range *added = malloc(sizeof(*added));
  if (!added) return NO_MEMORY;
  pthread_mutex_lock(&standin_lock);
  range *each = pinned;
  while (each && (start + size <= each->start || each->start + each->size <= start))
    each = each->next;
  if (!each) {
    *added = (range){pinned, start, size};
    pinned = added;
  }
  pthread_mutex_unlock(&standin_lock);
  if (each) free(added);
  return each ? ALREADY_PINNED : 0;
}

API int cuMemHostUnregister(void *address) {
  CHECK_CONTEXT();
  standin_drain(); /* as the driver does */
  pthread_mutex_lock(&standin_lock);
  range **link = &pinned;
  while (*link && (*link)->start != (uintptr_t)address) link = &(*link)->next;
  range *found = *link;
  if (found) {
    unsigned char resident[1];
    *link = found->next;
    if (mincore(address, 1, resident) != 0) unmapped_too_early++;
  }
  pthread_mutex_unlock(&standin_lock);
  free(found);
  return found ? 0 : NOT_PINNED;
}
