/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups for unit programs: members are devices of this process, each with a thread of its own, so that
 * sanitizers see all ends.
 */
#ifndef RDT_TESTS_GROUP_MEMBERS_H
#define RDT_TESTS_GROUP_MEMBERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "group/run/run.h"
#include "unit.h"

#define MEMBERS 5
/* For what must succeed, on a machine that does much else and under a sanitizer. */
#define PATIENCE_MS 180000

typedef struct {
  rdt_device *device;
  rdt_group *group;
  rdt_group_options options;
  rdt_status status;
  char error[1024];
} member;

static inline void *create_member(void *argument) {
  member *m = argument;
  m->status = rdt_group_create(m->device, &m->options, &m->group);
  snprintf(m->error, sizeof(m->error), "%s", m->status == RDT_OK ? "" : rdt_last_error());
  return NULL;
}

/* Sets up how each would join, without doing it. */
static inline void prepare(member *members, uint32_t size, const char *name) {
  for (uint32_t i = 0; i < size; i++)
    members[i].options = (rdt_group_options){.struct_size = sizeof(rdt_group_options),
                                             .name = name,
                                             .rank = i,
                                             .size = size,
                                             .root = rdt_device_address(members[0].device),
                                             .timeout_ms = PATIENCE_MS};
}

static inline void create_groups(member *members, uint32_t count) {
  pthread_t threads[MEMBERS];
  for (uint32_t i = 0; i < count; i++)
    pthread_create(&threads[i], NULL, create_member, &members[i]);
  for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static inline void open_devices(member *members, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    memset(&members[i], 0, sizeof(members[i]));
    EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &members[i].device));
  }
}

static inline void open_group(member *members, uint32_t size, const char *name) {
  open_devices(members, size);
  prepare(members, size, name);
  create_groups(members, size);
  for (uint32_t i = 0; i < size; i++) {
    if (members[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, members[i].error);
    EXPECT_STATUS(RDT_OK, members[i].status);
  }
}

static inline void close_group(member *members, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) rdt_group_close(members[i].group);
  for (uint32_t i = 0; i < size; i++) rdt_device_close(members[i].device);
}

/* As if the transport could not map memory. */
static inline void forbid_mapping(member *members, uint32_t size) {
  for (uint32_t i = 0; i < size; i++)
    for (uint32_t j = 0; j < size; j++) members[i].group->links[j].maps = false;
}

typedef struct {
  member *member;
  rdt_collective call;
  rdt_status status;
  char error[1024];
} task;

static inline void *run_task(void *argument) {
  task *t = argument;
  t->status = rdt_group_run(t->member->group, &t->call);
  snprintf(t->error, sizeof(t->error), "%s", t->status == RDT_OK ? "" : rdt_last_error());
  return NULL;
}

static inline void run_tasks(task *tasks, uint32_t count) {
  pthread_t threads[64];
  for (uint32_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, run_task, &tasks[i]);
  for (uint32_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static inline rdt_collective barrier_call(uint64_t tag) {
  return (rdt_collective){.struct_size = sizeof(rdt_collective),
                          .kind = RDT_BARRIER,
                          .tag = {tag, 1},
                          .timeout_ms = PATIENCE_MS};
}

/* A sum of `count` numbers in place. */
static inline rdt_collective sum_call(uint64_t tag, int32_t *numbers, uint64_t count) {
  return (rdt_collective){.struct_size = sizeof(rdt_collective),
                          .kind = RDT_ALL_REDUCE,
                          .dtype = RDT_INT32,
                          .op = RDT_SUM,
                          .algorithm = RDT_ALGORITHM_AUTO,
                          .tag = {tag, 2},
                          .input = numbers,
                          .output = numbers,
                          .count = count,
                          .timeout_ms = PATIENCE_MS};
}

/* Operations of a member's group that were called and have not ended. */
static inline unsigned started_of(const member *m) {
  pthread_mutex_lock(&m->group->lock);
  unsigned started = m->group->started;
  pthread_mutex_unlock(&m->group->lock);
  return started;
}

/* Members that wait for this one to create their group. */
static inline unsigned join_requests_of(const member *m) {
  rdt_groups *groups = rdt_groups_of(m->device);
  pthread_mutex_lock(&groups->lock);
  unsigned count = groups->join_request_count;
  pthread_mutex_unlock(&groups->lock);
  return count;
}

/* A sum of 100 numbers at all members, whose result is compared. */
static inline void check_sum(member *members, uint32_t size, uint64_t tag) {
  task tasks[MEMBERS];
  int32_t numbers[MEMBERS][100];
  for (uint32_t i = 0; i < size; i++) {
    for (int j = 0; j < 100; j++) numbers[i][j] = j;
    tasks[i] = (task){.member = &members[i], .call = sum_call(tag, numbers[i], 100)};
  }
  run_tasks(tasks, size);
  for (uint32_t i = 0; i < size; i++) {
    if (tasks[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, tasks[i].error);
    EXPECT_STATUS(RDT_OK, tasks[i].status);
    for (int j = 0; j < 100; j++) EXPECT(numbers[i][j] == j * (int32_t)size);
  }
}

static inline bool mentions(const char *text, const char *part) {
  if (!strstr(text, part)) fprintf(stderr, "\"%s\" does not mention \"%s\"\n", text, part);
  return strstr(text, part) != NULL;
}

#endif
