/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/device_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cuda.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"

#define PAGE_BYTES 4096u
#define COPYING 0 /* the bytes that are locked */
#define OPEN 1

typedef struct page {
  atomic_uint open;
} page;

struct rdt_shm_shared {
  rdt_cuda_export export;
  void *address;
  page *page;
  int file;
};

struct rdt_shm_opened {
  char *memory; /* for the device */
  const page *page;
  int file;
  pthread_mutex_t
      lock; /* of `copying`: the operations that are under way; the first takes the lock of the file */
  unsigned copying;
};

rdt_status rdt_shm_device_share(const rdt_region_memory *memory, rdt_shm_shared **shared_out) {
  rdt_shm_shared *shared = calloc(1, sizeof(*shared));
  if (!shared) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  shared->address = memory->address;
  rdt_status status = rdt_cuda_get_export(memory->address, memory->size, &shared->export);
  if (status == RDT_OK)
    status = rdt_memory_create(PAGE_BYTES, &shared->file, (void **)&shared->page);
  if (status != RDT_OK) {
    free(shared);
    return status;
  }
  atomic_store(&shared->page->open, 1);
  *shared_out = shared;
  return RDT_OK;
}

/* Opens the file anew for each peer: the locks are those of an open file. */
rdt_status rdt_shm_device_export(const rdt_shm_shared *shared, rdt_bundle *bundle) {
  rdt_status status = rdt_memory_reopen_readonly(shared->file, &bundle->fds.fd[0]);
  if (status != RDT_OK) return status;
  bundle->fds.count = 1;
  memcpy(bundle->bytes, &shared->export, sizeof(shared->export)); /* same host, same byte order */
  bundle->size = sizeof(shared->export);
  return RDT_OK;
}

static bool lock_byte(int file, short kind, off_t at) {
  struct flock byte = {.l_type = kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  return fcntl(file, F_OFD_SETLK, &byte) == 0;
}

static bool is_locked(int file, off_t at) {
  struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  return fcntl(file, F_OFD_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

void rdt_shm_device_end(rdt_shm_shared *shared) {
  const rdt_deadline deadline = rdt_deadline_after(RDT_TIMEOUT_DEFAULT);
  atomic_store(&shared->page->open, 0);
  while (is_locked(shared->file, COPYING) && rdt_deadline_left(deadline) > 0) usleep(100);
  if (is_locked(shared->file, COPYING))
    rdt_log(RDT_LOG_ERROR,
            "a peer still copies CUDA memory of a region that is closed: it may have been stopped");
  munmap(shared->page, PAGE_BYTES);
  rdt_cuda_free_after(shared->address, shared->file);
  free(shared);
}

bool rdt_shm_is_device(const rdt_bundle *bundle) { return bundle->size == sizeof(rdt_cuda_export); }

rdt_status rdt_shm_device_open(const rdt_region_memory *claimed, rdt_bundle *bundle,
                               rdt_shm_opened **opened_out) {
  rdt_cuda_export export;
  memcpy(&export, bundle->bytes, sizeof(export));
  rdt_shm_opened *opened = calloc(1, sizeof(*opened));
  if (!opened) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  pthread_mutex_init(&opened->lock, NULL);
  opened->file = rdt_fds_take(&bundle->fds);
  rdt_status status = rdt_memory_map(opened->file, 0, PAGE_BYTES, false, (void **)&opened->page);
  /* Before the memory is opened, so that the owner never frees it in between. */
  if (status == RDT_OK && !lock_byte(opened->file, F_RDLCK, OPEN))
    status = rdt_fail_errno(errno, "cannot lock a file in memory");
  if (status == RDT_OK && !atomic_load(&((page *)opened->page)->open))
    status = rdt_fail(RDT_ERR_NO_REGION, "the peer has closed the region");
  if (status == RDT_OK) status = rdt_cuda_open(&export, claimed->size, (void **)&opened->memory);
  if (status == RDT_OK)
    *opened_out = opened;
  else
    rdt_shm_device_close(opened);
  return status;
}

static rdt_status begin(rdt_shm_opened *opened) {
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&opened->lock);
  if (opened->copying == 0 && !lock_byte(opened->file, F_RDLCK, COPYING))
    status = rdt_fail_errno(errno, "cannot lock a file in memory");
  if (status == RDT_OK) opened->copying++;
  pthread_mutex_unlock(&opened->lock);
  return status;
}

static void end(rdt_shm_opened *opened) {
  pthread_mutex_lock(&opened->lock);
  if (--opened->copying == 0) lock_byte(opened->file, F_UNLCK, COPYING);
  pthread_mutex_unlock(&opened->lock);
}

static rdt_status copy(rdt_shm_opened *opened, void *to, const void *from, uint64_t size) {
  rdt_status status = begin(opened);
  if (status != RDT_OK) return status;
  /* The owner says so before it looks at the lock. */
  if (atomic_load(&((page *)opened->page)->open))
    status = rdt_cuda_copy(to, from, size);
  else
    status = rdt_fail(RDT_ERR_NO_REGION, "the peer has closed the region");
  /* What still runs after its deadline keeps the owner waiting too, until the memory is closed here. */
  if (status != RDT_ERR_DEADLINE || !rdt_cuda_is_used(opened->memory)) end(opened);
  return status;
}

rdt_status rdt_shm_device_write(rdt_shm_opened *opened, uint64_t offset, const void *local,
                                uint64_t size) {
  return copy(opened, opened->memory + offset, local, size);
}

rdt_status rdt_shm_device_read(rdt_shm_opened *opened, uint64_t offset, void *local,
                               uint64_t size) {
  return copy(opened, local, opened->memory + offset, size);
}

void rdt_shm_device_close(rdt_shm_opened *opened) {
  if (opened->page) munmap((void *)opened->page, PAGE_BYTES);
  if (opened->memory)
    rdt_cuda_close(opened->memory, opened->file);
  else if (opened->file >= 0)
    close(opened->file);
  pthread_mutex_destroy(&opened->lock);
  free(opened);
}
