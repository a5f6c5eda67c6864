/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/pretouch.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

#define MAX_THREADS 8
/* Below this a thread costs more than it saves. */
#define BYTES_PER_THREAD (16ull << 20)

/* Pages per mincore call: 16 MiB with pages of 4 KiB, a multiple of huge pages. */
#define WINDOW_PAGES 4096

#ifndef MADV_POPULATE_READ /* Linux 5.14, glibc 2.35 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Whole pages that one thread makes resident. */
typedef struct piece {
  char *start;
  size_t size;
  bool write;
} piece;

/* Returns true if all of [start, end) is mapped with the access needed, and not from a file that
 * could be truncated under the mapping. Mappings are listed in ascending order. */
static bool may_touch(uintptr_t start, uintptr_t end, bool write, bool ours) {
  unsigned long low, high, inode;
  char permissions[5], line[512];
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && start < end && fgets(line, sizeof(line), maps)) {
    if (sscanf(line, "%lx-%lx %4s %*x %*s %lu", &low, &high, permissions, &inode) != 4) continue;
    if (high <= start) continue;
    if (low > start || permissions[0] != 'r' || (write && permissions[1] != 'w')) break;
    if (inode != 0 && !ours) break;
    start = high;
  }
  if (maps) fclose(maps);
  return start >= end;
}

bool rdt_verbs_touch_by_hand(char *start, size_t size, bool write) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  int fd;
  uint64_t offset;
  bool ours = rdt_memory_find(start, size, &fd, &offset) == RDT_OK;
  if (!may_touch((uintptr_t)start, (uintptr_t)start + size, write, ours)) return false;
  for (size_t at = 0; at < size; at += page) {
    /* Adds 0 atomically, so as not to undo a concurrent write. */
    if (write)
      __atomic_fetch_add(start + at, 0, __ATOMIC_RELAXED);
    else
      (void)__atomic_load_n(start + at, __ATOMIC_RELAXED);
  }
  return true;
}

static void populate(char *start, size_t size, bool write) {
  if (madvise(start, size, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) != 0 &&
      errno == EINVAL)
    rdt_verbs_touch_by_hand(start, size, write);
}

/* Populating resident pages costs as much as registering them, so this checks first. */
static void *touch(void *argument) {
  const piece *self = argument;
  unsigned char resident[WINDOW_PAGES];
  size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = self->size / page;
  for (size_t done = 0; done < pages; done += WINDOW_PAGES) {
    char *window = self->start + done * page;
    size_t first = 0, last = pages - done < WINDOW_PAGES ? pages - done : WINDOW_PAGES;
    if (mincore(window, last * page, resident) == 0) {
      while (first < last && resident[first] & 1) first++;
      while (first < last && resident[last - 1] & 1) last--;
    }
    if (first < last) populate(window + first * page, (last - first) * page, self->write);
  }
  return NULL;
}

unsigned rdt_verbs_pretouch_threads(uint64_t size, unsigned processors) {
  uint64_t threads = size / BYTES_PER_THREAD;
  if (threads > processors) threads = processors;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  return threads ? (unsigned)threads : 1;
}

static unsigned usable_processors(void) {
  cpu_set_t set;
  /* More than 1024 processors do not fit the set, and are certainly enough. */
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set) : MAX_THREADS;
}

/* Runs the first piece in this thread, and the others in threads of their own if these start. */
static void touch_all(piece *pieces, unsigned count) {
  pthread_t threads[MAX_THREADS];
  bool started[MAX_THREADS] = {false};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the application's threads */
  for (unsigned i = 1; i < count; i++)
    started[i] = pthread_create(&threads[i], NULL, touch, &pieces[i]) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  for (unsigned i = 0; i < count; i++)
    if (!started[i]) touch(&pieces[i]);
  for (unsigned i = 1; i < count; i++)
    if (started[i]) pthread_join(threads[i], NULL);
}

void rdt_verbs_pretouch(void *address, uint64_t size, bool write) {
  piece pieces[MAX_THREADS];
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uintptr_t start = (uintptr_t)address & ~(uintptr_t)(page - 1);
  size_t pages = ((uintptr_t)address + size - start + page - 1) / page;
  unsigned count = rdt_verbs_pretouch_threads(pages * page, usable_processors());
  /* Huge pages are faster to fault in, to pin and to translate. This requests them, for machines
   * that give them only on request. They cost no memory, because all of the range becomes
   * resident anyway. */
  if (write && pages * page >= BYTES_PER_THREAD)
    madvise((void *)start, pages * page, MADV_HUGEPAGE);
  for (unsigned i = 0; i < count; i++) {
    size_t first = pages * i / count, last = pages * (i + 1) / count;
    pieces[i] = (piece){(char *)start + first * page, (last - first) * page, write};
  }
  touch_all(pieces, count);
}
