/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/carriers.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/tcp/line.h"

#define BATCH 8 /* streams that are asked for at once */

struct rdt_tcp_carrier {
  pthread_t thread;
  int epoll_fd, stop_fd;
  pthread_mutex_t lock; /* never held while a stream is served */
  pthread_cond_t still;
  /* Under the lock: streams [next, count) have events and wait for their turn; NULL was taken back meanwhile. */
  rdt_tcp_stream *ready[BATCH];
  int next, count;
  rdt_tcp_stream *serving; /* NULL: none */
};

/* ---- serving ----------------------------------------------------------------------------------------------- */

/* Its socket would report its end, or what nobody takes any more, for ever. */
static void retire_if_over(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  if (!atomic_load(&endpoint->failed) && !stream->in.ended && !stream->out.dead) return;
  epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  stream->in.news = true;
}

/* One pass, which is bounded; for the rest there is another event. */
static void serve(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  rdt_tcp_receive(endpoint, (uint32_t)(stream - endpoint->streams));
  rdt_tcp_flush_carried(stream);
  retire_if_over(stream);
  if (!stream->in.news) return;
  stream->in.news = false;
  rdt_tcp_nudge(endpoint);
}

/* Events are asked for under the lock, so that they are of streams that are still here. *any: there was one. Returns
 * false when the carrier is to stop. Call it under the lock. */
static bool look(rdt_tcp_carrier *carrier, bool *any) {
  struct epoll_event events[BATCH];
  bool goes_on = true;
  const int count = epoll_wait(carrier->epoll_fd, events, BATCH, 0);
  *any = count > 0;
  carrier->next = carrier->count = 0;
  for (int i = 0; i < count; i++) {
    if (events[i].data.ptr)
      carrier->ready[carrier->count++] = events[i].data.ptr;
    else
      goes_on = false;
  }
  return goes_on;
}

/* Serves those that are ready, each for one pass. Call it under the lock. */
static void serve_ready(rdt_tcp_carrier *carrier) {
  while (carrier->next < carrier->count) {
    carrier->serving = carrier->ready[carrier->next++];
    if (!carrier->serving) continue;
    pthread_mutex_unlock(&carrier->lock);
    serve(carrier->serving);
    pthread_mutex_lock(&carrier->lock);
    carrier->serving = NULL;
    pthread_cond_broadcast(&carrier->still);
  }
}

static void *run_carrier(void *argument) {
  rdt_tcp_carrier *carrier = argument;
  struct epoll_event event;
  bool any;
  pthread_mutex_lock(&carrier->lock);
  while (look(carrier, &any)) {
    serve_ready(carrier);
    if (any) continue;
    pthread_mutex_unlock(&carrier->lock);
    epoll_wait(carrier->epoll_fd, &event, 1, -1);
    pthread_mutex_lock(&carrier->lock);
  }
  pthread_mutex_unlock(&carrier->lock);
  return NULL;
}

/* ---- life -------------------------------------------------------------------------------------------------- */

uint32_t rdt_tcp_carriers_useful(void) {
  cpu_set_t set;
  int processors = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return processors > (int)RDT_TCP_MAX_STREAMS ? RDT_TCP_MAX_STREAMS - 1 : (uint32_t)processors - 1;
}

static void carrier_free(rdt_tcp_carrier *carrier) {
  if (carrier->epoll_fd >= 0) close(carrier->epoll_fd);
  if (carrier->stop_fd >= 0) close(carrier->stop_fd);
  pthread_mutex_destroy(&carrier->lock);
  pthread_cond_destroy(&carrier->still);
  free(carrier);
}

static rdt_tcp_carrier *carrier_start(void) {
  rdt_tcp_carrier *carrier = calloc(1, sizeof(*carrier));
  if (!carrier) return NULL;
  struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
  pthread_mutex_init(&carrier->lock, NULL);
  pthread_cond_init(&carrier->still, NULL);
  carrier->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  carrier->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (carrier->epoll_fd >= 0 && carrier->stop_fd >= 0 &&
      epoll_ctl(carrier->epoll_fd, EPOLL_CTL_ADD, carrier->stop_fd, &stop) == 0 &&
      pthread_create(&carrier->thread, NULL, run_carrier, carrier) == 0)
    return carrier;
  carrier_free(carrier);
  return NULL;
}

/* Returns the carrier of all streams with this number, or NULL. */
static rdt_tcp_carrier *carrier_of(rdt_domain *domain, uint32_t index) {
  if (domain->carrier_limit == 0) return NULL;
  rdt_tcp_carrier **place = &domain->carriers[(index - 1) % domain->carrier_limit];
  pthread_rwlock_wrlock(&domain->lock);
  if (!*place) *place = carrier_start();
  pthread_rwlock_unlock(&domain->lock);
  return *place;
}

void rdt_tcp_carry(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  uint32_t index = (uint32_t)(stream - endpoint->streams);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
  rdt_tcp_carrier *carrier = carrier_of(endpoint->domain, index);
  if (!carrier) return;
  pthread_mutex_lock(&carrier->lock);
  if (epoll_ctl(carrier->epoll_fd, EPOLL_CTL_ADD, stream->socket.fd, &event) == 0) {
    epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
    stream->epoll_fd = carrier->epoll_fd;
    stream->carrier = carrier;
    atomic_store(&stream->carried, true);
  }
  pthread_mutex_unlock(&carrier->lock);
}

/* Threads may do this at the same time; each waits until the carrier has let go. */
static void take_back(rdt_tcp_stream *stream) {
  rdt_tcp_carrier *carrier = stream->carrier;
  pthread_mutex_lock(&carrier->lock);
  epoll_ctl(carrier->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  atomic_store(&stream->carried, false);
  for (int i = carrier->next; i < carrier->count; i++)
    if (carrier->ready[i] == stream) carrier->ready[i] = NULL;
  while (carrier->serving == stream) pthread_cond_wait(&carrier->still, &carrier->lock);
  pthread_mutex_unlock(&carrier->lock);
}

void rdt_tcp_carry_no_more(rdt_endpoint *endpoint) {
  for (uint32_t i = 1; i < endpoint->stream_count && endpoint->streams; i++)
    if (endpoint->streams[i].carrier) take_back(&endpoint->streams[i]);
}

void rdt_tcp_carriers_stop(rdt_domain *domain) {
  for (uint32_t i = 0; i < RDT_TCP_MAX_STREAMS; i++) {
    rdt_tcp_carrier *carrier = domain->carriers[i];
    if (!carrier) continue;
    eventfd_write(carrier->stop_fd, 1);
    pthread_join(carrier->thread, NULL);
    carrier_free(carrier);
  }
}
