/* SPDX-License-Identifier: Apache-2.0
 *
 * Short-lived threads for work that would hold up the progress thread: handshakes with strangers,
 * allocations for peers, whose registration takes time in proportion to their size, and what is
 * left of channels that ended, for which drivers may take long.
 */
#include "core/workers.h"

#include <stdlib.h>

#include "base/thread.h"

/* Handshakes: MAX_HANDSHAKES of bootstrap.c, a data connection for each, and evicted ones that have not noticed yet. */
static const int most[RDT_WORK_KINDS] = {
    [RDT_WORK_HANDSHAKE] = 576, [RDT_WORK_ALLOCATION] = 64, [RDT_WORK_ENDING] = 64};

struct rdt_errand {
  rdt_errand *next; /* in the queue of endings */
  rdt_device *device;
  rdt_work kind;
  void (*run)(void *argument);
  void *argument;
};

/* Returns what waited for this worker, or NULL: the worker is to end. */
static rdt_errand *retire(rdt_device *device, rdt_work kind) {
  pthread_mutex_lock(&device->lock);
  rdt_errand *next = kind == RDT_WORK_ENDING ? device->endings : NULL;
  if (next) {
    device->endings = next->next;
  } else {
    device->workers[kind]--;
    pthread_cond_signal(&device->workers_done);
  }
  pthread_mutex_unlock(&device->lock);
  return next;
}

static void *run_errands(void *argument) {
  for (rdt_errand *errand = argument, *next; errand; errand = next) {
    errand->run(errand->argument);
    next = retire(errand->device, errand->kind);
    free(errand);
  }
  return NULL;
}

static void append(rdt_errand **queue, rdt_errand *errand) {
  while (*queue) queue = &(*queue)->next;
  *queue = errand;
}

/* Returns false if nobody will run the errand. *starts: a thread must be started for it. */
static bool enlist(rdt_device *device, rdt_errand *errand, bool *starts) {
  pthread_mutex_lock(&device->lock);
  *starts = !device->closing && device->workers[errand->kind] < most[errand->kind];
  const bool waits = !device->closing && !*starts && errand->kind == RDT_WORK_ENDING;
  if (*starts) device->workers[errand->kind]++;
  if (waits) append(&device->endings, errand);
  pthread_mutex_unlock(&device->lock);
  return *starts || waits;
}

bool rdt_worker_start(rdt_device *device, rdt_work kind, void (*run)(void *), void *argument) {
  bool starts;
  rdt_errand *errand = malloc(sizeof(*errand));
  if (!errand) return false;
  *errand = (rdt_errand){NULL, device, kind, run, argument};
  const bool enlisted = enlist(device, errand, &starts);
  if (enlisted && (!starts || rdt_thread_detached(run_errands, errand) == 0)) return true;
  free(errand);
  if (enlisted) run_errands(retire(device, kind));
  return false;
}

void rdt_workers_wait(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  for (int kind = 0; kind < RDT_WORK_KINDS; kind++)
    while (device->workers[kind] > 0) pthread_cond_wait(&device->workers_done, &device->lock);
  pthread_mutex_unlock(&device->lock);
}
