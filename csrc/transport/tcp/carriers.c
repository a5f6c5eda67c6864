/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/carriers.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/tcp/line.h"

#define BATCH 8 /* events between looks at whoever wants the lock */

struct rdt_tcp_carrier {
  pthread_t thread;
  int epoll_fd, stop_fd;
  /* Held while streams are served, and while one is added or taken back. Whoever wants it takes its turn by
   * `turn`, so that a busy carrier does not keep it. */
  pthread_mutex_t turn, lock;
};

static void carrier_lock(rdt_tcp_carrier *carrier) {
  pthread_mutex_lock(&carrier->turn);
  pthread_mutex_lock(&carrier->lock);
  pthread_mutex_unlock(&carrier->turn);
}

static void carrier_unlock(rdt_tcp_carrier *carrier) { pthread_mutex_unlock(&carrier->lock); }

/* ---- serving ----------------------------------------------------------------------------------------------- */

/* Its socket would report its end, or what nobody takes any more, for ever. */
static void retire_if_over(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  if (!atomic_load(&endpoint->failed) && !stream->in.ended && !stream->out.dead) return;
  epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  stream->in.news = true;
}

static void serve(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  uint32_t index = (uint32_t)(stream - endpoint->streams);
  int moved;
  do {
    moved = rdt_tcp_receive(endpoint, index);
    rdt_tcp_flush_carried(stream);
  } while (moved && rdt_tcp_line_holds(stream->socket));
  retire_if_over(stream);
  if (!stream->in.news) return;
  stream->in.news = false;
  rdt_tcp_nudge(endpoint);
}

/* Events are asked for again under the lock, because streams may have been taken back since. Returns false
 * when the carrier is to stop. */
static bool serve_batch(rdt_tcp_carrier *carrier, int *count) {
  struct epoll_event events[BATCH];
  bool goes_on = true;
  carrier_lock(carrier);
  *count = epoll_wait(carrier->epoll_fd, events, BATCH, 0);
  for (int i = 0; i < *count; i++) {
    if (events[i].data.ptr)
      serve(events[i].data.ptr);
    else
      goes_on = false;
  }
  carrier_unlock(carrier);
  return goes_on;
}

static void *run_carrier(void *argument) {
  rdt_tcp_carrier *carrier = argument;
  struct epoll_event any;
  for (int count = 0; serve_batch(carrier, &count);)
    if (count <= 0) epoll_wait(carrier->epoll_fd, &any, 1, -1);
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
  pthread_mutex_destroy(&carrier->turn);
  pthread_mutex_destroy(&carrier->lock);
  free(carrier);
}

static rdt_tcp_carrier *carrier_start(void) {
  rdt_tcp_carrier *carrier = calloc(1, sizeof(*carrier));
  if (!carrier) return NULL;
  struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
  pthread_mutex_init(&carrier->turn, NULL);
  pthread_mutex_init(&carrier->lock, NULL);
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
  carrier_lock(carrier);
  if (epoll_ctl(carrier->epoll_fd, EPOLL_CTL_ADD, stream->socket.fd, &event) == 0) {
    epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
    stream->epoll_fd = carrier->epoll_fd;
    stream->carrier = carrier;
    atomic_store(&stream->carried, true);
  }
  carrier_unlock(carrier);
}

void rdt_tcp_carry_no_more(rdt_endpoint *endpoint) {
  for (uint32_t i = 1; i < endpoint->stream_count && endpoint->streams; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    if (!atomic_load(&stream->carried)) continue;
    carrier_lock(stream->carrier);
    epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
    atomic_store(&stream->carried, false);
    carrier_unlock(stream->carrier);
  }
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
