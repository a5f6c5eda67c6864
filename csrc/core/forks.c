/* SPDX-License-Identifier: Apache-2.0 */
#include "core/forks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static atomic_uint epoch;
/* Held across fork, so that the child finds the list whole. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rdt_fork_fd *first;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
  atomic_fetch_add(&epoch, 1);
  for (rdt_fork_fd *each = first; each; each = each->next) {
    if (*each->fd >= 0) close(*each->fd);
    *each->fd = -1;
  }
  pthread_mutex_unlock(&lock);
}

static void watch(void) { pthread_atfork(before_fork, after_fork, in_child); }

void rdt_forks_watch(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch);
}

unsigned rdt_forks_epoch(void) { return atomic_load_explicit(&epoch, memory_order_relaxed); }

void rdt_forks_close_in_child(rdt_fork_fd *node, int *fd) {
  pthread_mutex_lock(&lock);
  node->fd = fd;
  node->next = first;
  node->link = &first;
  if (first) first->link = &node->next;
  first = node;
  pthread_mutex_unlock(&lock);
}

void rdt_forks_forget(rdt_fork_fd *node) {
  pthread_mutex_lock(&lock);
  if (node->link) *node->link = node->next;
  if (node->link && node->next) node->next->link = node->link;
  node->link = NULL;
  pthread_mutex_unlock(&lock);
}
