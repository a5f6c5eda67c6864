/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/status.h"

typedef struct block {
  struct block *next;
  char *address;
  size_t size;
  int fd; /* -1 in a forked child, where the block is private memory */
} block;

static block *blocks;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

/* Held across fork, so that the child finds a consistent list. */
static void before_fork(void) { pthread_mutex_lock(&blocks_lock); }
static void after_fork(void) { pthread_mutex_unlock(&blocks_lock); }

/* What the child writes must not change its parent's memory, nor what the parent's peers read. A private
 * mapping of the same file copies a page when the child first writes to it. Without memory to promise, the
 * child may only read. A mapping that registration hid from children (ibv_fork_init) is there again. */
static void make_private(block *each) {
  if (each->fd < 0) return; /* already private in the parent, so fork copies it */
  int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED;
  if (mmap(each->address, each->size, PROT_READ | PROT_WRITE, flags, each->fd, 0) == MAP_FAILED &&
      mmap(each->address, each->size, PROT_READ, flags, each->fd, 0) == MAP_FAILED)
    munmap(each->address, each->size);
  close(each->fd);
  each->fd = -1;
}

static void in_child(void) {
  for (block *each = blocks; each; each = each->next) make_private(each);
  pthread_mutex_unlock(&blocks_lock);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

static size_t round_to_pages(size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (size + page - 1) / page * page;
}

static rdt_status map_shared(int fd, uint64_t offset, size_t size, int protection, void **address) {
  /* NORESERVE, because an arena is sized for the machine and touched only where it is used. */
  void *mapped = mmap(NULL, size, protection, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
  if (mapped == MAP_FAILED) {
    rdt_fail_errno(errno, "cannot map %zu bytes of shared memory", size);
    return RDT_ERR_NO_MEMORY;
  }
  *address = mapped;
  return RDT_OK;
}

/* Growing a file past this limit would not fail but kill the process (SIGXFSZ). */
static rdt_status check_file_size_limit(size_t size) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < size)
    return rdt_fail(RDT_ERR_NO_MEMORY,
                    "%zu bytes of shared memory exceed the file size limit of %llu: raise it "
                    "(ulimit -f unlimited)",
                    size, (unsigned long long)limit.rlim_cur);
  return RDT_OK;
}

rdt_status rdt_memory_create(size_t size, int *fd_out, void **address) {
  rdt_status status = check_file_size_limit(size);
  if (status != RDT_OK) return status;
  int fd = memfd_create("rdmatensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return rdt_fail_errno(errno, "cannot create shared memory");
  if (ftruncate(fd, (off_t)size) != 0) {
    rdt_fail_errno(errno, "cannot size shared memory to %zu bytes", size);
    status = RDT_ERR_NO_MEMORY;
  } else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    status = rdt_fail_errno(errno, "cannot seal shared memory");
  } else {
    status = map_shared(fd, 0, size, PROT_READ | PROT_WRITE, address);
  }
  if (status == RDT_OK)
    *fd_out = fd;
  else
    close(fd);
  return status;
}

rdt_status rdt_memory_alloc(size_t size, void **address) {
  if (size == 0 || size > SIZE_MAX / 2 || !address)
    return rdt_fail(RDT_ERR_INVALID, "cannot allocate %zu bytes", size);
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  block *added = calloc(1, sizeof(*added));
  if (!added) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  added->size = round_to_pages(size);
  rdt_status status = rdt_memory_create(added->size, &added->fd, (void **)&added->address);
  if (status != RDT_OK) {
    free(added);
    return status;
  }
  pthread_mutex_lock(&blocks_lock);
  added->next = blocks;
  blocks = added;
  pthread_mutex_unlock(&blocks_lock);
  *address = added->address;
  return RDT_OK;
}

rdt_status rdt_memory_free(void *address) {
  pthread_mutex_lock(&blocks_lock);
  block **link = &blocks;
  while (*link && (*link)->address != address) link = &(*link)->next;
  block *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&blocks_lock);
  if (!found) return rdt_fail(RDT_ERR_INVALID, "%p was not allocated by rdt_memory_alloc", address);
  munmap(found->address, found->size);
  if (found->fd >= 0) close(found->fd);
  free(found);
  return RDT_OK;
}

rdt_status rdt_memory_find(const void *address, size_t size, int *fd, uint64_t *offset) {
  const char *start = address;
  rdt_status status = RDT_ERR_UNSUPPORTED;
  pthread_mutex_lock(&blocks_lock);
  for (const block *each = blocks; each; each = each->next) {
    if (each->fd < 0 || start < each->address || start >= each->address + each->size) continue;
    if (size > each->size - (size_t)(start - each->address)) continue;
    *fd = each->fd;
    *offset = (uint64_t)(start - each->address);
    status = RDT_OK;
  }
  pthread_mutex_unlock(&blocks_lock);
  if (status != RDT_OK)
    rdt_fail(status,
             "the %zu bytes at %p cannot be shared with other processes: allocate them with "
             "rdt_memory_alloc or rdt_region_alloc in this process",
             size, address);
  return status;
}

rdt_status rdt_memory_reopen_readonly(int fd, int *readonly_fd) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  int opened = open(path, O_RDONLY | O_CLOEXEC);
  if (opened < 0) return rdt_fail_errno(errno, "cannot open %s read-only", path);
  *readonly_fd = opened;
  return RDT_OK;
}

rdt_status rdt_memory_map(int fd, uint64_t offset, size_t size, bool writable, void **address) {
  struct stat file;
  struct statfs system;
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) != 0 ||
      (uint64_t)file.st_size < size || (uint64_t)file.st_size - size < offset)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent shared memory that is unsealed or too small");
  /* Touching a huge page faults if the machine has none left. */
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer sent shared memory of an unknown kind");
  return map_shared(fd, offset, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, address);
}
