/* SPDX-License-Identifier: Apache-2.0
 *
 * What callers' threads drive: the operation of rdt_group_run until its end, a started one until nothing happens for
 * a while, and the one that a thread waits for. A thread that drives polls for messages, which saves switches of
 * threads. drivers.c has the threads of the device.
 */
#include "base/status.h"
#include "base/thread.h"
#include "core/post/transfer.h"
#include "core/post/waiting.h"
#include "group/run/run.h"

#define LOOKS 64    /* polls of links between reads of the clock */
#define YIELD_US 5  /* time of waiting after which other threads get this core */
#define SLEEP_MS 50 /* longest sleep; then the caller is asked, and a failed operation checked */
#define ASK_MS 100  /* interval of asking a waiting caller whether to go on */

static rdt_status begin(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                        void *context, rdt_group_operation **operation) {
  rdt_status status = rdt_group_operation_check(group, call);
  if (status == RDT_OK && !done) status = rdt_fail(RDT_ERR_INVALID, "done must not be NULL");
  if (status != RDT_OK) return status;
  return rdt_group_operation_start(group, call, done, context, operation);
}

/* Returns true if the progress thread will look at the links in a moment, without being woken. */
static bool is_polled(const rdt_group *group) {
  for (uint32_t i = 0; i < group->size; i++)
    if (i != group->rank && rdt_channel_is_polled(group->links[i].channel)) return true;
  return false;
}

/* Leaves an operation that this thread began to the threads of the device. Who begins a send or a receive often waits
 * for it at once, and drives it then: waking the progress thread would only disturb both. */
static void hand_over(rdt_group_operation *operation) {
  rdt_device *device = operation->group->device;
  const bool pairs = operation->partner != RDT_GROUP_EVERYBODY;
  if (atomic_fetch_add(&device->client_work, 1) == 0 && !(pairs && is_polled(operation->group)))
    rdt_device_wake(device);
  rdt_group_operation_put_aside(operation, operation->over || operation->fresh);
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

static void sleep_once(rdt_group_operation *operation, rdt_deadline limit) {
  rdt_group *group = operation->group;
  rdt_deadline until = rdt_now_ms() + SLEEP_MS;
  if (operation->deadline < until && operation->status == RDT_IN_PROGRESS)
    until = operation->deadline;
  if (limit < until) until = limit;
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
  if (!call || !call->stop || now < *next) return;
  if (*next && call->stop(call->context))
    rdt_group_operation_fail(operation, RDT_ERR_CANCELLED,
                             "group %s: the operation was interrupted", operation->group->name);
  *next = now + ASK_MS;
}

/* Sleeps until there are events; the progress thread takes messages meanwhile. */
static void sleep_for_events(rdt_group_operation *operation, const rdt_collective *call,
                             rdt_deadline until, int64_t *ask) {
  bool asleep = end_polling_to_sleep(operation->group), failing = operation->status < 0;
  while (asleep && !has_events(operation) && rdt_now_ms() < until) {
    sleep_once(operation, until);
    rdt_group_operation_check_time(operation);
    ask_caller(operation, call, ask);
    if (failing || operation->status < 0) break; /* a failing operation has to go on */
  }
  begin_polling(operation->group);
}

/* Drives an operation until it is over, or until then. Returns true if it is over. `call` is NULL if nobody is to
 * be asked. Polling does not pay where the waits of an operation are long, as on a slow link. */
static bool drive_until(rdt_group_operation *operation, const rdt_collective *call,
                        rdt_deadline until) {
  const int64_t spin_us = operation->group->spin_us;
  int64_t ask = 0, waited = 0, waits = 0;
  bool over = rdt_group_operation_advance(operation);
  if (over) return true;
  begin_polling(operation->group);
  for (; !over && (waits == 0 || rdt_now_ms() < until); waits++) {
    const int64_t began = rdt_now_us();
    const bool soon = waited <= waits * spin_us / 2;
    if (!(soon ? spin(operation, spin_us) : look(operation)))
      sleep_for_events(operation, call, until, &ask);
    waited += rdt_now_us() - began;
    over = rdt_group_operation_advance(operation);
  }
  end_polling(operation->group);
  return over;
}

rdt_status rdt_group_run(rdt_group *group, const rdt_collective *call) {
  rdt_group_operation *operation;
  rdt_status status = rdt_group_operation_check(group, call);
  if (status != RDT_OK) return status;
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "rdt_group_run waits: it cannot be called from a handler");
  status = rdt_group_operation_start(group, call, NULL, NULL, &operation);
  if (status != RDT_OK) return status;
  drive_until(operation, call, INT64_MAX);
  status = rdt_group_operation_conclude(operation);
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
  status = rdt_group_operation_conclude(operation);
  rdt_group_operation_over(group);
  return status;
}

/* Takes an operation from the threads of the device, if it is that of the transfer, no thread drives it, and no other
 * is under way: those that the waiter does not drive would move more slowly. */
static bool adopt(void *given, const rdt_transfer *transfer) {
  rdt_group_operation *operation = given;
  rdt_group *group = operation->group;
  pthread_mutex_lock(&group->lock);
  const bool adopts =
      operation->context == transfer && group->started == 1 && rdt_group_ready_take(operation);
  if (adopts) {
    operation->before = operation->driver;
    operation->driver = RDT_DRIVER_CALLER;
  }
  pthread_mutex_unlock(&group->lock);
  return adopts;
}

static void drive_adopted(void *given, rdt_deadline until) {
  rdt_group_operation *operation = given;
  rdt_group_operation_check_time(operation);
  if (operation->over || drive_until(operation, NULL, until)) {
    rdt_group_operation_end(operation);
    return;
  }
  rdt_group_operation_set_driver(operation, operation->before);
  rdt_group_operation_put_aside(operation, true);
}

rdt_status rdt_group_submit(rdt_group *group, const rdt_collective *call, rdt_transfer **transfer) {
  static const rdt_transfer_driver waiter = {.adopt = adopt, .drive = drive_adopted};
  if (!transfer) return rdt_fail(RDT_ERR_INVALID, "transfer must not be NULL");
  rdt_transfer *waitable = rdt_transfer_new(NULL);
  if (!waitable) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_group_operation *operation;
  rdt_status status = begin(group, call, rdt_transfer_complete, waitable, &operation);
  if (status != RDT_OK) {
    rdt_transfer_drop(waitable);
    return status;
  }
  *transfer = waitable;
  rdt_transfer_set_driver(waitable, &waiter, operation);
  rdt_group_operation_advance_first(operation);
  if (!operation->over) {
    hand_over(operation);
    return RDT_IN_PROGRESS;
  }
  rdt_transfer_complete(waitable, rdt_group_operation_conclude(operation));
  rdt_group_operation_over(group);
  return RDT_IN_PROGRESS;
}
