/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 for machines without a GPU. What rdmatensor calls of CUDA's driver works here with real bytes:
 * memory of a device faults when the processor touches it, streams are threads, and copies come late. What is
 * not waited for shows as wrong bytes.
 *
 * The variables CUDA_STANDIN_DEVICES (2), CUDA_STANDIN_DELAY_US (of each piece of work, 0) and
 * CUDA_STANDIN_FAIL=FUNCTION:CODE (every call of it fails) hold from the first call; the standin_ functions
 * change them.
 *
 * Other processes open memory by CUDA IPC, through /proc: the handle names an allocation, a second open of it fails, and
 * so does that of one's own. CUDA leaves open what happens if memory is freed that others have open; here it is counted.
 */
#include "cuda_driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_DEVICES 8
#define PAGE 4096u

/* What CUDA calls CUipcMemHandle. */
typedef union handle {
  struct {
    int process, file, ordinal;
    size_t size;
  };
  char bytes[64];
} handle;

typedef struct block {
  struct block *next;
  char *device, *bytes; /* what the program gets, which faults; what copies use */
  size_t size;
  int ordinal, file;
  handle of; /* of another process's; 0 for own */
} block;

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static int contexts[MOST_DEVICES]; /* 1: retained; their addresses are the handles */
static __thread void *current[16];
__thread int standin_depth;
static bool initialized;
static pid_t owner;
static int device_count;
atomic_int standin_broken;
static char failing[64];
static int failing_with, calls_left;
static int freed_too_early;

/* After so many more calls of the function, every one fails with `code`; 0: none does. */
API void standin_fail_after(int calls, const char *function, int code) {
  pthread_mutex_lock(&standin_lock);
  calls_left = calls;
  snprintf(failing, sizeof(failing), "%s", function);
  failing_with = code;
  pthread_mutex_unlock(&standin_lock);
}

API void standin_fail(const char *function, int code) { standin_fail_after(0, function, code); }

/* Returns the bytes of devices that are allocated now. */
API uint64_t standin_allocated(void) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&standin_lock);
  for (const block *each = blocks; each; each = each->next)
    bytes += each->of.process ? 0 : each->size;
  pthread_mutex_unlock(&standin_lock);
  return bytes;
}

/* Returns the bytes of other processes that are open here. */
API uint64_t standin_imported(void) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&standin_lock);
  for (const block *each = blocks; each; each = each->next)
    bytes += each->of.process ? each->size : 0;
  pthread_mutex_unlock(&standin_lock);
  return bytes;
}

/* Returns how often memory was freed that another process had open. */
API int standin_freed_too_early(void) { return freed_too_early; }

int standin_check(const char *function) {
  if (!initialized || owner != getpid()) return NOT_INITIALIZED;
  pthread_mutex_lock(&standin_lock);
  int error = strcmp(function, failing) == 0 ? failing_with : 0;
  if (error && calls_left > 0) calls_left--, error = 0;
  pthread_mutex_unlock(&standin_lock);
  return error ? error : atomic_load(&standin_broken);
}
/* Under the lock, like the next. */
static block *block_at(uint64_t address, size_t size) {
  block *each = blocks;
  for (; each; each = each->next) {
    uint64_t at = address - (uintptr_t)each->device;
    if (at < each->size && size <= each->size - at) break;
  }
  return each;
}

/* Returns where the bytes of a device's memory, or of the host's, can be used. */
char *standin_usable(uint64_t address, size_t size) {
  const block *found = block_at(address, size);
  if (found) return found->bytes + (address - (uintptr_t)found->device);
  if (block_at(address, 1)) atomic_store(&standin_broken, ILLEGAL_ADDRESS);
  return block_at(address, 1) ? NULL : (char *)(uintptr_t)address;
}

API int cuInit(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&standin_lock);
  int error = 0;
  if (!initialized) {
    const char *devices = getenv("CUDA_STANDIN_DEVICES"), *delay = getenv("CUDA_STANDIN_DELAY_US");
    const char *fail = getenv("CUDA_STANDIN_FAIL"), *code = fail ? strchr(fail, ':') : NULL;
    device_count = devices ? atoi(devices) : 2;
    if (device_count < 0 || device_count > MOST_DEVICES) device_count = MOST_DEVICES;
    if (delay) standin_delay((unsigned)atoi(delay));
    if (code) {
      snprintf(failing, sizeof(failing), "%.*s", (int)(code - fail), fail);
      failing_with = atoi(code + 1);
    }
    if (strcmp(failing, "cuInit") == 0) error = failing_with;
    if (error == 0 && device_count == 0) error = NO_DEVICE;
    if (error == 0) error = standin_begin();
    initialized = error == 0;
    owner = getpid();
  }
  pthread_mutex_unlock(&standin_lock);
  return owner == getpid() ? error : NOT_INITIALIZED;
}

API int cuDriverGetVersion(int *version) {
  *version = 12040;
  return 0;
}

API int cuDeviceGetCount(int *count) {
  CHECK();
  *count = device_count;
  return 0;
}

API int cuDeviceGet(int *device, int ordinal) {
  CHECK();
  if (ordinal < 0 || ordinal >= device_count) return BAD_DEVICE;
  *device = ordinal;
  return 0;
}

API int cuDeviceGetName(char *name, int size, int device) {
  CHECK();
  snprintf(name, (size_t)size, "stand-in %d", device);
  return 0;
}

API int cuDeviceGetUuid(char *uuid, int device) {
  CHECK();
  memset(uuid, 0, 16);
  snprintf(uuid, 16, "stand-in %d", device);
  return 0;
}

API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  CHECK();
  if (device < 0 || device >= device_count || peer < 0 || peer >= device_count) return BAD_DEVICE;
  *can = device != peer;
  return 0;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  CHECK();
  if (device < 0 || device >= device_count) return BAD_DEVICE;
  *flags = 0;
  *active = contexts[device];
  return 0;
}

API int cuDevicePrimaryCtxRetain(void **context, int device) {
  CHECK();
  if (device < 0 || device >= device_count) return BAD_DEVICE;
  contexts[device] = 1;
  *context = &contexts[device];
  return 0;
}

API int cuCtxPushCurrent_v2(void *context) {
  CHECK();
  if (standin_depth == sizeof(current) / sizeof(*current)) return INVALID;
  current[standin_depth++] = context;
  return 0;
}

API int cuCtxPopCurrent_v2(void **context) {
  if (!standin_depth) return NO_CONTEXT;
  *context = current[--standin_depth];
  return 0;
}

/* From here to the next comment is what Numba calls in addition. */
API int cuCtxGetCurrent(void **context) {
  CHECK();
  *context = standin_depth ? current[standin_depth - 1] : NULL;
  return 0;
}

API int cuCtxGetDevice(int *device) {
  CHECK_CONTEXT();
  *device = (int)((int *)current[standin_depth - 1] - contexts);
  return 0;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  CHECK();
  (void)device;
  /* Compute capability 8.0, unified addressing. */
  *value = attribute == 75 ? 8 : attribute == 41 ? 1 : 0;
  return 0;
}

API int cuMemGetInfo_v2(size_t *unused, size_t *all) {
  CHECK_CONTEXT();
  *unused = *all = (size_t)1 << 34;
  return 0;
}

/* The size of whole pages. */
static size_t length_of(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

static int map_block(block wanted, uint64_t *address) {
  const size_t length = length_of(wanted.size);
  block *made = malloc(sizeof(*made));
  if (!made) return NO_MEMORY;
  *made = wanted;
  made->device = mmap(NULL, length, PROT_NONE, MAP_SHARED, made->file, 0);
  made->bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, made->file, 0);
  if (made->device == MAP_FAILED || made->bytes == MAP_FAILED) return free(made), NO_MEMORY;
  pthread_mutex_lock(&standin_lock);
  made->next = blocks;
  blocks = made;
  pthread_mutex_unlock(&standin_lock);
  *address = (uintptr_t)made->device;
  return 0;
}

API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  CHECK_CONTEXT();
  int file = memfd_create("cuda", MFD_CLOEXEC);
  if (file < 0 || size == 0 || ftruncate(file, (off_t)length_of(size)) != 0) return NO_MEMORY;
  const int ordinal = (int)((int *)current[standin_depth - 1] - contexts);
  int error = map_block((block){.size = size, .ordinal = ordinal, .file = file}, address);
  if (error == 0) memset(blocks->bytes, 0xa5, size); /* fresh memory has any bytes */
  return error;
}

/* Waits for all work, as the driver does. */
static int unmap_block(uint64_t address, bool own) {
  standin_drain();
  pthread_mutex_lock(&standin_lock);
  block **link = &blocks;
  while (*link && ((uintptr_t)(*link)->device != address || !(*link)->of.process != own))
    link = &(*link)->next;
  block *freed = *link;
  if (freed) {
    *link = freed->next;
    if (own && flock(freed->file, LOCK_EX | LOCK_NB) != 0) freed_too_early++;
    munmap(freed->device, length_of(freed->size));
    munmap(freed->bytes, length_of(freed->size));
    close(freed->file);
    free(freed);
  }
  pthread_mutex_unlock(&standin_lock);
  return freed ? 0 : INVALID;
}

API int cuMemFree_v2(uint64_t address) {
  CHECK_CONTEXT();
  return unmap_block(address, true);
}

API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  CHECK();
  pthread_mutex_lock(&standin_lock);
  const block *found = block_at(address, 1);
  if (found) *base = (uintptr_t)found->device, *size = found->size;
  pthread_mutex_unlock(&standin_lock);
  return found ? 0 : INVALID;
}

API int cuIpcGetMemHandle(handle *made, uint64_t address) {
  CHECK();
  memset(made, 0, sizeof(*made));
  pthread_mutex_lock(&standin_lock);
  const block *found = block_at(address, 1);
  if (found && found->of.process) found = NULL;
  if (found) {
    made->process = getpid();
    made->file = found->file;
    made->ordinal = found->ordinal;
    made->size = found->size;
  }
  pthread_mutex_unlock(&standin_lock);
  return found ? 0 : INVALID;
}

API int cuIpcOpenMemHandle_v2(uint64_t *address, handle opened, unsigned flags) {
  CHECK_CONTEXT();
  if (flags != 1) return INVALID; /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
  if (opened.process == getpid()) return NO_CONTEXT;
  bool is_open = false;
  pthread_mutex_lock(&standin_lock);
  for (const block *each = blocks; each; each = each->next)
    is_open |= memcmp(&each->of, &opened, sizeof(opened)) == 0;
  pthread_mutex_unlock(&standin_lock);
  if (is_open) return ALREADY_MAPPED;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", opened.process, opened.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0 || flock(file, LOCK_SH | LOCK_NB) != 0) return BAD_HANDLE;
  return map_block(
      (block){.size = opened.size, .ordinal = opened.ordinal, .file = file, .of = opened}, address);
}

API int cuIpcCloseMemHandle(uint64_t address) {
  CHECK_CONTEXT();
  return unmap_block(address, false);
}

API int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  CHECK();
  pthread_mutex_lock(&standin_lock);
  const block *found = block_at(address, 1);
  const int ordinal = found ? found->ordinal : -1;
  const int pinned = standin_is_pinned(address, 1);
  pthread_mutex_unlock(&standin_lock);
  if (!found && pinned && attribute == 2) return *(int *)value = 1, 0; /* of the host */
  if (!found) return INVALID;
  if (attribute == 3) return *(uint64_t *)value = address, 0; /* for Numba */
  if (attribute != 2 && attribute != 9) return INVALID;
  *(int *)value = attribute == 2 ? 2 : ordinal;
  return 0;
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {BAD_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {NO_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {BAD_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ALREADY_PINNED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {NOT_PINNED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}};

API int cuGetErrorName(int error, const char **name) {
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
    if (errors[i].code == error) return *name = errors[i].name, 0;
  return INVALID;
}

API int cuGetErrorString(int error, const char **text) {
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
    if (errors[i].code == error) return *text = errors[i].text, 0;
  return INVALID;
}
