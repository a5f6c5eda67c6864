/* SPDX-License-Identifier: Apache-2.0
 *
 * One side of a measurement, as all tests of micro.c use it.
 */
#ifndef RDT_BENCH_MICRO_H
#define RDT_BENCH_MICRO_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rdmatensor.h"

#define PATIENCE_S 60

static inline void check(rdt_status status, const char *what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, rdt_status_name(status), rdt_last_error());
  exit(1);
}

static inline double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The arguments of the command line. */
typedef struct request {
  const char *test, *address;
  uint64_t size;
  long samples, depth, each;
} request;

typedef struct side {
  rdt_device *device;
  rdt_region *region;
  volatile char *memory; /* the peer writes to the first half; the second half is sent */
  uint64_t room;         /* bytes of a half */
  uint64_t size;         /* of an operation */
  rdt_channel *channel;
  rdt_remote_region *remote;
  pthread_mutex_t lock;
  pthread_cond_t ready;
  /* At the server: a client that asked for ping-pong, and the number of turns. */
  rdt_channel *guest;
  uint64_t turns;
  /* At the client: the turns that the device's thread plays. */
  double *times, sent;
  long wanted, have;
} side;

static inline void join(side *s, const char *address) {
  check(rdt_device_connect(s->device, address, -1, &s->channel), "connect");
  check(rdt_remote_region_find(s->channel, "micro", -1, &s->remote), "find region");
}

static inline void leave(side *s) {
  rdt_remote_region_unref(s->remote);
  rdt_channel_unref(s->channel);
  s->remote = NULL;
  s->channel = NULL;
}

static inline void await(side *s, bool (*there)(side *)) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += PATIENCE_S;
  pthread_mutex_lock(&s->lock);
  while (!there(s))
    if (pthread_cond_timedwait(&s->ready, &s->lock, &end)) {
      fprintf(stderr, "the peer does not answer\n");
      exit(1);
    }
  pthread_mutex_unlock(&s->lock);
}

#endif
