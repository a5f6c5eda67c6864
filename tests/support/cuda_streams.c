/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams of the stand-in for CUDA's driver, which are threads, and what runs on them.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_driver.h"

#define MOST_STREAMS 64
#define WAITS (MOST_STREAMS + 1)

typedef struct stream stream;
/* Work number `number` of a stream. */
typedef struct point {
  stream *of;
  uint64_t number;
} point;

typedef struct work {
  struct work *next;
  enum { COPY, FILL, NOTHING } kind;
  uint64_t to, from;
  size_t size;
  unsigned char value;
  unsigned delay_us;
  int wait_count;
  point waits[WAITS];
} work;

struct stream {
  bool used, blocking; /* blocking: it and the default stream wait for each other */
  pthread_t thread;
  work *first, **last;
  uint64_t queued, done;
  point waits; /* of cuStreamWaitEvent, for the next work */
};

typedef struct event {
  point at;
} event;

static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static stream streams[MOST_STREAMS]; /* the first is the default one */
static atomic_uint delay_us;
static _Atomic uint64_t copies;
static int left = -1; /* copies that may begin; -1: any number */

API void standin_delay(unsigned us) { atomic_store(&delay_us, us); }

/* After so many more copies, no copy and no fill begins any more; -1: until this is called again. */
API void standin_hold(int copies) {
  pthread_mutex_lock(&standin_lock);
  left = copies;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&standin_lock);
}

/* Returns how many copies were begun. */
API uint64_t standin_copies(void) { return copies; }

/* Returns how many copies wait. */
API int standin_queued(void) {
  int count = 0;
  pthread_mutex_lock(&standin_lock);
  for (const stream *each = streams; each < streams + MOST_STREAMS; each++)
    for (const work *next = each->first; next; next = next->next) count += next->kind == COPY;
  pthread_mutex_unlock(&standin_lock);
  return count;
}

static void execute(const work *of) {
  if (of->delay_us) usleep(of->delay_us);
  pthread_mutex_lock(&standin_lock); /* so nobody frees it meanwhile */
  char *to = standin_usable(of->to, of->size);
  const char *from = of->kind == COPY ? standin_usable(of->from, of->size) : NULL;
  if (of->kind == FILL && to) memset(to, of->value, of->size);
  if (of->kind == COPY && to && from) memmove(to, from, of->size);
  pthread_mutex_unlock(&standin_lock);
}

static bool may_run(const work *next) {
  for (int i = 0; i < next->wait_count; i++)
    if (next->waits[i].of->done < next->waits[i].number) return false;
  return true;
}

static void *run(void *argument) {
  stream *self = argument;
  pthread_mutex_lock(&standin_lock);
  for (;;) {
    work *next = self->first;
    if (!next || (left == 0 && next->kind != NOTHING) || !may_run(next)) {
      pthread_cond_wait(&moved, &standin_lock);
      continue;
    }
    copies += next->kind == COPY;
    left -= left > 0 && next->kind == COPY;
    self->first = next->next;
    if (!self->first) self->last = &self->first;
    pthread_mutex_unlock(&standin_lock);
    if (next->kind != NOTHING) execute(next);
    free(next);
    pthread_mutex_lock(&standin_lock);
    self->done++;
    pthread_cond_broadcast(&moved);
  }
  return NULL;
}

/* Under the lock, like the next. */
static int begin(stream *begun, bool blocking) {
  begun->used = true;
  begun->blocking = blocking;
  begun->last = &begun->first;
  if (pthread_create(&begun->thread, NULL, run, begun) != 0) return NO_MEMORY;
  pthread_detach(begun->thread);
  return 0;
}

static stream *stream_of(void *handle) {
  if ((uintptr_t)handle <= 2) return &streams[0]; /* NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */
  stream *given = handle;
  return given > streams && given < streams + MOST_STREAMS && given->used ? given : NULL;
}

static int queue(work made, void *handle) {
  work *added = malloc(sizeof(*added));
  if (!added) return NO_MEMORY;
  *added = made;
  added->next = NULL;
  added->delay_us = atomic_load(&delay_us);
  pthread_mutex_lock(&standin_lock);
  stream *on = stream_of(handle);
  if (on) {
    const bool is_default = on == &streams[0];
    if (on->waits.of) added->waits[added->wait_count++] = on->waits;
    on->waits.of = NULL;
    for (stream *each = streams; each < streams + MOST_STREAMS; each++)
      if (each != on && each->used &&
          (is_default ? each->blocking : on->blocking && each == streams))
        added->waits[added->wait_count++] = (point){each, each->queued};
    *on->last = added;
    on->last = &added->next;
    on->queued++;
    pthread_cond_broadcast(&moved);
  }
  pthread_mutex_unlock(&standin_lock);
  if (!on) free(added);
  return on ? 0 : BAD_HANDLE;
}

static int await(point until) {
  pthread_mutex_lock(&standin_lock);
  while (until.of->done < until.number) pthread_cond_wait(&moved, &standin_lock);
  pthread_mutex_unlock(&standin_lock);
  return atomic_load(&standin_broken);
}

int standin_begin(void) { return begin(&streams[0], true); }

void standin_drain(void) {
  for (stream *each = streams; each < streams + MOST_STREAMS; each++) {
    pthread_mutex_lock(&standin_lock);
    const point end = {each, each->queued};
    pthread_mutex_unlock(&standin_lock);
    await(end);
  }
}

API int cuStreamSynchronize(void *handle);

API int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *on) {
  CHECK_CONTEXT();
  return queue((work){.kind = FILL, .to = to, .value = value, .size = size}, on);
}

API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *on) {
  CHECK_CONTEXT();
  return queue((work){.kind = COPY, .to = to, .from = from, .size = size}, on);
}

/* As the next, for Numba: on the default stream, and waited for. */
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  int error = cuMemcpyAsync(to, (uintptr_t)from, size, NULL);
  return error ? error : cuStreamSynchronize(NULL);
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  int error = cuMemcpyAsync((uintptr_t)to, from, size, NULL);
  return error ? error : cuStreamSynchronize(NULL);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *on) {
  return cuMemcpyAsync(to, (uintptr_t)from, size, on);
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *on) {
  return cuMemcpyAsync((uintptr_t)to, from, size, on);
}

API int cuStreamDestroy_v2(void *destroyed) { /* it is kept, for there are enough */
  return cuStreamSynchronize(destroyed);
}

API int cuStreamCreate(void **created, unsigned flags) {
  CHECK_CONTEXT();
  int error = NO_MEMORY;
  pthread_mutex_lock(&standin_lock);
  for (stream *each = streams; each < streams + MOST_STREAMS && error; each++) {
    if (each->used) continue;
    *created = each;
    error = begin(each, flags == 0);
    break;
  }
  pthread_mutex_unlock(&standin_lock);
  return error;
}

API int cuStreamSynchronize(void *handle) {
  CHECK_CONTEXT();
  pthread_mutex_lock(&standin_lock);
  stream *on = stream_of(handle);
  const point end = {on, on ? on->queued : 0};
  pthread_mutex_unlock(&standin_lock);
  return on ? await(end) : BAD_HANDLE;
}

API int cuStreamWaitEvent(void *handle, void *waited, unsigned flags) {
  (void)flags;
  CHECK_CONTEXT();
  pthread_mutex_lock(&standin_lock);
  stream *on = stream_of(handle);
  if (on) on->waits = ((event *)waited)->at;
  pthread_mutex_unlock(&standin_lock);
  return on ? queue((work){.kind = NOTHING}, handle) : BAD_HANDLE;
}

API int cuEventCreate(void **created, unsigned flags) {
  (void)flags;
  CHECK_CONTEXT();
  event *made = calloc(1, sizeof(*made));
  if (!made) return NO_MEMORY;
  made->at.of = &streams[0];
  *created = made;
  return 0;
}

/* It is work of the stream, so it waits for the default one too. */
API int cuEventRecord(void *recorded, void *handle) {
  CHECK_CONTEXT();
  int error = queue((work){.kind = NOTHING}, handle);
  if (error) return error;
  pthread_mutex_lock(&standin_lock);
  stream *on = stream_of(handle);
  ((event *)recorded)->at = (point){on, on->queued};
  pthread_mutex_unlock(&standin_lock);
  return 0;
}

static int query(point until) {
  pthread_mutex_lock(&standin_lock);
  const bool ended = until.of->done >= until.number;
  pthread_mutex_unlock(&standin_lock);
  const int broken = atomic_load(&standin_broken);
  return broken ? broken : ended ? 0 : NOT_READY;
}

API int cuEventQuery(void *queried) {
  CHECK();
  pthread_mutex_lock(&standin_lock);
  const point at = ((event *)queried)->at;
  pthread_mutex_unlock(&standin_lock);
  return query(at);
}

API int cuStreamQuery(void *handle) {
  CHECK_CONTEXT();
  pthread_mutex_lock(&standin_lock);
  stream *on = stream_of(handle);
  const point end = {on, on ? on->queued : 0};
  pthread_mutex_unlock(&standin_lock);
  return on ? query(end) : BAD_HANDLE;
}

API int cuEventDestroy_v2(void *destroyed) {
  free(destroyed);
  return 0;
}
