/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of a device that drive started operations: the progress thread drives short ones, and a few
 * threads, the runners, drive long ones. None of these waits for one operation while another could move, so
 * operations may be started in any order. caller.c has what callers' threads drive.
 */
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "base/thread.h"
#include "core/post/waiting.h"
#include "group/run/run.h"

#define TICK_MS 50 /* interval of checking deadlines of operations that nobody waits for */

static void count(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  uint8_t algorithm = operation->shape.algorithm;
  if (operation->status == RDT_OK) rdt_count(&group->operations[algorithm], 1);
  rdt_count(&group->bytes[algorithm], operation->sent);
  if (operation->copied) rdt_count(&group->copies, operation->copied);
}

rdt_status rdt_group_operation_conclude(rdt_group_operation *operation) {
  rdt_status status = operation->status;
  count(operation);
  if (status < 0) rdt_fail(status, "%s", operation->text);
  rdt_group_operation_retire(operation);
  return status;
}

/* Call it under ready_lock. */
static rdt_group_operation *pop(rdt_groups *groups, int which) {
  rdt_group_ready_queue *queue = &groups->queues[which];
  rdt_group_operation *operation = queue->head;
  if (!operation) return NULL;
  queue->head = operation->next_ready;
  if (!queue->head) queue->tail = &queue->head;
  operation->ready = RDT_READY_DRIVEN;
  if (which == 0) atomic_fetch_sub(&groups->light, 1);
  return operation;
}

void rdt_group_operation_put_aside(rdt_group_operation *operation, bool at_once) {
  rdt_groups *groups = operation->group->groups;
  bool moves = operation->needs_runner;
  if (moves) rdt_group_operation_set_driver(operation, RDT_DRIVER_RUNNER);
  pthread_mutex_lock(&groups->ready_lock);
  if (operation->ready == RDT_READY_AGAIN || moves || at_once)
    rdt_group_ready_put_locked(groups, operation);
  else
    operation->ready = RDT_READY_NOT;
  pthread_mutex_unlock(&groups->ready_lock);
}

void rdt_group_operation_end(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  rdt_done_fn done = operation->done;
  void *context = operation->context;
  rdt_group_ref(group);
  rdt_status status = rdt_group_operation_conclude(operation);
  atomic_fetch_sub(&group->device->client_work, 1);
  done(context, status);
  rdt_group_operation_over(group);
  rdt_group_unref(group);
}

static void drive(rdt_group_operation *operation) {
  if (!operation->over) {
    rdt_group_operation_check_time(operation);
    if (!rdt_group_operation_advance(operation)) {
      rdt_group_operation_put_aside(operation, false);
      return;
    }
  }
  rdt_group_operation_end(operation);
}

void *rdt_group_run_runner(void *argument) {
  rdt_groups *groups = argument;
  pthread_mutex_lock(&groups->ready_lock);
  for (;;) {
    rdt_group_operation *operation = pop(groups, 1);
    if (!operation && groups->runners_stop) break;
    if (operation) {
      pthread_mutex_unlock(&groups->ready_lock);
      drive(operation);
      pthread_mutex_lock(&groups->ready_lock);
      continue;
    }
    groups->idle_runners++;
    pthread_cond_wait(&groups->ready, &groups->ready_lock);
    groups->idle_runners--;
  }
  pthread_mutex_unlock(&groups->ready_lock);
  return NULL;
}

void rdt_group_runners_stop(rdt_groups *groups) {
  pthread_mutex_lock(&groups->ready_lock);
  groups->runners_stop = true;
  pthread_cond_broadcast(&groups->ready);
  pthread_mutex_unlock(&groups->ready_lock);
  for (unsigned i = 0; i < groups->runner_count; i++) pthread_join(groups->runners[i], NULL);
  groups->runner_count = 0;
}

static void tick(rdt_groups *groups) {
  pthread_mutex_lock(&groups->lock);
  for (rdt_group *group = groups->list; group; group = group->next) rdt_group_wake(group);
  pthread_mutex_unlock(&groups->lock);
}

int rdt_groups_progress(rdt_device *device) {
  rdt_groups *groups = rdt_groups_of(device);
  int driven = 0;
  int64_t now = rdt_now_ms();
  if (now >= groups->next_tick) {
    tick(groups);
    groups->next_tick = now + TICK_MS;
  }
  while (atomic_load_explicit(&groups->light, memory_order_acquire) > 0) {
    pthread_mutex_lock(&groups->ready_lock);
    rdt_group_operation *operation = pop(groups, 0);
    pthread_mutex_unlock(&groups->ready_lock);
    if (!operation) break;
    drive(operation);
    driven++;
  }
  return driven;
}
