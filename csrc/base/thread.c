/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#include "base/clock.h"

#define LONG_US 300    /* nearly a time slice of the kernel; who passes a message on needs less */
#define AGAIN_US 30000 /* a program that computes keeps the core again and again */
#define CROWDED_US 100000 /* a program that computes is likely to do so for as long */

int rdt_thread_detached(void *(*run)(void *argument), void *argument) {
  pthread_t thread;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  int error = pthread_create(&thread, &detached, run, argument);
  pthread_attr_destroy(&detached);
  return error;
}

/* While polling threads yield, the kernel sees threads that compute as others do. Such a thread gets the core
 * back after a time slice, milliseconds later, whereas one that sleeps is run soon after its event. */
bool rdt_yield(void) {
  static _Thread_local int64_t crowded_until, last_long;
  int64_t begin = rdt_now_us();
  if (begin < crowded_until) return false;
  sched_yield();
  int64_t end = rdt_now_us();
  if (end - begin < LONG_US) return true;
  const bool again = begin - last_long < AGAIN_US;
  last_long = end;
  if (!again) return true; /* a kernel's worker may have run, or another program for a moment */
  crowded_until = last_long = end + CROWDED_US;
  return false;
}
