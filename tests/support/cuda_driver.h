/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the stand-in for CUDA's driver share.
 */
#ifndef RDT_TESTS_CUDA_DRIVER_H
#define RDT_TESTS_CUDA_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

enum {
  INVALID = 1,
  NO_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  BAD_DEVICE = 101,
  NO_CONTEXT = 201,
  ALREADY_MAPPED = 208,
  BAD_HANDLE = 400,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  ALREADY_PINNED = 712,
  NOT_PINNED = 713,
  NOT_SUPPORTED = 801
};

extern pthread_mutex_t standin_lock; /* of all state */
extern __thread int standin_depth;   /* of this thread's stack of contexts */
extern atomic_int
    standin_broken; /* what everything returns after a copy of memory that there is not */

#define CHECK()                            \
  do {                                     \
    int failed_ = standin_check(__func__); \
    if (failed_) return failed_;           \
  } while (0)
#define CHECK_CONTEXT()                    \
  do {                                     \
    CHECK();                               \
    if (!standin_depth) return NO_CONTEXT; \
  } while (0)

/* Returns the error with which a function has to fail, or 0. */
int standin_check(const char *function);
/* Returns where the bytes of a device's memory, or of the host's, can be used. Under the lock. */
char *standin_usable(uint64_t address, size_t size);
API void standin_delay(unsigned us);
/* Reports whether host memory is registered, in one piece. Under the lock. */
int standin_is_pinned(uint64_t address, size_t size);
/* Starts the default stream. Under the lock. */
int standin_begin(void);
/* Waits for all work. */
void standin_drain(void);

#endif
