/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of rdt_memory_alloc that are registered with the driver, so that devices copy to and from them directly. That
 * takes all pages of a block, and as long as a copy of it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/cuda.h"
#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"

typedef struct pinned {
  struct pinned *next;
  void *block;
  uint64_t copied;
  int ordinal; /* whose context it was pinned in; -1: it is not pinned */
  bool refused;
} pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static pinned *known;
static atomic_uint known_count;

int rdt_cuda_pin_pages(void *start, uint64_t size) {
  static atomic_flag logged = ATOMIC_FLAG_INIT;
  int error = rdt_cuda.pin(start, size, RDT_CUDA_PORTABLE);
  /* The program may have pinned a part itself. */
  if (error == 0 || error == RDT_CUDA_ALREADY_PINNED || atomic_flag_test_and_set(&logged))
    return error;
  rdt_cuda_fail(error, "pin %llu bytes of host memory", (unsigned long long)size);
  rdt_log(RDT_LOG_WARN, "copies to and from CUDA devices are slower: %s", rdt_last_error());
  return error;
}

static pinned *find(const void *block) {
  pinned *each = known;
  while (each && each->block != block) each = each->next;
  return each;
}

/* Under the lock, as the next. */
static pinned *find_or_add(void *block) {
  pinned *found = find(block);
  if (found) return found;
  found = malloc(sizeof(*found));
  if (!found) return NULL;
  *found = (pinned){.next = known, .block = block, .ordinal = -1};
  known = found;
  atomic_fetch_add(&known_count, 1);
  return found;
}

static int pin(pinned *self, uint64_t size, int ordinal) {
  if (self->ordinal >= 0) return 0;
  int error = rdt_cuda_pin_pages(self->block, size);
  self->refused = error != 0;
  if (error == 0) self->ordinal = ordinal;
  return error;
}

void *rdt_cuda_pinned_block(const void *address, uint64_t size, int ordinal) {
  void *block;
  uint64_t length;
  if (!rdt_memory_block(address, size, &block, &length)) return NULL;
  pthread_mutex_lock(&lock);
  pinned *found = find_or_add(block);
  if (found && found->ordinal < 0 && !found->refused) {
    found->copied += size;
    if (found->copied >= length) pin(found, length, ordinal);
  }
  const bool straight = found && found->ordinal >= 0;
  pthread_mutex_unlock(&lock);
  return straight ? block : NULL;
}

rdt_status rdt_cuda_pin(void *address) {
  void *block;
  uint64_t length;
  int ordinal;
  if (!rdt_memory_block(address, 1, &block, &length))
    return rdt_fail(RDT_ERR_INVALID, "%p was not allocated by rdt_memory_alloc", address);
  rdt_status status = rdt_cuda_enter_used(&ordinal);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&lock);
  pinned *found = find_or_add(block);
  int error = found ? pin(found, length, ordinal) : RDT_CUDA_NO_MEMORY;
  pthread_mutex_unlock(&lock);
  rdt_cuda_leave();
  return error == 0
             ? RDT_OK
             : rdt_cuda_fail(error, "pin %llu bytes of host memory", (unsigned long long)length);
}

bool rdt_cuda_let_go(void *block) {
  const rdt_cuda_device *entered;
  if (atomic_load(&known_count) == 0 || rdt_cuda_need() != RDT_OK) return true;
  if (rdt_cuda_keeps(block)) return false;
  pthread_mutex_lock(&lock);
  pinned **link = &known;
  while (*link && (*link)->block != block) link = &(*link)->next;
  pinned *found = *link;
  if (found) {
    *link = found->next;
    atomic_fetch_sub(&known_count, 1);
    if (found->ordinal >= 0 && rdt_cuda_enter(found->ordinal, &entered) == RDT_OK) {
      rdt_cuda.unpin(block);
      rdt_cuda_leave();
    }
    free(found);
  }
  pthread_mutex_unlock(&lock);
  return true;
}
