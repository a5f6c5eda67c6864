/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups whose members are devices of this process, each with a thread of its own, so that sanitizers see all
 * ends.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "unit.h"

#define MEMBERS 4

typedef struct {
  rdt_device *device;
  rdt_group *group;
  uint32_t rank, size;
  const char *root, *name;
  rdt_status status;
  int timeout_ms;
} member;

static void *create(void *argument) {
  member *m = argument;
  rdt_group_options options = {.struct_size = sizeof(options),
                               .name = m->name,
                               .rank = m->rank,
                               .size = m->size,
                               .root = m->root,
                               .timeout_ms = m->timeout_ms};
  m->status = rdt_group_create(m->device, &options, &m->group);
  if (m->status != RDT_OK) fprintf(stderr, "# rank %u: %s\n", m->rank, rdt_last_error());
  return NULL;
}

static void join_all(member *members, uint32_t size, const char *name) {
  pthread_t threads[MEMBERS];
  for (uint32_t i = 0; i < size; i++) {
    member *m = &members[i];
    m->rank = i;
    m->size = size;
    m->name = name;
    m->root = rdt_device_address(members[0].device);
    m->timeout_ms = 20000;
    pthread_create(&threads[i], NULL, create, m);
  }
  for (uint32_t i = 0; i < size; i++) {
    pthread_join(threads[i], NULL);
    EXPECT_STATUS(RDT_OK, members[i].status);
  }
}

static void open_all(member *members, uint32_t size, const char *name) {
  for (uint32_t i = 0; i < size; i++) {
    memset(&members[i], 0, sizeof(members[i]));
    EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &members[i].device));
  }
  join_all(members, size, name);
}

static void close_all(member *members, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) rdt_group_close(members[i].group);
  for (uint32_t i = 0; i < size; i++) rdt_device_close(members[i].device);
}

typedef struct {
  member *member;
  rdt_collective call;
  rdt_status status;
} task;

static void *run_task(void *argument) {
  task *t = argument;
  t->status = rdt_group_run(t->member->group, &t->call);
  if (t->status != RDT_OK) fprintf(stderr, "# rank %u: %s\n", t->member->rank, rdt_last_error());
  return NULL;
}

static void run_all(task *tasks, uint32_t size) {
  pthread_t threads[MEMBERS];
  for (uint32_t i = 0; i < size; i++) pthread_create(&threads[i], NULL, run_task, &tasks[i]);
  for (uint32_t i = 0; i < size; i++) pthread_join(threads[i], NULL);
}

static void test_all_reduce(uint32_t size, uint64_t count, rdt_algorithm algorithm, bool in_place,
                            member *members) {
  task tasks[MEMBERS];
  float *inputs[MEMBERS], *outputs[MEMBERS];
  for (uint32_t i = 0; i < size; i++) {
    inputs[i] = malloc(count * sizeof(float) + 1);
    outputs[i] = in_place ? inputs[i] : malloc(count * sizeof(float) + 1);
    for (uint64_t j = 0; j < count; j++) inputs[i][j] = (float)((j + i) % 100);
    tasks[i] = (task){.member = &members[i],
                      .call = {.struct_size = sizeof(rdt_collective),
                               .kind = RDT_ALL_REDUCE,
                               .dtype = RDT_FLOAT32,
                               .reduction = RDT_SUM,
                               .algorithm = algorithm,
                               .input = inputs[i],
                               .output = outputs[i],
                               .count = count,
                               .timeout_ms = 20000}};
  }
  run_all(tasks, size);
  for (uint32_t i = 0; i < size; i++) {
    EXPECT_STATUS(RDT_OK, tasks[i].status);
    for (uint64_t j = 0; j < count; j++) {
      float sum = 0;
      for (uint32_t k = 0; k < size; k++) sum += (float)((j + k) % 100);
      EXPECT(outputs[i][j] == sum);
    }
  }
  for (uint32_t i = 0; i < size; i++) {
    free(inputs[i]);
    if (!in_place) free(outputs[i]);
  }
}

int main(void) {
  member members[MEMBERS];
  for (uint32_t size = 1; size <= MEMBERS; size++) {
    open_all(members, size, "first");
    const uint64_t counts[] = {0, 1, 3, 1000, 5000, 100000, 1000001};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
      for (int algorithm = 0; algorithm < RDT_ALGORITHM_COUNT; algorithm++)
        for (int in_place = 0; in_place < 2; in_place++) {
          fprintf(stderr, "# %u members, %llu, algorithm %d, %d\n", size,
                  (unsigned long long)counts[c], algorithm, in_place);
          test_all_reduce(size, counts[c], (rdt_algorithm)algorithm, in_place, members);
        }
    close_all(members, size);
  }
  return 0;
}
