/* SPDX-License-Identifier: Apache-2.0 */
#include "base/forks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_uint epoch;
/* Held across fork, so that a child inherits no socket that is not in the list. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool *marked; /* indexed by descriptor: a child closes these */
static size_t marks;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
  atomic_fetch_add(&epoch, 1);
  for (size_t fd = 0; fd < marks; fd++) {
    if (marked[fd]) close((int)fd);
    marked[fd] = false;
  }
  pthread_mutex_unlock(&lock);
}

static void watch(void) { pthread_atfork(before_fork, after_fork, in_child); }

void rdt_forks_watch(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch);
}

unsigned rdt_forks_epoch(void) { return atomic_load_explicit(&epoch, memory_order_relaxed); }

static bool make_room(size_t wanted) {
  if (wanted <= marks) return true;
  size_t grown = wanted + wanted / 2 + 64;
  bool *more = realloc(marked, grown * sizeof(*more));
  if (!more) return false;
  memset(more + marks, 0, (grown - marks) * sizeof(*more));
  marked = more;
  marks = grown;
  return true;
}

/* Call it under the lock under which `fd` was created. */
static int mark(int fd) {
  if (fd < 0) return fd;
  if (make_room((size_t)fd + 1)) {
    marked[fd] = true;
    return fd;
  }
  close(fd);
  errno = ENOMEM;
  return -1;
}

int rdt_forks_socket(int domain, int type) {
  pthread_mutex_lock(&lock);
  int fd = mark(socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  pthread_mutex_unlock(&lock);
  return fd;
}

int rdt_forks_accept(int listener) {
  pthread_mutex_lock(&lock);
  int fd = mark(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
  pthread_mutex_unlock(&lock);
  return fd;
}

void rdt_forks_close(int fd) {
  if (fd < 0) return;
  pthread_mutex_lock(&lock);
  if ((size_t)fd < marks) marked[fd] = false;
  shutdown(fd, SHUT_RDWR); /* ends the stream even if a child still holds a copy */
  pthread_mutex_unlock(&lock);
  close(fd); /* may block, and every fork needs the lock */
}
