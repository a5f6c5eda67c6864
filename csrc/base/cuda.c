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
#include <sys/mman.h>
#include <unistd.h>

#include "base/config.h"
#include "base/cuda_driver.h"
#include "base/forks.h"
#include "base/status.h"

#define LIBRARY "libcuda.so.1"
#define MOST_DEVICES 64

/* These values are defined in NVIDIA's cuda.h, which is not needed to build. */
#define MEMORY_TYPE 2 /* of a pointer's attributes, as is the next */
#define DEVICE_ORDINAL 9
#define ON_DEVICE 2u /* a value of MEMORY_TYPE */
typedef rdt_cuda_context context;
typedef rdt_cuda_device device;

rdt_cuda_driver rdt_cuda;

static const struct {
  const char *symbol;
  size_t offset; /* in `cuda` */
} symbols[] = {
#define SYMBOL(name, symbol, arguments) {symbol, offsetof(rdt_cuda_driver, name)},
    RDT_CUDA_FUNCTIONS(SYMBOL)};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static char load_error[384]; /* "" once loaded */
static unsigned load_epoch;
static int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device devices[MOST_DEVICES]; /* under the lock until open */

rdt_status rdt_cuda_fail(int error, const char *format, ...) {
  char what[160];
  const char *name = NULL, *text = NULL;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof(what), format, arguments);
  va_end(arguments);
  if (error == RDT_CUDA_NOT_READY)
    return rdt_fail(
        RDT_ERR_DEADLINE,
        "cannot %s within %llu ms: the device still works on what was queued before "
        "(nvidia-smi tells whether it hangs): wait for its streams first, or raise " RDT_ENV_PREFIX
        "DEADLINE_MS",
        what, (unsigned long long)rdt_config_number(RDT_CONFIG_DEADLINE_MS));
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

rdt_status rdt_cuda_enter_used(int *ordinal) {
  const device *entered;
  int handle, active = 0;
  unsigned flags;
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  if (library) dlclose(library); /* whoever opened it has it still */
  if (!library) return rdt_fail(RDT_ERR_UNSUPPORTED, "this process does not use CUDA");
  rdt_status status = rdt_cuda_need();
  for (int i = 0; status == RDT_OK && i < count; i++)
    if (rdt_cuda.device_get(&handle, i) == 0 &&
        rdt_cuda.context_state(handle, &flags, &active) == 0 && active)
      return *ordinal = i, rdt_cuda_enter(i, &entered);
  return status != RDT_OK ? status : rdt_fail(RDT_ERR_UNSUPPORTED, "this process uses no device");
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

rdt_status rdt_cuda_stream(int ordinal, uint64_t *stream) {
  const device *entered;
  if (!stream) return rdt_fail(RDT_ERR_INVALID, "stream must not be NULL");
  rdt_status status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  *stream = (uintptr_t)entered->streams[RDT_CUDA_PROGRAM];
  rdt_cuda_leave();
  return RDT_OK;
}

/* Zeros memory that is not zero yet. */
static int fill(rdt_cuda_lane *lane, uint64_t address, uint64_t size, bool *runs) {
  rdt_cuda_stream_handle on = devices[lane->ordinal].streams[RDT_CUDA_PROGRAM];
  int error = rdt_cuda.fill(address, 0, size, on);
  if (error == 0) error = rdt_cuda_lane_await(lane, on);
  *runs = error == RDT_CUDA_NOT_READY;
  return error;
}

rdt_status rdt_cuda_alloc(int ordinal, uint64_t size, void **address) {
  const device *entered;
  uint64_t allocated = 0;
  bool runs = false;
  if (!address || size == 0 || size > SIZE_MAX / 2)
    return rdt_fail(RDT_ERR_INVALID, "%llu bytes cannot be allocated", (unsigned long long)size);
  rdt_status status = rdt_cuda_enter(ordinal, &entered);
  if (status != RDT_OK) return status;
  rdt_cuda_free_due();
  rdt_cuda_lane *lane = NULL;
  int error = rdt_cuda_lane_take(ordinal, &lane);
  /* The driver itself would wait without a deadline. */
  if (error == 0) error = rdt_cuda_lane_await(lane, entered->streams[RDT_CUDA_PROGRAM]);
  if (error == 0) error = rdt_cuda.allocate(&allocated, size);
  if (error == 0) error = fill(lane, allocated, size, &runs);
  if (runs)
    rdt_cuda_lane_abandon(lane, entered->streams[RDT_CUDA_PROGRAM]);
  else if (lane)
    rdt_cuda_lane_give_back(lane);
  if (allocated && error != 0 && !rdt_cuda_put_off(allocated)) rdt_cuda.release(allocated);
  rdt_cuda_leave();
  if (error != 0)
    return rdt_cuda_fail(error, "allocate %llu bytes on CUDA device %d", (unsigned long long)size,
                         ordinal);
  *address = (void *)(uintptr_t)allocated;
  return RDT_OK;
}

/* The driver waits for a device before it frees memory of it, without a deadline. So this waits, and has the memory freed
 * later if that takes too long. */
void rdt_cuda_free(void *address) {
  const device *entered;
  rdt_cuda_lane *lane;
  if (!address || rdt_cuda_need() != RDT_OK) return;
  int ordinal = rdt_cuda_device_at((uintptr_t)address);
  if (ordinal < 0 || rdt_cuda_enter(ordinal, &entered) != RDT_OK) return;
  if (rdt_cuda_lane_take(ordinal, &lane) == 0) {
    if (rdt_cuda_lane_await(lane, entered->streams[RDT_CUDA_PROGRAM]) == RDT_CUDA_NOT_READY)
      rdt_cuda_lane_abandon(lane, entered->streams[RDT_CUDA_PROGRAM]);
    else
      rdt_cuda_lane_give_back(lane);
  }
  if (!rdt_cuda_put_off((uintptr_t)address)) rdt_cuda.release((uintptr_t)address);
  rdt_cuda_leave();
}

static bool pins_host_memory(void) {
  const device *entered;
  const size_t size = (size_t)sysconf(_SC_PAGESIZE);
  void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  bool pinned = false;
  if (rdt_cuda_enter(0, &entered) == RDT_OK) {
    pinned = rdt_cuda.pin(page, size, RDT_CUDA_PORTABLE) == 0;
    if (pinned) rdt_cuda.unpin(page);
    rdt_cuda_leave();
  }
  munmap(page, size);
  return pinned;
}

static bool reach_each_other(void) {
  for (int i = 0; i < count * count; i++) {
    int one, other, can = 0;
    if (i / count != i % count &&
        (rdt_cuda.device_get(&one, i / count) != 0 || rdt_cuda.device_get(&other, i % count) != 0 ||
         rdt_cuda.can_access_peer(&can, one, other) != 0 || !can))
      return false;
  }
  return true;
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
  const char *host = pins_host_memory() ? "is pinned for copies" : "cannot be pinned for copies";
  const char *between = count == 1           ? ""
                        : reach_each_other() ? "; GPUs copy to each other directly"
                                             : "; between some GPUs, copies go through the host";
  if (used >= 0 && (size_t)used < size)
    snprintf(text + used, size - (size_t)used, "; host memory %s%s", host, between);
  return RDT_OK;
}
