// SPDX-License-Identifier: Apache-2.0
//
// A device for TensorFlow, TEST_DEVICE or what TEST_DEVICE_TYPE says, that behaves as a GPU does where there is none.
// The host cannot touch its memory: what TensorFlow is given is a view of it without any access. Only the device reads
// and writes, on a thread for each stream. Each copy comes TEST_DEVICE_COPY_US late, and each result of a kernel TEST_DEVICE_KERNEL_US. A test
// sets the exported numbers to make it fail or wait.
#include "pluggable_device.h"

#include <string.h>
#include <sys/mman.h>

#define MEMORY_BYTES ((uint64_t)1 << 30)
#define PAGE_BYTES ((uint64_t)4096)

static uint8_t *view;   // what TensorFlow has: no access
static uint8_t *bytes;  // the same memory for the device
useconds_t copy_us, kernel_us;

// So many of the next copies and allocations fail.
EXPORT int64_t fail_to_host, fail_to_device, fail_allocation;
// While these are set, copies wait; `waiting` is how many do.
EXPORT int64_t hold_to_host, hold_to_device, waiting;
EXPORT int64_t used;  // bytes that TensorFlow has been given

// Of type GPU, it has those of TensorFlow's kernels that GPUs have and that need no CUDA: collective operations.
const char *device_type(void) {
  const char *text = getenv("TEST_DEVICE_TYPE");
  return text ? text : "TEST_DEVICE";
}

uint8_t *reach(const void *address) { return bytes + ((const uint8_t *)address - view); }

// ---- Memory -------------------------------------------------------------------------------------

static bool fails(int64_t *left) {
  int64_t count = __atomic_load_n(left, __ATOMIC_SEQ_CST);
  while (count > 0 && !__atomic_compare_exchange_n(left, &count, count - 1, false, __ATOMIC_SEQ_CST,
                                                   __ATOMIC_SEQ_CST)) {
  }
  return count > 0;
}

// TensorFlow's own allocator divides what it is given here, and gives nothing back before the end.
static void allocate(const SP_Device *device, uint64_t size, int64_t space,
                     SP_DeviceMemoryBase *memory) {
  (void)device, (void)space;
  uint64_t rounded = (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  bool fits = rounded <= MEMORY_BYTES && !fails(&fail_allocation);
  uint64_t begin =
      fits ? (uint64_t)__atomic_fetch_add(&used, (int64_t)rounded, __ATOMIC_RELAXED) : 0;
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = fits && begin <= MEMORY_BYTES - rounded ? view + begin : NULL;
  memory->size = memory->opaque ? size : 0;
}

static void deallocate(const SP_Device *device, SP_DeviceMemoryBase *memory) {
  (void)device;
  memory->opaque = NULL;
}

static void *host_memory_allocate(const SP_Device *device, uint64_t size) {
  (void)device;
  return aligned_alloc(64, (size + 63) / 64 * 64);
}

static void host_memory_deallocate(const SP_Device *device, void *memory) {
  (void)device;
  free(memory);
}

static TF_Bool get_allocator_stats(const SP_Device *device, SP_AllocatorStats *stats) {
  (void)device, (void)stats;
  return false;
}

static TF_Bool device_memory_usage(const SP_Device *device, int64_t *free_bytes, int64_t *total) {
  (void)device;
  *free_bytes = *total = (int64_t)MEMORY_BYTES;
  return true;
}

static void run_copy(task *task) {
  if (task->hold && __atomic_load_n(task->hold, __ATOMIC_SEQ_CST)) {
    __atomic_fetch_add(&waiting, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(task->hold, __ATOMIC_SEQ_CST)) usleep(1000);
    __atomic_fetch_sub(&waiting, 1, __ATOMIC_SEQ_CST);
  }
  memcpy(task->to, task->from, task->size);
}

// `hold` and `fail` are numbers that a test sets, or NULL.
static void give_copy(SP_Stream stream, void *to, const void *from, uint64_t size, int64_t *hold,
                      int64_t *fail, TF_Status *status) {
  if (fail && fails(fail)) {
    TF_SetStatus(status, TF_INTERNAL, "the test's device does not copy");
    return;
  }
  give(
      stream,
      (task){.run = run_copy, .late = copy_us, .to = to, .from = from, .size = size, .hold = hold});
  TF_SetStatus(status, TF_OK, "");
}

static void memcpy_dtoh(const SP_Device *device, SP_Stream stream, void *to,
                        const SP_DeviceMemoryBase *from, uint64_t size, TF_Status *status) {
  (void)device;
  give_copy(stream, to, reach(from->opaque), size, &hold_to_host, &fail_to_host, status);
}

static void memcpy_htod(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                        const void *from, uint64_t size, TF_Status *status) {
  (void)device;
  give_copy(stream, reach(to->opaque), from, size, &hold_to_device, &fail_to_device, status);
}

static void memcpy_dtod(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                        const SP_DeviceMemoryBase *from, uint64_t size, TF_Status *status) {
  (void)device;
  give_copy(stream, reach(to->opaque), reach(from->opaque), size, NULL, NULL, status);
}

static void sync_memcpy_dtoh(const SP_Device *device, void *to, const SP_DeviceMemoryBase *from,
                             uint64_t size, TF_Status *status) {
  (void)device;
  memcpy(to, reach(from->opaque), size);
  TF_SetStatus(status, TF_OK, "");
}

static void sync_memcpy_htod(const SP_Device *device, SP_DeviceMemoryBase *to, const void *from,
                             uint64_t size, TF_Status *status) {
  (void)device;
  memcpy(reach(to->opaque), from, size);
  TF_SetStatus(status, TF_OK, "");
}

static void sync_memcpy_dtod(const SP_Device *device, SP_DeviceMemoryBase *to,
                             const SP_DeviceMemoryBase *from, uint64_t size, TF_Status *status) {
  (void)device;
  memcpy(reach(to->opaque), reach(from->opaque), size);
  TF_SetStatus(status, TF_OK, "");
}

static void run_fill(task *task) {
  uint32_t *to = task->to;
  for (uint64_t i = 0; i < task->size / sizeof *to; i++) to[i] = task->pattern;
  memset(to + task->size / sizeof *to, (int)(task->pattern & 0xff), task->size % sizeof *to);
}

static void fill32(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                   uint32_t pattern, uint64_t size, TF_Status *status) {
  (void)device;
  give(stream, (task){.run = run_fill, .to = reach(to->opaque), .size = size, .pattern = pattern});
  TF_SetStatus(status, TF_OK, "");
}

static void fill(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                 uint8_t pattern, uint64_t size, TF_Status *status) {
  fill32(device, stream, to, pattern * 0x01010101u, size, status);
}

static void mem_zero(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                     uint64_t size, TF_Status *status) {
  fill32(device, stream, to, 0, size, status);
}

// ---- The platform -------------------------------------------------------------------------------

static void get_device_count(const SP_Platform *platform, int *count, TF_Status *status) {
  (void)platform;
  *count = 1;
  TF_SetStatus(status, TF_OK, "");
}

static void create_device(const SP_Platform *platform, SE_CreateDeviceParams *params,
                          TF_Status *status) {
  (void)platform;
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_device(const SP_Platform *platform, SP_Device *device) {
  (void)platform, (void)device;
}

static void create_device_fns(const SP_Platform *platform, SE_CreateDeviceFnsParams *params,
                              TF_Status *status) {
  (void)platform;
  *params->device_fns = (SP_DeviceFns){.struct_size = SP_DEVICE_FNS_STRUCT_SIZE};
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_device_fns(const SP_Platform *platform, SP_DeviceFns *functions) {
  (void)platform, (void)functions;
}

static void create_stream_executor(const SP_Platform *platform,
                                   SE_CreateStreamExecutorParams *params, TF_Status *status) {
  (void)platform;
  *params->stream_executor = (SP_StreamExecutor){
      .struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE,
      .allocate = allocate,
      .deallocate = deallocate,
      .host_memory_allocate = host_memory_allocate,
      .host_memory_deallocate = host_memory_deallocate,
      .get_allocator_stats = get_allocator_stats,
      .device_memory_usage = device_memory_usage,
      .memcpy_dtoh = memcpy_dtoh,
      .memcpy_htod = memcpy_htod,
      .memcpy_dtod = memcpy_dtod,
      .sync_memcpy_dtoh = sync_memcpy_dtoh,
      .sync_memcpy_htod = sync_memcpy_htod,
      .sync_memcpy_dtod = sync_memcpy_dtod,
      .mem_zero = mem_zero,
      .memset = fill,
      .memset32 = fill32,
  };
  fill_in_streams(params->stream_executor);
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_stream_executor(const SP_Platform *platform, SP_StreamExecutor *executor) {
  (void)platform, (void)executor;
}

static uint64_t no_time(SP_Timer timer) {
  (void)timer;
  return 0;
}

static void create_timer_fns(const SP_Platform *platform, SP_TimerFns *functions,
                             TF_Status *status) {
  (void)platform;
  *functions = (SP_TimerFns){.struct_size = SP_TIMER_FNS_STRUCT_SIZE, .nanoseconds = no_time};
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_timer_fns(const SP_Platform *platform, SP_TimerFns *functions) {
  (void)platform, (void)functions;
}

static void destroy_platform(SP_Platform *platform) { (void)platform; }

static void destroy_platform_fns(SP_PlatformFns *functions) { (void)functions; }

static useconds_t setting(const char *name) {
  const char *text = getenv(name);
  return text ? (useconds_t)strtoul(text, NULL, 10) : 0;
}

EXPORT void SE_InitPlugin(SE_PlatformRegistrationParams *params, TF_Status *status) {
  copy_us = setting("TEST_DEVICE_COPY_US");
  kernel_us = setting("TEST_DEVICE_KERNEL_US");
  int file = memfd_create("test device", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)MEMORY_BYTES)) {
    TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for the test's device");
    return;
  }
  view = mmap(NULL, MEMORY_BYTES, PROT_NONE, MAP_SHARED, file, 0);
  bytes = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (view == MAP_FAILED || bytes == MAP_FAILED) {
    TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory for the test's device");
    return;
  }
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "TEST_PLATFORM";
  params->platform->type = device_type();
  params->platform->use_bfc_allocator = true;
  params->platform->force_memory_growth = true;
  params->platform_fns->get_device_count = get_device_count;
  params->platform_fns->create_device = create_device;
  params->platform_fns->destroy_device = destroy_device;
  params->platform_fns->create_device_fns = create_device_fns;
  params->platform_fns->destroy_device_fns = destroy_device_fns;
  params->platform_fns->create_stream_executor = create_stream_executor;
  params->platform_fns->destroy_stream_executor = destroy_stream_executor;
  params->platform_fns->create_timer_fns = create_timer_fns;
  params->platform_fns->destroy_timer_fns = destroy_timer_fns;
  params->destroy_platform = destroy_platform;
  params->destroy_platform_fns = destroy_platform_fns;
  TF_SetStatus(status, TF_OK, "");
}
