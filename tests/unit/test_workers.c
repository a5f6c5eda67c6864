/* SPDX-License-Identifier: Apache-2.0
 *
 * More work than there may be workers: what is left of channels waits for one, and everything else is refused.
 */
#include <stdatomic.h>

#include "core/workers.h"
#include "unit.h"

#define MANY 700 /* more than there are workers of any kind */

static atomic_bool held;
static atomic_int begun, done;

static void hold(void *argument) {
  (void)argument;
  atomic_fetch_add(&begun, 1);
  UNTIL(!atomic_load(&held));
  atomic_fetch_add(&done, 1);
}

/* Returns how many were taken on. */
static int start_many(rdt_device *device, rdt_task_kind kind) {
  int taken = 0;
  atomic_store(&held, true);
  atomic_store(&begun, 0);
  atomic_store(&done, 0);
  for (int i = 0; i < MANY; i++) taken += rdt_worker_start(device, kind, hold, NULL);
  return taken;
}

static void test_limit(rdt_device *device, rdt_task_kind kind) {
  const int taken = start_many(device, kind);
  EXPECT(taken > 0 && taken < MANY);
  EXPECT(becomes(&begun, taken));
  atomic_store(&held, false);
  EXPECT(becomes(&done, taken));
}

static void test_endings(rdt_device *device) {
  EXPECT(start_many(device, RDT_TASK_ENDING) == MANY);
  UNTIL(atomic_load(&begun) > 0);
  EXPECT(atomic_load(&begun) < MANY);
  atomic_store(&held, false);
  EXPECT(becomes(&done, MANY));
}

/* Closing the device waits for the work that it has taken on. */
static void test_close(rdt_device *device) {
  EXPECT(start_many(device, RDT_TASK_ENDING) == MANY);
  atomic_store(&held, false);
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
