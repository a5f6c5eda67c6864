/* SPDX-License-Identifier: Apache-2.0
 *
 * Monotonic time, deadlines, and waiting on a condition until one.
 */
#ifndef RDT_BASE_CLOCK_H
#define RDT_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

/* Milliseconds of the monotonic clock: a point in time, not a duration. */
typedef int64_t rdt_deadline;

int64_t rdt_now_ms(void);
int64_t rdt_now_us(void);
int64_t rdt_now_ns(void);
/* `timeout_ms` from now; RDT_TIMEOUT_DEFAULT (or less) takes DEADLINE_MS. */
rdt_deadline rdt_deadline_after(int timeout_ms);
/* Milliseconds left, 0 when it passed. */
int rdt_deadline_left(rdt_deadline deadline);
/* Returns the same plus `more_ms`, which must not be negative; at most INT_MAX, so that the sum is a time-out. */
int rdt_deadline_left_plus(rdt_deadline deadline, int more_ms);

/* A condition variable that rdt_cond_wait can wait on. */
void rdt_cond_init(pthread_cond_t *condition);
/* Waits for a signal or the deadline, whichever is first; may wake early. Holds `lock` on return. */
void rdt_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, rdt_deadline deadline);

#endif
