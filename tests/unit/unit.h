/* SPDX-License-Identifier: Apache-2.0
 *
 * The C unit programs' tools. EXPECT says what did not hold, and where, and ends with status 1. UNTIL waits for a
 * condition first.
 */
#ifndef RDT_TESTS_UNIT_H
#define RDT_TESTS_UNIT_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "rdmatensor.h"

#define EXPECT(condition) EXPECT_NAMED(condition, #condition)

#define EXPECT_NAMED(condition, name)                                                          \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: does not hold: %s (last error: %s)\n", __FILE__, __LINE__, name, \
              rdt_last_error());                                                               \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

#define EXPECT_STATUS(wanted, call)                                                     \
  do {                                                                                  \
    rdt_status unit_status = (call);                                                    \
    if (unit_status != (wanted)) {                                                      \
      fprintf(stderr, "%s:%d: %s is %s, not %s (%s)\n", __FILE__, __LINE__, #call,      \
              rdt_status_name(unit_status), rdt_status_name(wanted), rdt_last_error()); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

/* Nothing takes so long, neither on a busy machine nor on an emulated one, unless it hangs. */
#define PATIENCE_S 60

/* What held once may not hold again, so it is not asked again. */
#define UNTIL(condition)                                                        \
  do {                                                                          \
    time_t unit_end = time(NULL) + PATIENCE_S;                                  \
    int unit_holds;                                                             \
    while (!(unit_holds = !!(condition)) && time(NULL) < unit_end) usleep(500); \
    EXPECT_NAMED(unit_holds, #condition);                                       \
  } while (0)

#ifndef __cplusplus
#include <stdatomic.h>
#include <stdbool.h>

/* Waits for a counter; false if it becomes more, or hangs. */
static inline bool becomes(const atomic_int *value, int wanted) {
  time_t end = time(NULL) + PATIENCE_S;
  while (atomic_load(value) < wanted && time(NULL) < end) usleep(500);
  return atomic_load(value) == wanted;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer asks for this. The kernel tells of no queue pair before one thread has made it, so another one may
 * acknowledge its event. ThreadSanitizer does not see the kernel, and libibverbs is not built for it. */
RDT_API const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:ibv_ack_async_event\n"; }
#endif
#endif

#endif
