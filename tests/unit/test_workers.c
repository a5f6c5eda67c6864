/* SPDX-License-Identifier: Apache-2.0
 *
 * More work than there may be workers: what is left of channels waits for one, and everything else is refused.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "core/workers.h"
#include "unit.h"

#define MANY 700 /* more than there are workers of any kind */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static bool held; /* under the lock */
static atomic_int begun, done;

/* So many threads do not poll. */
static void hold(void *argument) {
  (void)argument;
  pthread_mutex_lock(&lock);
  atomic_fetch_add(&begun, 1);
  while (held) pthread_cond_wait(&let_go, &lock);
  pthread_mutex_unlock(&lock);
  atomic_fetch_add(&done, 1);
}

static void set_held(bool wanted) {
  pthread_mutex_lock(&lock);
  held = wanted;
  pthread_cond_broadcast(&let_go);
  pthread_mutex_unlock(&lock);
}

/* Returns how many were taken on. */
static int start_many(rdt_device *device, rdt_task_kind kind) {
  int taken = 0;
  set_held(true);
  atomic_store(&begun, 0);
  atomic_store(&done, 0);
  for (int i = 0; i < MANY; i++) taken += rdt_worker_start(device, kind, hold, NULL);
  return taken;
}

static void test_limit(rdt_device *device, rdt_task_kind kind) {
  const int taken = start_many(device, kind);
  EXPECT(taken > 0 && taken < MANY);
  EXPECT(becomes(&begun, taken));
  set_held(false);
  EXPECT(becomes(&done, taken));
}

static void test_endings(rdt_device *device) {
  EXPECT(start_many(device, RDT_TASK_ENDING) == MANY);
  UNTIL(atomic_load(&begun) > 0);
  EXPECT(atomic_load(&begun) < MANY);
  set_held(false);
  EXPECT(becomes(&done, MANY));
}

/* Closing the device waits for the work that it has taken on. */
static void test_close(rdt_device *device) {
  EXPECT(start_many(device, RDT_TASK_ENDING) == MANY);
  set_held(false);
  rdt_device_close(device);
  EXPECT(atomic_load(&done) == MANY);
}

int main(void) {
  rdt_device *device;
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "shm"));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &device));
  test_limit(device, RDT_TASK_HANDSHAKE);
  test_limit(device, RDT_TASK_ALLOCATION);
  test_endings(device);
  test_endings(device);
  test_close(device);
  return 0;
}
