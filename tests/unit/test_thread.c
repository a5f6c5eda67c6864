/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that poll beside a program that computes.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "unit.h"

static atomic_bool over;

static void *compute(void *unused) {
  (void)unused;
  while (!atomic_load_explicit(&over, memory_order_relaxed)) continue;
  return NULL;
}

static void test_yield_tells_of_a_thread_that_computes(void) {
  cpu_set_t allowed, one;
  EXPECT(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) core++;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  EXPECT(sched_setaffinity(0, sizeof(one), &one) == 0);
  pthread_t thread; /* on the same core */
  EXPECT(pthread_create(&thread, NULL, compute, NULL) == 0);
  while (rdt_yield()) continue;
  atomic_store(&over, true);
  pthread_join(thread, NULL);
  EXPECT(sched_setaffinity(0, sizeof(allowed), &allowed) == 0);
}

int main(void) {
  test_yield_tells_of_a_thread_that_computes();
  return 0;
}
