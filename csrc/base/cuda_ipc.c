/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA IPC. A handle names a whole allocation, and the driver opens it once in a process, but not in the one that made
 * it. CUDA leaves open what happens if memory is freed that others have open, so it is kept until then.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda.h"
#include "base/cuda_driver.h"
#include "base/random.h"
#include "base/status.h"

#define OVER_TCP "connect to its owner over tcp"

/* An allocation of another process. */
typedef struct opening {
  struct opening *next;
  rdt_cuda_handle handle;
  uint64_t base, size;
  int ordinal, users;
} opening;

/* An allocation of this process that others may have open: until nobody holds a lock of the file. */
typedef struct lease {
  struct lease *next;
  uint64_t base;
  int file;
} lease;

/* Memory to be freed after its leases, or of another process to be closed, after the copies that still run. */
typedef struct put_off {
  struct put_off *next;
  uint64_t base;
  int file; /* of memory to be closed; else -1 */
} put_off;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows */
static opening *openings;
static lease *leases;
static put_off *waiting;
static uint64_t own_process; /* 0: not drawn yet */

static rdt_status unsupported(int error, const char *what) {
  char why[256];
  rdt_cuda_fail(error, "%s", what);
  snprintf(why, sizeof(why), "%s", rdt_last_error());
  return rdt_fail(RDT_ERR_UNSUPPORTED, "%s; " OVER_TCP, why);
}

static rdt_status draw_process(uint64_t *process) {
  pthread_mutex_lock(&lock);
  rdt_status status = own_process ? RDT_OK : rdt_random_id(&own_process);
  *process = own_process;
  pthread_mutex_unlock(&lock);
  return status;
}

static int uuid_of(int ordinal, uint8_t *uuid) {
  int device, error = rdt_cuda.device_get(&device, ordinal);
  return error ? error : rdt_cuda.device_uuid(uuid, device);
}

rdt_status rdt_cuda_get_export(const void *address, uint64_t size, rdt_cuda_export *made) {
  const rdt_cuda_device *entered;
  const uint64_t first = (uintptr_t)address;
  rdt_cuda_handle handle;
  uint64_t base = 0;
  size_t length = 0;
  memset(made, 0, sizeof(*made));
  rdt_status status = rdt_cuda_check(address, size);
  if (status == RDT_OK) status = draw_process(&made->process);
  if (status != RDT_OK) return status;
  const int ordinal = rdt_cuda_device_at(first);
  status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  int error = rdt_cuda.range(&base, &length, first);
  if (error == 0) error = rdt_cuda.ipc_get(&handle, base);
  if (error == 0) error = uuid_of(ordinal, made->device);
  rdt_cuda_leave();
  if (error != 0) return unsupported(error, "share CUDA memory with other processes");
  if (first - base > length || size > length - (first - base))
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "the memory consists of several allocations, which CUDA shares one by one");
  memcpy(made->handle, handle.bytes, sizeof(made->handle));
  made->offset = first - base;
  made->address = first;
  return RDT_OK;
}

rdt_status rdt_cuda_check_sharing(int device) {
  rdt_cuda_export made;
  void *memory = NULL;
  rdt_status status = rdt_cuda_alloc(device, 1, &memory);
  if (status == RDT_OK) status = rdt_cuda_get_export(memory, 1, &made);
  rdt_cuda_free(memory);
  return status;
}

static int find_device(const uint8_t *wanted) {
  uint8_t uuid[16];
  int i = rdt_cuda_device_count() - 1;
  while (i >= 0 && (uuid_of(i, uuid) != 0 || memcmp(uuid, wanted, sizeof(uuid)) != 0)) i--;
  return i;
}

/* Under the lock, as the next two. */
static rdt_status open_allocation(const rdt_cuda_handle *handle, int ordinal, opening **out) {
  const rdt_cuda_device *entered;
  opening *made = calloc(1, sizeof(*made));
  if (!made) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_cuda_enter(ordinal, &entered);
  if (status == RDT_OK) {
    size_t length = 0;
    uint64_t base;
    made->handle = *handle;
    made->ordinal = ordinal;
    int error = rdt_cuda.ipc_open(&made->base, *handle, RDT_CUDA_ENABLE_PEER_ACCESS);
    if (error == 0) {
      error = rdt_cuda.range(&base, &length, made->base);
      if (error != 0) rdt_cuda.ipc_close(made->base);
    }
    rdt_cuda_leave();
    made->size = length;
    if (error != 0) status = unsupported(error, "open a peer's CUDA memory");
  }
  if (status != RDT_OK) {
    free(made);
    return status;
  }
  made->next = openings;
  *out = openings = made;
  return RDT_OK;
}

static void close_unused(opening *closed) {
  const rdt_cuda_device *entered;
  if (closed->users > 0) return;
  opening **link = &openings;
  while (*link != closed) link = &(*link)->next;
  *link = closed->next;
  if (rdt_cuda_enter(closed->ordinal, &entered) == RDT_OK) {
    rdt_cuda.ipc_close(closed->base);
    rdt_cuda_leave();
  }
  free(closed);
}

static rdt_status open_locked(const rdt_cuda_export *given, uint64_t size, int ordinal,
                              void **address) {
  rdt_cuda_handle handle;
  rdt_status status = RDT_OK;
  memcpy(handle.bytes, given->handle, sizeof(handle.bytes));
  opening *found = openings;
  while (found && memcmp(&found->handle, &handle, sizeof(handle)) != 0) found = found->next;
  if (!found) status = open_allocation(&handle, ordinal, &found);
  if (status != RDT_OK) return status;
  if (given->offset <= found->size && size <= found->size - given->offset) {
    found->users++;
    *address = (void *)(uintptr_t)(found->base + given->offset);
    return RDT_OK;
  }
  close_unused(found);
  return rdt_fail(RDT_ERR_PROTOCOL, "the peer's description of CUDA memory is malformed");
}

rdt_status rdt_cuda_open(const rdt_cuda_export *given, uint64_t size, void **address) {
  uint64_t process;
  rdt_status status = rdt_cuda_need();
  if (status == RDT_OK) status = draw_process(&process);
  if (status != RDT_OK) return status;
  if (given->process == process) {
    *address = (void *)(uintptr_t)given->address;
    return rdt_cuda_check(*address, size);
  }
  const int ordinal = find_device(given->device);
  if (ordinal < 0)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "this process does not see the CUDA device of the memory "
                    "(CUDA_VISIBLE_DEVICES): " OVER_TCP);
  pthread_mutex_lock(&lock);
  status = open_locked(given, size, ordinal, address);
  pthread_mutex_unlock(&lock);
  return status;
}

/* Under the lock. */
static void close_at(uint64_t address) {
  opening *found = openings;
  while (found && address - found->base >= found->size) found = found->next;
  if (!found) return; /* it is memory of this process */
  found->users--;
  close_unused(found);
}

void rdt_cuda_close(void *address, int file) {
  const bool usable = rdt_cuda_need() == RDT_OK;
  put_off *made = NULL;
  if (usable) {
    rdt_cuda_free_due();
    const bool used = rdt_cuda_is_copying(rdt_cuda_device_at((uintptr_t)address));
    made = used ? malloc(sizeof(*made)) : NULL;
    pthread_mutex_lock(&lock);
    if (made) {
      *made = (put_off){waiting, (uintptr_t)address, file};
      waiting = made;
    } else {
      close_at((uintptr_t)address);
    }
    pthread_mutex_unlock(&lock);
  }
  if (!made) close(file);
}

static bool is_held(int file) {
  struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(file, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK;
}

/* Under the lock. Drops the leases of others that nobody holds any more. */
static bool is_leased(uint64_t base) {
  bool found = false;
  for (lease **link = &leases; *link;) {
    lease *each = *link;
    if (is_held(each->file)) {
      found |= each->base == base;
      link = &each->next;
      continue;
    }
    *link = each->next;
    close(each->file);
    free(each);
  }
  return found;
}

void rdt_cuda_free_after(const void *address, int file) {
  uint64_t base = 0;
  size_t size;
  lease *made = is_held(file) ? malloc(sizeof(*made)) : NULL;
  if (!made || rdt_cuda_need() != RDT_OK || rdt_cuda.range(&base, &size, (uintptr_t)address) != 0) {
    free(made);
    close(file);
    return;
  }
  *made = (lease){.base = base, .file = file};
  pthread_mutex_lock(&lock);
  made->next = leases;
  leases = made;
  pthread_mutex_unlock(&lock);
}

bool rdt_cuda_put_off(uint64_t address) {
  rdt_cuda_free_due();
  const bool used = rdt_cuda_is_copying(rdt_cuda_device_at(address));
  pthread_mutex_lock(&lock);
  put_off *made = is_leased(address) || used ? malloc(sizeof(*made)) : NULL;
  if (made) {
    *made = (put_off){waiting, address, -1};
    waiting = made;
  }
  pthread_mutex_unlock(&lock);
  return made != NULL;
}

void rdt_cuda_free_due(void) {
  const rdt_cuda_device *entered;
  pthread_mutex_lock(&lock);
  for (put_off **link = &waiting; *link;) {
    put_off *each = *link;
    if ((each->file < 0 && is_leased(each->base)) ||
        rdt_cuda_is_copying(rdt_cuda_device_at(each->base))) {
      link = &each->next;
      continue;
    }
    *link = each->next;
    if (each->file >= 0) {
      close_at(each->base);
      close(each->file);
    } else if (rdt_cuda_enter(rdt_cuda_device_at(each->base), &entered) == RDT_OK) {
      rdt_cuda.release(each->base);
      rdt_cuda_leave();
    }
    free(each);
  }
  pthread_mutex_unlock(&lock);
}
