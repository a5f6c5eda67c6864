/* SPDX-License-Identifier: Apache-2.0
 *
 * What all other files of groups use: references, the state of an operation, and the queues of operations
 * that are ready to be driven.
 */
#include <stdarg.h>
#include <stdio.h>

#include "group/run/run.h"

void rdt_group_ref(rdt_group *group) {
  atomic_fetch_add_explicit(&group->refs, 1, memory_order_relaxed);
}

void rdt_group_unref(rdt_group *group) {
  if (group && atomic_fetch_sub(&group->refs, 1) == 1) group->free(group);
}

static rdt_group_ready_queue *queue_of(rdt_groups *groups, const rdt_group_operation *operation) {
  return &groups->queues[operation->driver == RDT_DRIVER_RUNNER];
}

static void append(rdt_groups *groups, rdt_group_operation *operation) {
  rdt_group_ready_queue *queue = queue_of(groups, operation);
  operation->ready = RDT_READY_QUEUED;
  operation->next_ready = NULL;
  *queue->tail = operation;
  queue->tail = &operation->next_ready;
}

static void wake_runner(rdt_groups *groups) {
  unsigned most = sizeof(groups->runners) / sizeof(groups->runners[0]);
  if (groups->idle_runners > 0 || groups->runner_count == most || groups->runners_stop)
    pthread_cond_signal(&groups->ready);
  else if (pthread_create(&groups->runners[groups->runner_count], NULL, groups->run_runner,
                          groups) == 0)
    groups->runner_count++;
}

void rdt_group_ready_put_locked(rdt_groups *groups, rdt_group_operation *operation) {
  append(groups, operation);
  if (operation->driver == RDT_DRIVER_RUNNER) {
    wake_runner(groups);
  } else {
    atomic_fetch_add(&groups->light, 1);
    if (!rdt_on_progress_thread()) rdt_device_wake(groups->device);
  }
}

void rdt_group_ready_put(rdt_group_operation *operation) {
  rdt_groups *groups = operation->group->groups;
  pthread_mutex_lock(&groups->ready_lock);
  if (operation->ready == RDT_READY_NOT)
    rdt_group_ready_put_locked(groups, operation);
  else if (operation->ready == RDT_READY_DRIVEN)
    operation->ready = RDT_READY_AGAIN;
  pthread_mutex_unlock(&groups->ready_lock);
}

/* Takes an operation out of the middle of its queue. Call it under ready_lock. */
static void unlink_ready(rdt_groups *groups, rdt_group_operation *operation) {
  rdt_group_ready_queue *queue = queue_of(groups, operation);
  rdt_group_operation **link = &queue->head;
  while (*link != operation) link = &(*link)->next_ready;
  *link = operation->next_ready;
  if (!*link) queue->tail = link;
  if (operation->driver != RDT_DRIVER_RUNNER) atomic_fetch_sub(&groups->light, 1);
}

bool rdt_group_ready_take(rdt_group_operation *operation) {
  rdt_groups *groups = operation->group->groups;
  pthread_mutex_lock(&groups->ready_lock);
  const bool takes = operation->ready == RDT_READY_NOT || operation->ready == RDT_READY_QUEUED;
  if (operation->ready == RDT_READY_QUEUED) unlink_ready(groups, operation);
  if (takes) operation->ready = RDT_READY_DRIVEN;
  pthread_mutex_unlock(&groups->ready_lock);
  return takes;
}

void rdt_group_ready_drop(rdt_group_operation *operation) {
  rdt_groups *groups = operation->group->groups;
  if (operation->driver == RDT_DRIVER_CALLER) return;
  pthread_mutex_lock(&groups->ready_lock);
  operation->ready = RDT_READY_NOT;
  pthread_mutex_unlock(&groups->ready_lock);
}

void rdt_group_operation_set_driver(rdt_group_operation *operation, rdt_group_driver driver) {
  pthread_mutex_lock(&operation->group->lock);
  operation->driver = driver;
  operation->needs_runner = false;
  pthread_mutex_unlock(&operation->group->lock);
}

void rdt_group_operation_wake(rdt_group_operation *operation) {
  atomic_fetch_add_explicit(&operation->pending_events, 1, memory_order_release);
  if (!operation->started || operation->ended) return;
  if (operation->driver != RDT_DRIVER_CALLER)
    rdt_group_ready_put(operation);
  else if (operation->sleeps)
    pthread_cond_signal(&operation->wakes);
}

void rdt_group_operation_mark_aborted(rdt_group_operation *operation, rdt_status status,
                                      const char *text, size_t length) {
  if (operation->aborted != RDT_OK) return;
  operation->aborted = status;
  operation->since = rdt_now_ms();
  snprintf(operation->abort_text, sizeof(operation->abort_text), "%.*s", (int)length, text);
}

void rdt_group_operation_fail(rdt_group_operation *operation, rdt_status status, const char *format,
                              ...) {
  if (operation->status != RDT_IN_PROGRESS) return;
  va_list args;
  va_start(args, format);
  vsnprintf(operation->text, sizeof(operation->text), format, args);
  va_end(args);
  operation->status = status;
}
