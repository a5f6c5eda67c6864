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
static const int most[RDT_TASK_KINDS] = {
    [RDT_TASK_HANDSHAKE] = 576, [RDT_TASK_ALLOCATION] = 64, [RDT_TASK_ENDING] = 64};

struct rdt_task {
  rdt_task *next; /* in the queue of endings */
  rdt_device *device;
  rdt_task_kind kind;
  void (*run)(void *argument);
  void *argument;
};

/* Returns what waited for this worker, or NULL: the worker is to end. */
static rdt_task *retire(rdt_device *device, rdt_task_kind kind) {
  pthread_mutex_lock(&device->lock);
  rdt_task *next = kind == RDT_TASK_ENDING ? device->endings : NULL;
  if (next) {
    device->endings = next->next;
  } else {
    device->workers[kind]--;
    pthread_cond_signal(&device->workers_done);
  }
  pthread_mutex_unlock(&device->lock);
  return next;
}

static void *run_tasks(void *argument) {
  for (rdt_task *task = argument, *next; task; task = next) {
    task->run(task->argument);
    next = retire(task->device, task->kind);
    free(task);
  }
  return NULL;
}

static void append(rdt_task **queue, rdt_task *task) {
  while (*queue) queue = &(*queue)->next;
  *queue = task;
}

/* Returns false if nobody will run the task. *starts: a thread must be started for it. */
static bool enlist(rdt_device *device, rdt_task *task, bool *starts) {
  pthread_mutex_lock(&device->lock);
  *starts = !device->closing && device->workers[task->kind] < most[task->kind];
  const bool waits = !device->closing && !*starts && task->kind == RDT_TASK_ENDING;
  if (*starts) device->workers[task->kind]++;
  if (waits) append(&device->endings, task);
  pthread_mutex_unlock(&device->lock);
  return *starts || waits;
}

bool rdt_worker_start(rdt_device *device, rdt_task_kind kind, void (*run)(void *), void *argument) {
  bool starts;
  rdt_task *task = malloc(sizeof(*task));
  if (!task) return false;
  *task = (rdt_task){NULL, device, kind, run, argument};
  const bool enlisted = enlist(device, task, &starts);
  if (enlisted && (!starts || rdt_thread_detached(run_tasks, task) == 0)) return true;
  free(task);
  if (enlisted) run_tasks(retire(device, kind));
  return false;
}

void rdt_workers_wait(rdt_device *device) {
  pthread_mutex_lock(&device->lock);
  for (int kind = 0; kind < RDT_TASK_KINDS; kind++)
    while (device->workers[kind] > 0) pthread_cond_wait(&device->workers_done, &device->lock);
  pthread_mutex_unlock(&device->lock);
}
