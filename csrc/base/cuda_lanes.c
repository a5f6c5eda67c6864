/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes: what copies between host and devices use, and the waits for devices, which all end.
 *
 * A few lanes of each device are kept, with pinned memory, until the process ends. What more threads need at once is
 * not pinned, and given back.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cuda.h"
#include "base/cuda_driver.h"
#include "base/memory.h"

#define MOST_KEPT 4 /* of a device */
#define MOST_DEVICES 64
#define CHUNK_BYTES ((size_t)RDT_CUDA_CHUNKS * RDT_CUDA_CHUNK)
#define NO_TIMING 2u /* a flag of cuEventCreate */
#define SPINS 100
#define POLL_US 50

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static rdt_cuda_lane *idle, *abandoned;
static int kept[MOST_DEVICES];

static int await(int (*query)(void *), void *handle) {
  const rdt_deadline deadline = rdt_deadline_after(RDT_TIMEOUT_DEFAULT);
  for (unsigned tries = 0;; tries++) {
    int error = query(handle);
    if (error != RDT_CUDA_NOT_READY || rdt_deadline_left(deadline) == 0) return error;
    if (tries < SPINS)
      sched_yield();
    else
      usleep(POLL_US);
  }
}

int rdt_cuda_await(rdt_cuda_event event) { return await(rdt_cuda.event_query, event); }

int rdt_cuda_lane_await(const rdt_cuda_lane *lane, rdt_cuda_stream_handle stream) {
  int error = rdt_cuda.event_record(lane->events[0], stream);
  if (error == 0) return rdt_cuda_await(lane->events[0]);
  return await(rdt_cuda.stream_query,
               stream); /* a stream of another context takes no event of ours */
}

static void destroy(rdt_cuda_lane *lane) {
  for (unsigned i = 0; i < RDT_CUDA_CHUNKS; i++)
    if (lane->events[i]) rdt_cuda.event_destroy(lane->events[i]);
  if (lane->pinned) rdt_cuda.unpin(lane->chunks);
  if (lane->chunks) munmap(lane->chunks, CHUNK_BYTES);
  free(lane);
}

static int create(int ordinal, rdt_cuda_lane **created) {
  rdt_cuda_lane *lane = calloc(1, sizeof(*lane));
  int error = lane ? 0 : RDT_CUDA_NO_MEMORY;
  for (unsigned i = 0; i < RDT_CUDA_CHUNKS && error == 0; i++)
    error = rdt_cuda.event_create(&lane->events[i], NO_TIMING);
  if (error != 0) {
    if (lane) destroy(lane);
    return error;
  }
  lane->ordinal = ordinal;
  pthread_mutex_lock(&lock);
  lane->kept = kept[ordinal] < MOST_KEPT;
  kept[ordinal] += lane->kept;
  pthread_mutex_unlock(&lock);
  *created = lane;
  return 0;
}

int rdt_cuda_lane_take(int ordinal, rdt_cuda_lane **taken) {
  rdt_cuda_is_copying(ordinal); /* those that have ended are idle now */
  pthread_mutex_lock(&lock);
  rdt_cuda_lane **link = &idle;
  while (*link && (*link)->ordinal != ordinal) link = &(*link)->next;
  rdt_cuda_lane *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  if (!found) return create(ordinal, taken);
  found->other = -1;
  found->host = NULL;
  found->host_due = false;
  *taken = found;
  return 0;
}

/* Shared memory, whose pages stay where the device looks for them when the process forks. */
int rdt_cuda_lane_need_chunks(rdt_cuda_lane *lane) {
  if (lane->chunks) return 0;
  void *made = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return RDT_CUDA_NO_MEMORY;
  lane->chunks = made;
  lane->pinned = lane->kept && rdt_cuda_pin_pages(made, CHUNK_BYTES) == 0;
  return 0;
}

void rdt_cuda_lane_give_back(rdt_cuda_lane *lane) {
  if (!lane->kept) {
    destroy(lane);
    return;
  }
  pthread_mutex_lock(&lock);
  lane->next = idle;
  idle = lane;
  pthread_mutex_unlock(&lock);
}

void rdt_cuda_lane_abandon(rdt_cuda_lane *lane, rdt_cuda_stream_handle stream) {
  lane->by_event = rdt_cuda.event_record(lane->events[0], stream) == 0;
  lane->stream = stream;
  pthread_mutex_lock(&lock);
  lane->next = abandoned;
  abandoned = lane;
  pthread_mutex_unlock(&lock);
}

static bool has_ended(const rdt_cuda_lane *lane) {
  const rdt_cuda_device *entered;
  if (rdt_cuda_enter(lane->ordinal, &entered) != RDT_OK) return false;
  const int error =
      lane->by_event ? rdt_cuda.event_query(lane->events[0]) : rdt_cuda.stream_query(lane->stream);
  rdt_cuda_leave();
  return error == 0;
}

static void end(rdt_cuda_lane *lane) {
  const rdt_cuda_device *entered;
  void *due = lane->host_due ? lane->host : NULL;
  if (rdt_cuda_enter(lane->ordinal, &entered) == RDT_OK) {
    rdt_cuda_lane_give_back(lane);
    rdt_cuda_leave();
  }
  if (due) rdt_memory_free(due);
}

bool rdt_cuda_is_copying(int ordinal) {
  rdt_cuda_lane *ended = NULL;
  bool found = false;
  pthread_mutex_lock(&lock);
  for (rdt_cuda_lane **link = &abandoned; *link;) {
    rdt_cuda_lane *each = *link;
    if (has_ended(each)) {
      *link = each->next;
      each->next = ended;
      ended = each;
      continue;
    }
    found |= each->ordinal == ordinal || each->other == ordinal;
    link = &each->next;
  }
  pthread_mutex_unlock(&lock);
  while (ended) {
    rdt_cuda_lane *next = ended->next;
    end(ended);
    ended = next;
  }
  return found;
}

bool rdt_cuda_is_used(const void *address) {
  return rdt_cuda_is_copying(rdt_cuda_device_at((uintptr_t)address));
}

bool rdt_cuda_keeps(void *block) {
  pthread_mutex_lock(&lock);
  rdt_cuda_lane *each = abandoned;
  while (each && each->host != block) each = each->next;
  if (each) each->host_due = true;
  pthread_mutex_unlock(&lock);
  return each != NULL;
}
