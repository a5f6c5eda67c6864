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

#include "base/cuda_driver.h"
#include "base/status.h"

typedef struct file {
  int fd;          /* -1 in a forked child, where its blocks are private memory */
  unsigned blocks; /* those that are there; under `blocks_lock` */
  uint64_t size;
  bool grows;
} file;

typedef struct block {
  struct block *next;
  char *address;
  size_t size;
  file *file;
  uint64_t offset; /* in the file */
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
  int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd = each->file->fd;
  off_t offset = (off_t)each->offset;
  if (fd < 0) return; /* already private in the parent, so fork copies it */
  if (mmap(each->address, each->size, PROT_READ | PROT_WRITE, flags, fd, offset) == MAP_FAILED &&
      mmap(each->address, each->size, PROT_READ, flags, fd, offset) == MAP_FAILED)
    munmap(each->address, each->size);
}

static void in_child(void) {
  for (block *each = blocks; each; each = each->next) make_private(each);
  for (block *each = blocks; each; each = each->next) {
    if (each->file->fd >= 0) close(each->file->fd);
    each->file->fd = -1;
  }
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
static rdt_status check_file_size_limit(uint64_t size) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < size)
    return rdt_fail(RDT_ERR_NO_MEMORY,
                    "%llu bytes of shared memory exceed the file size limit of %llu: raise it "
                    "(ulimit -f unlimited)",
                    (unsigned long long)size, (unsigned long long)limit.rlim_cur);
  return RDT_OK;
}

static rdt_status create_file(int *fd) {
  *fd = memfd_create("rdmatensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return *fd < 0 ? rdt_fail_errno(errno, "cannot create shared memory") : RDT_OK;
}

static rdt_status set_size(int fd, uint64_t size) {
  rdt_status status = check_file_size_limit(size);
  if (status != RDT_OK || ftruncate(fd, (off_t)size) == 0) return status;
  rdt_fail_errno(errno, "cannot size shared memory to %llu bytes", (unsigned long long)size);
  return RDT_ERR_NO_MEMORY;
}

static rdt_status seal(int fd, int seals) {
  if (fcntl(fd, F_ADD_SEALS, seals | F_SEAL_SHRINK | F_SEAL_SEAL) == 0) return RDT_OK;
  return rdt_fail_errno(errno, "cannot seal shared memory");
}

rdt_status rdt_memory_create(size_t size, int *fd_out, void **address) {
  int fd;
  rdt_status status = create_file(&fd);
  if (status != RDT_OK) return status;
  status = set_size(fd, size);
  if (status == RDT_OK) status = seal(fd, F_SEAL_GROW);
  if (status == RDT_OK) status = map_shared(fd, 0, size, PROT_READ | PROT_WRITE, address);
  if (status == RDT_OK)
    *fd_out = fd;
  else
    close(fd);
  return status;
}

static block **link_of(const void *address) {
  block **link = &blocks;
  while (*link && (*link)->address != address) link = &(*link)->next;
  return link;
}

/* Maps the block at the end of its file, which grows. */
static rdt_status append(block *added) {
  file *file = added->file;
  added->offset = file->size;
  rdt_status status = set_size(file->fd, file->size + added->size);
  if (status != RDT_OK) return status;
  file->size += added->size;
  return map_shared(file->fd, added->offset, added->size, PROT_READ | PROT_WRITE,
                    (void **)&added->address);
}

static void drop_file(file *file) {
  if (file->fd >= 0) close(file->fd);
  free(file);
}

/* Maps the block as the first one of a file of its own, with these seals besides. */
static rdt_status begin_file(block *added, int seals) {
  file *file = added->file = calloc(1, sizeof(*file));
  if (!file) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  file->grows = !(seals & F_SEAL_GROW);
  rdt_status status = create_file(&file->fd);
  if (status == RDT_OK) status = append(added);
  if (status == RDT_OK) status = seal(file->fd, seals);
  if (status == RDT_OK) return RDT_OK;
  if (added->address) munmap(added->address, added->size);
  drop_file(file);
  return status;
}

/* Allocates a block in the file of `beside`; in a new one if that is NULL, or if its file can grow no more. */
static rdt_status alloc(const void *beside, size_t size, int seals, void **address) {
  if (size == 0 || size > SIZE_MAX / 2 || !address)
    return rdt_fail(RDT_ERR_INVALID, "cannot allocate %zu bytes", size);
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  block *added = calloc(1, sizeof(*added));
  if (!added) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  added->size = round_to_pages(size);
  pthread_mutex_lock(&blocks_lock);
  const block *known = beside ? *link_of(beside) : NULL;
  if (known) added->file = known->file;
  rdt_status status = known && known->file->fd >= 0 ? append(added) : RDT_ERR_UNSUPPORTED;
  if (status != RDT_OK) status = begin_file(added, seals);
  if (status == RDT_OK) {
    added->file->blocks++;
    added->next = blocks;
    blocks = added;
    *address = added->address;
  }
  pthread_mutex_unlock(&blocks_lock);
  if (status != RDT_OK) free(added);
  return status;
}

rdt_status rdt_memory_alloc(size_t size, void **address) {
  return alloc(NULL, size, F_SEAL_GROW, address);
}

rdt_status rdt_memory_alloc_beside(const void *block, size_t size, void **address) {
  return alloc(block, size, 0, address);
}

rdt_status rdt_memory_free(void *address) {
  if (!rdt_cuda_let_go(address)) return RDT_OK;
  pthread_mutex_lock(&blocks_lock);
  block **link = link_of(address), *found = *link;
  bool last = false;
  if (found) {
    *link = found->next;
    last = --found->file->blocks == 0;
    munmap(found->address, found->size);
    if (last)
      drop_file(found->file);
    else if (found->file->fd >= 0) /* what stays of the file needs no memory for this block */
      (void)fallocate(found->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      (off_t)found->offset, (off_t)found->size);
  }
  pthread_mutex_unlock(&blocks_lock);
  if (!found) return rdt_fail(RDT_ERR_INVALID, "%p was not allocated by rdt_memory_alloc", address);
  free(found);
  return RDT_OK;
}

rdt_status rdt_memory_find(const void *address, size_t size, int *fd, uint64_t *offset) {
  const char *start = address;
  rdt_status status = RDT_ERR_UNSUPPORTED;
  pthread_mutex_lock(&blocks_lock);
  for (const block *each = blocks; each; each = each->next) {
    const uint64_t within = (uint64_t)(start - each->address);
    if (each->file->fd < 0 || start < each->address || within >= each->size) continue;
    if (size > each->size - within) continue;
    *fd = each->file->fd;
    *offset = each->offset + within;
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

bool rdt_memory_block(const void *address, uint64_t size, void **block_out, uint64_t *length) {
  bool found = false;
  pthread_mutex_lock(&blocks_lock);
  for (const block *each = blocks; each && !found; each = each->next) {
    const uint64_t within = (uint64_t)((const char *)address - each->address);
    found = within < each->size && size <= each->size - within && !each->file->grows;
    *block_out = each->address;
    *length = each->size;
  }
  pthread_mutex_unlock(&blocks_lock);
  return found;
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
