/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <pthread.h>

int rdt_thread_detached(void *(*run)(void *argument), void *argument) {
  pthread_t thread;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  int error = pthread_create(&thread, &detached, run, argument);
  pthread_attr_destroy(&detached);
  return error;
}
