/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <limits.h>
#include <time.h>

#include "base/config.h"

int64_t rdt_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t rdt_now_us(void) { return rdt_now_ns() / 1000; }

int64_t rdt_now_ms(void) { return rdt_now_us() / 1000; }

rdt_deadline rdt_deadline_after(int timeout_ms) {
  int64_t span = timeout_ms < 0 ? (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS) : timeout_ms;
  return rdt_now_ms() + span;
}

int rdt_deadline_left(rdt_deadline deadline) { return rdt_deadline_left_plus(deadline, 0); }

int rdt_deadline_left_plus(rdt_deadline deadline, int more_ms) {
  int64_t left = deadline - rdt_now_ms();
  left = (left < 0 ? 0 : left) + more_ms;
  return left > INT_MAX ? INT_MAX : (int)left;
}

void rdt_cond_init(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

void rdt_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock, rdt_deadline deadline) {
  struct timespec until = {.tv_sec = deadline / 1000, .tv_nsec = (deadline % 1000) * 1000000};
  pthread_cond_timedwait(condition, lock, &until);
}
