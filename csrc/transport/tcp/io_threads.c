/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/io_threads.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/tcp/socket_io.h"

#define BATCH 8 /* streams that are asked for at once */

struct rdt_tcp_io_thread {
  pthread_t thread;
  int epoll_fd, stop_fd;
  pthread_mutex_t lock; /* never held while a stream is served */
  pthread_cond_t still;
  /* Under the lock: streams [next, count) have events and wait for their turn; NULL was taken back meanwhile. */
  rdt_tcp_stream *ready[BATCH];
  int next, count;
  rdt_tcp_stream *serving; /* NULL: none */
};

/* Its socket would report its end, or what nobody takes any more, for ever. */
static void retire_if_over(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  if (!atomic_load(&endpoint->failed) && !stream->in.ended && !stream->out.dead) return;
  epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  stream->in.pending_events = true;
}

/* One pass, which is bounded; for the rest there is another event. */
static void serve(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  rdt_tcp_receive(endpoint, (uint32_t)(stream - endpoint->streams));
  rdt_tcp_flush_attached(stream);
  retire_if_over(stream);
  if (!stream->in.pending_events) return;
  stream->in.pending_events = false;
  rdt_tcp_nudge(endpoint);
}

/* Events are asked for under the lock, so that they are of streams that are still here. *any: there was one. Returns
 * false when the I/O thread is to stop. Call it under the lock. */
static bool look(rdt_tcp_io_thread *io_thread, bool *any) {
  struct epoll_event events[BATCH];
  bool goes_on = true;
  const int count = epoll_wait(io_thread->epoll_fd, events, BATCH, 0);
  *any = count > 0;
  io_thread->next = io_thread->count = 0;
  for (int i = 0; i < count; i++) {
    if (events[i].data.ptr)
      io_thread->ready[io_thread->count++] = events[i].data.ptr;
    else
      goes_on = false;
  }
  return goes_on;
}

/* Serves those that are ready, each for one pass. Call it under the lock. */
static void serve_ready(rdt_tcp_io_thread *io_thread) {
  while (io_thread->next < io_thread->count) {
    io_thread->serving = io_thread->ready[io_thread->next++];
    if (!io_thread->serving) continue;
    pthread_mutex_unlock(&io_thread->lock);
    serve(io_thread->serving);
    pthread_mutex_lock(&io_thread->lock);
    io_thread->serving = NULL;
    pthread_cond_broadcast(&io_thread->still);
  }
}

static void *run_io_thread(void *argument) {
  rdt_tcp_io_thread *io_thread = argument;
  struct epoll_event event;
  bool any;
  pthread_mutex_lock(&io_thread->lock);
  while (look(io_thread, &any)) {
    serve_ready(io_thread);
    if (any) continue;
    pthread_mutex_unlock(&io_thread->lock);
    epoll_wait(io_thread->epoll_fd, &event, 1, -1);
    pthread_mutex_lock(&io_thread->lock);
  }
  pthread_mutex_unlock(&io_thread->lock);
  return NULL;
}

uint32_t rdt_tcp_io_threads_useful(void) {
  cpu_set_t set;
  int processors = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return processors > (int)RDT_TCP_MAX_STREAMS ? RDT_TCP_MAX_STREAMS - 1 : (uint32_t)processors - 1;
}

static void io_thread_free(rdt_tcp_io_thread *io_thread) {
  if (io_thread->epoll_fd >= 0) close(io_thread->epoll_fd);
  if (io_thread->stop_fd >= 0) close(io_thread->stop_fd);
  pthread_mutex_destroy(&io_thread->lock);
  pthread_cond_destroy(&io_thread->still);
  free(io_thread);
}

static rdt_tcp_io_thread *io_thread_start(void) {
  rdt_tcp_io_thread *io_thread = calloc(1, sizeof(*io_thread));
  if (!io_thread) return NULL;
  struct epoll_event stop = {.events = EPOLLIN, .data.ptr = NULL};
  pthread_mutex_init(&io_thread->lock, NULL);
  pthread_cond_init(&io_thread->still, NULL);
  io_thread->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  io_thread->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (io_thread->epoll_fd >= 0 && io_thread->stop_fd >= 0 &&
      epoll_ctl(io_thread->epoll_fd, EPOLL_CTL_ADD, io_thread->stop_fd, &stop) == 0 &&
      pthread_create(&io_thread->thread, NULL, run_io_thread, io_thread) == 0)
    return io_thread;
  io_thread_free(io_thread);
  return NULL;
}

/* Returns the I/O thread of all streams with this number, or NULL. */
static rdt_tcp_io_thread *io_thread_of(rdt_domain *domain, uint32_t index) {
  if (domain->io_thread_limit == 0) return NULL;
  rdt_tcp_io_thread **place = &domain->io_threads[(index - 1) % domain->io_thread_limit];
  pthread_rwlock_wrlock(&domain->lock);
  if (!*place) *place = io_thread_start();
  pthread_rwlock_unlock(&domain->lock);
  return *place;
}

void rdt_tcp_io_attach(rdt_tcp_stream *stream) {
  rdt_endpoint *endpoint = stream->endpoint;
  uint32_t index = (uint32_t)(stream - endpoint->streams);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
  rdt_tcp_io_thread *io_thread = io_thread_of(endpoint->domain, index);
  if (!io_thread) return;
  pthread_mutex_lock(&io_thread->lock);
  if (epoll_ctl(io_thread->epoll_fd, EPOLL_CTL_ADD, stream->socket.fd, &event) == 0) {
    epoll_ctl(stream->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
    stream->epoll_fd = io_thread->epoll_fd;
    stream->io_thread = io_thread;
    atomic_store(&stream->carried, true);
  }
  pthread_mutex_unlock(&io_thread->lock);
}

/* Threads may do this at the same time; each waits until the I/O thread has let go. */
static void take_back(rdt_tcp_stream *stream) {
  rdt_tcp_io_thread *io_thread = stream->io_thread;
  pthread_mutex_lock(&io_thread->lock);
  epoll_ctl(io_thread->epoll_fd, EPOLL_CTL_DEL, stream->socket.fd, NULL);
  atomic_store(&stream->carried, false);
  for (int i = io_thread->next; i < io_thread->count; i++)
    if (io_thread->ready[i] == stream) io_thread->ready[i] = NULL;
  while (io_thread->serving == stream) pthread_cond_wait(&io_thread->still, &io_thread->lock);
  pthread_mutex_unlock(&io_thread->lock);
}

void rdt_tcp_io_detach(rdt_endpoint *endpoint) {
  for (uint32_t i = 1; i < endpoint->stream_count && endpoint->streams; i++)
    if (endpoint->streams[i].io_thread) take_back(&endpoint->streams[i]);
}

void rdt_tcp_io_threads_stop(rdt_domain *domain) {
  for (uint32_t i = 0; i < RDT_TCP_MAX_STREAMS; i++) {
    rdt_tcp_io_thread *io_thread = domain->io_threads[i];
    if (!io_thread) continue;
    eventfd_write(io_thread->stop_fd, 1);
    pthread_join(io_thread->thread, NULL);
    io_thread_free(io_thread);
  }
}
