/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_driver.h"
#include "base/forks.h"
#include "base/status.h"

#define LIBRARY "libcuda.so.1"
#define MOST_DEVICES 64
#define CHUNK (1u << 20) /* bytes of a copy between host and device */

/* These values are defined in NVIDIA's cuda.h, which is not needed to build. */
#define MEMORY_TYPE 2 /* of a pointer's attributes, as is the next */
#define DEVICE_ORDINAL 9
#define ON_DEVICE 2u /* a value of MEMORY_TYPE */
typedef rdt_cuda_context context;
typedef rdt_cuda_stream_handle stream;
typedef rdt_cuda_device device;

rdt_cuda_driver rdt_cuda;

static const struct {
  const char *symbol;
  size_t offset; /* in `cuda` */
} symbols[] = {
#define SYMBOL(name, symbol, arguments) {symbol, offsetof(rdt_cuda_driver, name)},
    RDT_CUDA_FUNCTIONS(SYMBOL)};

/* Host memory of our own, through which copies go. */
typedef struct chunk {
  struct chunk *next; /* of those abandoned */
  char bytes[];
} chunk;

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static char load_error[384]; /* "" once loaded */
static unsigned load_epoch;
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device devices[MOST_DEVICES]; /* under the lock until open */
static chunk *abandoned;             /* under the lock: the driver may still use them */

rdt_status rdt_cuda_fail(int error, const char *format, ...) {
  char what[160];
  const char *name = NULL, *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof(what), format, arguments);
  va_end(arguments);
  if (rdt_cuda.error_name(error, &name) != 0 || !name) name = "unknown";
  if (rdt_cuda.error_text(error, &text) != 0 || !text) text = "the driver has no text for it";
  return rdt_fail(error == RDT_CUDA_NO_MEMORY   ? RDT_ERR_NO_MEMORY
                  : error == RDT_CUDA_NO_DEVICE ? RDT_ERR_UNSUPPORTED
                                                : RDT_ERR_SYSTEM,
                  "cannot %s: %s (CUDA error %d, %s)", what, text, error, name);
}

static bool find_symbols(void *library) {
  for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
    void *found = dlsym(library, symbols[i].symbol);
    memcpy((char *)&rdt_cuda + symbols[i].offset, &found, sizeof(found));
    if (found) continue;
    snprintf(load_error, sizeof(load_error),
             LIBRARY " lacks %s: install NVIDIA's driver 450 or newer", symbols[i].symbol);
    return false;
  }
  return true;
}

static void load(void) {
  rdt_forks_watch();
  load_epoch = rdt_forks_epoch();
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    if (!reason || strstr(reason, LIBRARY ": cannot open shared object file"))
      snprintf(load_error, sizeof(load_error),
               LIBRARY
               " is not installed: it belongs to NVIDIA's driver (in a container: docker "
               "run --gpus all)");
    else
      snprintf(load_error, sizeof(load_error), LIBRARY " does not load: %s", reason);
    return;
  }
  if (!find_symbols(library)) return;
  int error = rdt_cuda.init(0);
  if (error == 0) error = rdt_cuda.device_count(&count);
  if (error != 0) {
    rdt_cuda_fail(error, "start CUDA's driver (see nvidia-smi)");
    snprintf(load_error, sizeof(load_error), "%s", rdt_last_error());
  } else if (count == 0) {
    snprintf(load_error, sizeof(load_error),
             "CUDA's driver shows no device: see nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  if (count > MOST_DEVICES) count = MOST_DEVICES;
}

rdt_status rdt_cuda_need(void) {
  pthread_once(&load_once, load);
  if (load_error[0]) return rdt_fail(RDT_ERR_UNSUPPORTED, "%s", load_error);
  if (load_epoch == rdt_forks_epoch()) return RDT_OK;
  return rdt_fail(RDT_ERR_FORKED,
                  "CUDA's driver was opened before fork, and cannot be used in the child: start "
                  "processes with spawn instead");
}

static int open_streams(device *opened) {
  context before;
  int error = rdt_cuda.context_push(opened->context);
  if (error != 0) return error;
  /* 0: not CU_STREAM_NON_BLOCKING, so that the default stream's work is waited for. */
  for (int i = 0; i < RDT_CUDA_USERS && error == 0; i++)
    error = rdt_cuda.stream_create(&opened->streams[i], 0);
  rdt_cuda.context_pop(&before);
  return error;
}

static int open_device(int ordinal) {
  int handle, error = rdt_cuda.device_get(&handle, ordinal);
  device *opened = &devices[ordinal];
  if (error == 0 && !opened->context) error = rdt_cuda.context_retain(&opened->context, handle);
  if (error == 0) error = open_streams(opened);
  opened->open = error == 0;
  return error;
}

rdt_status rdt_cuda_enter(int ordinal, const device **entered) {
  rdt_status status = rdt_cuda_need();
  if (status != RDT_OK) return status;
  if (ordinal < 0 || ordinal >= count)
    return rdt_fail(RDT_ERR_INVALID, "there is no CUDA device %d: this process sees %d", ordinal,
                    count);
  pthread_mutex_lock(&lock);
  int error = devices[ordinal].open ? 0 : open_device(ordinal);
  pthread_mutex_unlock(&lock);
  if (error == 0) error = rdt_cuda.context_push(devices[ordinal].context);
  if (error != 0) return rdt_cuda_fail(error, "use CUDA device %d", ordinal);
  *entered = &devices[ordinal];
  return RDT_OK;
}

void rdt_cuda_leave(void) {
  context before;
  rdt_cuda.context_pop(&before);
}

int rdt_cuda_device_count(void) { return count; }

int rdt_cuda_device_at(uint64_t address) {
  unsigned type = 0;
  int ordinal = -1;
  if (rdt_cuda.attribute(&type, MEMORY_TYPE, address) != 0 || type != ON_DEVICE) return -1;
  return rdt_cuda.attribute(&ordinal, DEVICE_ORDINAL, address) == 0 ? ordinal : -1;
}

rdt_status rdt_cuda_check(const void *address, uint64_t size) {
  rdt_status status = rdt_cuda_need();
  if (status != RDT_OK) return status;
  const uint64_t first = (uintptr_t)address;
  const int ordinal = size > 0 ? rdt_cuda_device_at(first) : -1;
  if (ordinal >= 0 && size <= UINT64_MAX - first && rdt_cuda_device_at(first + size - 1) == ordinal)
    return RDT_OK;
  return rdt_fail(RDT_ERR_INVALID, "the %llu bytes at %p are not memory of a CUDA device",
                  (unsigned long long)size, address);
}

/* Alone, a copy from memory that is not pinned returns before the bytes are there. */
static int copy_and_wait(stream on, uint64_t to, uint64_t from, uint64_t size, bool *ended) {
  int error = rdt_cuda.copy(to, from, size, on);
  *ended = error != 0;
  if (error != 0) return error;
  error = rdt_cuda.stream_wait(on);
  *ended = error == 0;
  return error;
}

static void abandon(chunk *used) {
  pthread_mutex_lock(&lock);
  used->next = abandoned;
  abandoned = used;
  pthread_mutex_unlock(&lock);
}

/* Copies through memory of our own. If the driver cannot wait for a copy, that may still run, and the caller's memory may
 * be gone by then; so ours is kept. */
static int copy_by_host(stream on, char *to, const char *from, uint64_t size, bool to_device) {
  const uint64_t most = size < CHUNK ? size : CHUNK;
  chunk *used = malloc(sizeof(*used) + most);
  bool ended = true;
  int error = used ? 0 : RDT_CUDA_NO_MEMORY;
  for (uint64_t done = 0, part; done < size && error == 0; done += part) {
    part = size - done < most ? size - done : most;
    if (to_device) memcpy(used->bytes, from + done, part);
    error = to_device
                ? copy_and_wait(on, (uintptr_t)to + done, (uintptr_t)used->bytes, part, &ended)
                : copy_and_wait(on, (uintptr_t)used->bytes, (uintptr_t)from + done, part, &ended);
    if (!to_device && error == 0) memcpy(to + done, used->bytes, part);
  }
  if (ended)
    free(used);
  else
    abandon(used);
  return error;
}

static rdt_status copy_on(rdt_cuda_user user, void *to, const void *from, uint64_t size) {
  const device *entered;
  rdt_status status = rdt_cuda_need();
  if (status != RDT_OK || size == 0) return status;
  const int target = rdt_cuda_device_at((uintptr_t)to),
            source = rdt_cuda_device_at((uintptr_t)from);
  const int ordinal = target >= 0 ? target : source;
  if (ordinal < 0)
    return rdt_fail(RDT_ERR_INVALID, "neither %p nor %p is memory of a CUDA device", to, from);
  status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  const stream on = entered->streams[user];
  bool ended;
  int error = target >= 0 && source >= 0
                  ? copy_and_wait(on, (uintptr_t)to, (uintptr_t)from, size, &ended)
                  : copy_by_host(on, to, from, size, target >= 0);
  rdt_cuda_leave();
  if (error == 0) return RDT_OK;
  return rdt_cuda_fail(error, "copy %llu bytes to or from CUDA device %d", (unsigned long long)size,
                       ordinal);
}

rdt_status rdt_cuda_copy(void *to, const void *from, uint64_t size) {
  return copy_on(RDT_CUDA_PROGRAM, to, from, size);
}

rdt_status rdt_cuda_copy_for_peer(void *to, const void *from, uint64_t size) {
  return copy_on(RDT_CUDA_PEERS, to, from, size);
}

rdt_status rdt_cuda_stream(int ordinal, uint64_t *stream) {
  const device *entered;
  if (!stream) return rdt_fail(RDT_ERR_INVALID, "stream must not be NULL");
  rdt_status status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  *stream = (uintptr_t)entered->streams[RDT_CUDA_PROGRAM];
  rdt_cuda_leave();
  return RDT_OK;
}

rdt_status rdt_cuda_wait(const void *address, uint64_t waited) {
  const device *entered;
  rdt_status status = rdt_cuda_check(address, 1);
  if (status == RDT_OK) status = rdt_cuda_enter(rdt_cuda_device_at((uintptr_t)address), &entered);
  if (status != RDT_OK) return status;
  int error = rdt_cuda.stream_wait((stream)(uintptr_t)waited);
  rdt_cuda_leave();
  return error == 0 ? RDT_OK : rdt_cuda_fail(error, "wait for a CUDA stream");
}

rdt_status rdt_cuda_alloc(int ordinal, uint64_t size, void **address) {
  const device *entered;
  uint64_t allocated;
  if (!address || size == 0 || size > SIZE_MAX / 2)
    return rdt_fail(RDT_ERR_INVALID, "%llu bytes cannot be allocated", (unsigned long long)size);
  rdt_status status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  rdt_cuda_free_due();
  int error = rdt_cuda.allocate(&allocated, size);
  const bool there = error == 0;
  if (there) error = rdt_cuda.fill(allocated, 0, size, entered->streams[RDT_CUDA_PROGRAM]);
  if (there && error == 0) error = rdt_cuda.stream_wait(entered->streams[RDT_CUDA_PROGRAM]);
  if (there && error != 0) rdt_cuda.release(allocated);
  rdt_cuda_leave();
  if (error != 0)
    return rdt_cuda_fail(error, "allocate %llu bytes on CUDA device %d", (unsigned long long)size,
                         ordinal);
  *address = (void *)(uintptr_t)allocated;
  return RDT_OK;
}

void rdt_cuda_free(void *address) {
  const device *entered;
  if (!address || rdt_cuda_need() != RDT_OK) return;
  int ordinal = rdt_cuda_device_at((uintptr_t)address);
  if (ordinal < 0 || rdt_cuda_put_off((uintptr_t)address)) return;
  if (rdt_cuda_enter(ordinal, &entered) != RDT_OK) return;
  rdt_cuda.release((uintptr_t)address);
  rdt_cuda_leave();
}

rdt_status rdt_cuda_describe(char *text, size_t size) {
  int version = 0;
  if (!text || size == 0) return rdt_fail(RDT_ERR_INVALID, "no room for a text");
  rdt_status status = rdt_cuda_need();
  if (status != RDT_OK) return status;
  rdt_cuda.driver_version(&version);
  int used = snprintf(text, size, "CUDA %d.%d", version / 1000, version % 1000 / 10);
  for (int i = 0; i < count && used >= 0 && (size_t)used < size; i++) {
    char name[128] = "?";
    int handle;
    if (rdt_cuda.device_get(&handle, i) == 0) rdt_cuda.device_name(name, sizeof(name), handle);
    used += snprintf(text + used, size - (size_t)used, ", cuda:%d is %s", i, name);
  }
  return RDT_OK;
}
