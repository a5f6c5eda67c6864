/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads that drive operations. The thread that calls rdt_group_run drives its operation and
 * polls for messages. Of started operations, the progress thread drives short ones, and a few
 * threads of the device, the runners, drive long ones. None of these waits for one operation while
 * another could move, so operations may be started in any order.
 */
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "base/thread.h"
#include "core/post/waiting.h"
#include "group/run/run.h"

#define TICK_MS 50  /* interval of checking deadlines of operations that nobody waits for */
#define LOOKS 64    /* polls of links between reads of the clock */
#define YIELD_US 5  /* time of waiting after which other threads get this core */
#define SLEEP_MS 50 /* longest sleep; then the caller is asked, and a failed operation checked */
#define ASK_MS 100  /* interval of asking a waiting caller whether to go on */

static void count(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  uint8_t algorithm = operation->shape.algorithm;
  if (operation->status == RDT_OK) rdt_count(&group->operations[algorithm], 1);
  rdt_count(&group->bytes[algorithm], operation->sent);
  if (operation->copied) rdt_count(&group->copies, operation->copied);
}

/* Leaves the status as the thread's last error. */
static rdt_status conclude(rdt_group_operation *operation) {
  rdt_status status = operation->status;
  count(operation);
  if (status < 0) rdt_fail(status, "%s", operation->text);
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

static void set_driver(rdt_group_operation *operation, rdt_group_driver driver) {
  pthread_mutex_lock(&operation->group->lock);
  operation->driver = driver;
  operation->needs_runner = false;
  pthread_mutex_unlock(&operation->group->lock);
}

/* Puts an operation aside until it has events, or back into the queue if it has any. */
static void put_aside(rdt_group_operation *operation, bool at_once) {
  rdt_groups *groups = operation->group->groups;
  bool moves = operation->needs_runner;
  if (moves) set_driver(operation, RDT_DRIVER_RUNNER);
  pthread_mutex_lock(&groups->ready_lock);
  if (operation->ready == RDT_READY_AGAIN || moves || at_once)
    rdt_group_ready_put_locked(groups, operation);
  else
    operation->ready = RDT_READY_NOT;
  pthread_mutex_unlock(&groups->ready_lock);
}

static void drive(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  if (!operation->over) {
    rdt_group_operation_check_time(operation);
    if (!rdt_group_operation_advance(operation)) {
      put_aside(operation, false);
      return;
    }
  }
  rdt_done_fn done = operation->done;
  void *context = operation->context;
  rdt_group_ref(group);
  rdt_status status = conclude(operation);
  atomic_fetch_sub(&group->device->client_work, 1);
  rdt_group_operation_retire(operation);
  done(context, status);
  rdt_group_operation_over(group);
  rdt_group_unref(group);
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

static rdt_status begin(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                        void *context, rdt_group_operation **operation) {
  rdt_status status = rdt_group_operation_check(group, call);
  if (status == RDT_OK && !done) status = rdt_fail(RDT_ERR_INVALID, "done must not be NULL");
  if (status != RDT_OK) return status;
  return rdt_group_operation_start(group, call, done, context, operation);
}

/* Leaves an operation that this thread began to the threads of the device. */
static void hand_over(rdt_group_operation *operation) {
  rdt_device *device = operation->group->device;
  if (atomic_fetch_add(&device->client_work, 1) == 0) rdt_device_wake(device);
  put_aside(operation, operation->over || operation->driver == RDT_DRIVER_RUNNER);
}

rdt_status rdt_group_start(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                           void *context) {
  rdt_group_operation *operation;
  rdt_status status = begin(group, call, done, context, &operation);
  if (status != RDT_OK) return status;
  /* Whatever can be sent at once is sent now. `done` always runs on another thread. */
  rdt_group_operation_advance_first(operation);
  hand_over(operation);
  return RDT_IN_PROGRESS;
}

static void begin_polling(const rdt_group *group) {
  for (uint32_t i = 0; i < group->size; i++)
    if (i != group->rank) rdt_channel_poller_begin(group->links[i].channel);
}

static void end_polling(const rdt_group *group) {
  for (uint32_t i = 0; i < group->size; i++)
    if (i != group->rank) rdt_channel_poller_end(group->links[i].channel);
}

static bool end_polling_to_sleep(const rdt_group *group) {
  bool quiet = true;
  for (uint32_t i = 0; i < group->size; i++)
    if (i != group->rank) quiet &= rdt_channel_poller_sleep(group->links[i].channel);
  return quiet;
}

static bool has_events(const rdt_group_operation *operation) {
  return atomic_load_explicit(&operation->pending_events, memory_order_acquire) !=
         operation->handled_events;
}

/* Polls the group's links once. Returns true when there are events. */
static bool look(rdt_group_operation *operation) {
  const rdt_group *group = operation->group;
  for (uint32_t i = 0; i < group->size; i++)
    if (i != group->rank) rdt_channel_poller_poll(group->links[i].channel);
  return has_events(operation);
}

/* Returns true when there are events, and false after `limit` microseconds without any. */
static bool spin(rdt_group_operation *operation, int64_t limit) {
  int64_t start = 0;
  for (;;) {
    for (uint32_t i = 0; i < LOOKS; i += operation->group->size)
      if (look(operation)) return true;
    int64_t now = rdt_now_us();
    if (!start) start = now;
    if (now - start >= limit || now / 1000 >= operation->deadline) return false;
    if (now - start >= YIELD_US && !rdt_yield()) return false;
  }
}

static void sleep_once(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  rdt_deadline until = rdt_now_ms() + SLEEP_MS;
  if (operation->deadline < until && operation->status == RDT_IN_PROGRESS)
    until = operation->deadline;
  pthread_mutex_lock(&group->lock);
  operation->sleeps = true;
  while (!has_events(operation) && rdt_deadline_left(until) > 0)
    rdt_cond_wait(&operation->wakes, &group->lock, until);
  operation->sleeps = false;
  pthread_mutex_unlock(&group->lock);
}

/* Fails the operation if its caller wants to stop. */
static void ask_caller(rdt_group_operation *operation, const rdt_collective *call, int64_t *next) {
  int64_t now = rdt_now_ms();
  if (!call->stop || now < *next) return;
  if (*next && call->stop(call->context))
    rdt_group_operation_fail(operation, RDT_ERR_CANCELLED,
                             "group %s: the operation was interrupted", operation->group->name);
  *next = now + ASK_MS;
}

/* Sleeps until there are events; the progress thread takes messages meanwhile. */
static void sleep_for_events(rdt_group_operation *operation, const rdt_collective *call,
                             int64_t *ask) {
  bool asleep = end_polling_to_sleep(operation->group), failing = operation->status < 0;
  while (asleep && !has_events(operation)) {
    sleep_once(operation);
    rdt_group_operation_check_time(operation);
    ask_caller(operation, call, ask);
    if (failing || operation->status < 0) break; /* a failing operation has to go on */
  }
  begin_polling(operation->group);
}

/* Polling does not pay where the waits of an operation are long, as on a slow link. */
static void wait_for_end(rdt_group_operation *operation, const rdt_collective *call) {
  const int64_t spin_us = operation->group->spin_us;
  int64_t ask = 0, waited = 0, waits = 0;
  begin_polling(operation->group);
  for (bool ended = false; !ended; waits++) {
    const int64_t began = rdt_now_us();
    const bool soon = waited <= waits * spin_us / 2;
    if (!(soon ? spin(operation, spin_us) : look(operation)))
      sleep_for_events(operation, call, &ask);
    waited += rdt_now_us() - began;
    ended = rdt_group_operation_advance(operation);
  }
  end_polling(operation->group);
}

rdt_status rdt_group_run(rdt_group *group, const rdt_collective *call) {
  rdt_group_operation *operation;
  rdt_status status = rdt_group_operation_check(group, call);
  if (status != RDT_OK) return status;
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "rdt_group_run waits: it cannot be called from a handler");
  status = rdt_group_operation_start(group, call, NULL, NULL, &operation);
  if (status != RDT_OK) return status;
  if (!rdt_group_operation_advance(operation)) wait_for_end(operation, call);
  status = conclude(operation);
  rdt_group_operation_retire(operation);
  rdt_group_operation_over(group);
  return status;
}

/* Drives an operation, as the progress thread would, until it is over or nothing has happened for `spin_us`. */
static bool drive_for_a_while(rdt_group_operation *operation, int spin_us) {
  bool over = rdt_group_operation_advance(operation);
  if (over || spin_us <= 0) return over;
  begin_polling(operation->group);
  while (!over && !operation->needs_runner && spin(operation, spin_us))
    over = rdt_group_operation_advance(operation);
  end_polling(operation->group);
  return over;
}

rdt_status rdt_group_try(rdt_group *group, const rdt_collective *call, int spin_us,
                         rdt_done_fn done, void *context) {
  rdt_group_operation *operation;
  rdt_status status = begin(group, call, done, context, &operation);
  if (status != RDT_OK) return status;
  bool over = operation->driver == RDT_DRIVER_PROGRESS && drive_for_a_while(operation, spin_us);
  if (!over && operation->driver != RDT_DRIVER_PROGRESS) {
    rdt_group_operation_advance_first(operation);
    over = operation->over;
  }
  if (!over) {
    hand_over(operation);
    return RDT_IN_PROGRESS;
  }
  status = conclude(operation);
  rdt_group_operation_retire(operation);
  rdt_group_operation_over(group);
  return status;
}
