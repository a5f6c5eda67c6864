/* SPDX-License-Identifier: Apache-2.0 */
#include "core/post/events.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/forks.h"
#include "base/status.h"

struct rdt_event_queue {
  atomic_int refs; /* the opener's, and one for each event */
  unsigned fork_epoch;
  int fd; /* an eventfd, readable while `ready` is not empty */
  pthread_mutex_t lock;
  rdt_event *ready, **tail;
  bool closed;
};

static void unref(rdt_event_queue *queue) {
  if (atomic_fetch_sub(&queue->refs, 1) != 1) return;
  pthread_mutex_destroy(&queue->lock);
  free(queue);
}

static void free_event(rdt_event *event) {
  unref(event->queue);
  free(event);
}

rdt_status rdt_event_queue_open(rdt_event_queue **queue_out) {
  if (!queue_out) return rdt_fail(RDT_ERR_INVALID, "queue must not be NULL");
  rdt_event_queue *queue = calloc(1, sizeof(*queue));
  if (!queue) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_forks_watch();
  queue->fork_epoch = rdt_forks_epoch();
  queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (queue->fd < 0) {
    free(queue);
    return rdt_fail_errno(errno, "cannot create an eventfd");
  }
  atomic_init(&queue->refs, 1);
  pthread_mutex_init(&queue->lock, NULL);
  queue->tail = &queue->ready;
  *queue_out = queue;
  return RDT_OK;
}

int rdt_event_queue_fd(const rdt_event_queue *queue) { return queue ? queue->fd : -1; }

/* Takes the oldest event that is ready. Under the lock, like the functions below. */
static rdt_event *pop(rdt_event_queue *queue) {
  rdt_event *first = queue->ready;
  if (!first) return NULL;
  queue->ready = first->next_ready;
  if (!queue->ready) queue->tail = &queue->ready;
  first->ready = false;
  return first;
}

static void push(rdt_event_queue *queue, rdt_event *event) {
  const uint64_t one = 1;
  const bool first = !queue->ready;
  event->ready = true;
  event->next_ready = NULL;
  *queue->tail = event;
  queue->tail = &event->next_ready;
  if (!first) return;
  ssize_t ignored = write(queue->fd, &one, sizeof(one));
  (void)ignored;
}

static void unlink_ready(rdt_event_queue *queue, const rdt_event *event) {
  rdt_event **link = &queue->ready;
  while (*link != event) link = &(*link)->next_ready;
  *link = event->next_ready;
  if (!*link) queue->tail = link;
}

static void silence_if_empty(rdt_event_queue *queue) {
  uint64_t count;
  if (queue->ready) return;
  ssize_t ignored = read(queue->fd, &count, sizeof(count));
  (void)ignored;
}

size_t rdt_event_queue_take(rdt_event_queue *queue, uint64_t *tokens, size_t room) {
  size_t taken = 0;
  rdt_event *event = NULL;
  if (!queue || !tokens || queue->fork_epoch != rdt_forks_epoch()) return 0;
  pthread_mutex_lock(&queue->lock);
  while (taken < room && (event = pop(queue))) {
    tokens[taken++] = event->token;
    if (event->last) free_event(event);
  }
  if (!queue->closed) silence_if_empty(queue);
  pthread_mutex_unlock(&queue->lock);
  return taken;
}

/* In a forked child a thread that only the parent has may hold the lock. */
void rdt_event_queue_close(rdt_event_queue *queue) {
  if (!queue || queue->fork_epoch != rdt_forks_epoch()) return;
  pthread_mutex_lock(&queue->lock);
  queue->closed = true;
  close(queue->fd);
  for (rdt_event *event = pop(queue); event; event = pop(queue))
    if (event->last) free_event(event);
  pthread_mutex_unlock(&queue->lock);
  unref(queue);
}

rdt_event *rdt_event_new(rdt_event_queue *queue, uint64_t token) {
  rdt_event *event = calloc(1, sizeof(*event));
  if (!event) {
    rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
    return NULL;
  }
  atomic_fetch_add(&queue->refs, 1);
  event->queue = queue;
  event->token = token;
  return event;
}

void rdt_event_announce(rdt_event *event) {
  rdt_event_queue *queue = event->queue;
  pthread_mutex_lock(&queue->lock);
  if (!queue->closed && !event->ready) push(queue, event);
  pthread_mutex_unlock(&queue->lock);
}

void rdt_event_announce_last(rdt_event *event) {
  rdt_event_queue *queue = event->queue;
  pthread_mutex_lock(&queue->lock);
  const bool closed = queue->closed;
  event->last = true;
  if (!closed && !event->ready) push(queue, event);
  pthread_mutex_unlock(&queue->lock);
  if (closed) free_event(event);
}

void rdt_event_free(rdt_event *event) {
  rdt_event_queue *queue = event->queue;
  pthread_mutex_lock(&queue->lock);
  if (event->ready) unlink_ready(queue, event);
  if (!queue->closed) silence_if_empty(queue);
  pthread_mutex_unlock(&queue->lock);
  free_event(event);
}
