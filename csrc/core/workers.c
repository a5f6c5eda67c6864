/* SPDX-License-Identifier: Apache-2.0
 *
 * Short-lived threads for work that would hold up the progress thread: handshakes with strangers,
 * allocations for peers, whose registration takes time in proportion to their size, and what is
 * left of channels that ended, for which drivers may take long.
 */
#include "core/workers.h"

#include <stdlib.h>

#include "base/thread.h"

/* Handshakes: MAX_HANDSHAKES of bootstrap.c, and evicted ones that have not noticed yet. */
static const int most[RDT_WORK_KINDS] = {
    [RDT_WORK_HANDSHAKE] = 320, [RDT_WORK_ALLOCATION] = 64, [RDT_WORK_ENDING] = 64};

typedef struct work {
  rdt_device *device;
  rdt_work kind;
  void (*run)(void *argument);
  void *argument;
} work;

static void retire(rdt_device *device, rdt_work kind) {
  pthread_mutex_lock(&device->lock);
  device->workers[kind]--;
  pthread_cond_signal(&device->workers_done);
  pthread_mutex_unlock(&device->lock);
}

static void *run_work(void *argument) {
  work given = *(work *)argument;
  free(argument);
  given.run(given.argument);
  retire(given.device, given.kind);
  return NULL;
}

static bool enlist(rdt_device *device, rdt_work kind) {
  pthread_mutex_lock(&device->lock);
  bool room = !device->closing && device->workers[kind] < most[kind];
  if (room) device->workers[kind]++;
  pthread_mutex_unlock(&device->lock);
  return room;
}

bool rdt_worker_start(rdt_device *device, rdt_work kind, void (*run)(void *), void *argument) {
  if (!enlist(device, kind)) return false;
  work *given = malloc(sizeof(*given));
  if (given) {
    *given = (work){device, kind, run, argument};
    if (rdt_thread_detached(run_work, given) == 0) return true;
    free(given);
  }
  retire(device, kind);
  return false;
}

void rdt_workers_wait(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  for (int kind = 0; kind < RDT_WORK_KINDS; kind++)
    while (device->workers[kind] > 0) pthread_cond_wait(&device->workers_done, &device->lock);
  pthread_mutex_unlock(&device->lock);
}
