// SPDX-License-Identifier: Apache-2.0
//
// A device for TensorFlow, TEST_DEVICE or what TEST_DEVICE_TYPE says, that behaves as a GPU does where there is none. The host cannot touch its
// memory: what TensorFlow is given is a view of it without any access. Only the device reads and writes, on a thread
// for each stream. Each copy comes TEST_DEVICE_COPY_US late, and each result of a kernel TEST_DEVICE_KERNEL_US. A test
// sets the exported numbers to make it fail or wait.
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"

#define MEMORY_BYTES ((uint64_t)1 << 30)
#define PAGE_BYTES ((uint64_t)4096)
#define EXPORT __attribute__((visibility("default")))

static uint8_t *view;   // what TensorFlow has: no access
static uint8_t *bytes;  // the same memory for the device
static useconds_t copy_us, kernel_us;

// So many of the next copies and allocations fail.
EXPORT int64_t fail_to_host, fail_to_device, fail_allocation;
// While these are set, copies wait; `waiting` is how many do.
EXPORT int64_t hold_to_host, hold_to_device, waiting;
EXPORT int64_t used;  // bytes that TensorFlow has been given

// Of type GPU, it has those of TensorFlow's kernels that GPUs have and that need no CUDA: collective operations.
static const char *device_type(void) {
  const char *text = getenv("TEST_DEVICE_TYPE");
  return text ? text : "TEST_DEVICE";
}

static uint8_t *reach(const void *address) { return bytes + ((const uint8_t *)address - view); }

// ---- Streams ------------------------------------------------------------------------------------

typedef struct task {
  struct task *next;
  void (*run)(struct task *task);
  useconds_t late;
  void *to;
  const void *from,
      *other;  // `other` has `other_step` floats between its elements: 0 for one number
  uint64_t size, other_step;
  uint32_t pattern;
  SP_Stream stream;  // whose `target` tasks come first
  uint64_t target;
  int64_t *hold;
  SE_StatusCallbackFn callback;
} task;

struct SP_Stream_st {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  task *first, **last;
  uint64_t given, done;  // tasks
  bool ends;
  SP_Stream next;  // of all streams
};

static pthread_mutex_t streams_mutex = PTHREAD_MUTEX_INITIALIZER;
static SP_Stream streams;

struct SP_Event_st {
  SP_Stream stream;  // NULL: not recorded
  uint64_t target;
};

static void await(SP_Stream stream, uint64_t target) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->done < target) pthread_cond_wait(&stream->changed, &stream->mutex);
  pthread_mutex_unlock(&stream->mutex);
}

static void *work(void *argument) {
  SP_Stream stream = argument;
  pthread_mutex_lock(&stream->mutex);
  for (;;) {
    while (!stream->first && !stream->ends) pthread_cond_wait(&stream->changed, &stream->mutex);
    task *next = stream->first;
    if (!next) break;
    stream->first = next->next;
    if (!stream->first) stream->last = &stream->first;
    pthread_mutex_unlock(&stream->mutex);
    if (next->late) usleep(next->late);
    next->run(next);
    free(next);
    pthread_mutex_lock(&stream->mutex);
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
  }
  pthread_mutex_unlock(&stream->mutex);
  return NULL;
}

static void give(SP_Stream stream, task described) {
  task *added = malloc(sizeof *added);
  if (!added) abort();
  *added = described;
  added->next = NULL;
  pthread_mutex_lock(&stream->mutex);
  *stream->last = added;
  stream->last = &added->next;
  stream->given++;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
}

static uint64_t given(SP_Stream stream) {
  pthread_mutex_lock(&stream->mutex);
  uint64_t count = stream->given;
  pthread_mutex_unlock(&stream->mutex);
  return count;
}

static void create_stream(const SP_Device *device, SP_Stream *out, TF_Status *status) {
  (void)device;
  SP_Stream stream = calloc(1, sizeof *stream);
  if (!stream) abort();
  pthread_mutex_init(&stream->mutex, NULL);
  pthread_cond_init(&stream->changed, NULL);
  stream->last = &stream->first;
  if (pthread_create(&stream->thread, NULL, work, stream)) {
    TF_SetStatus(status, TF_INTERNAL, "no thread for a stream");
    free(stream);
    return;
  }
  pthread_mutex_lock(&streams_mutex);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&streams_mutex);
  *out = stream;
  TF_SetStatus(status, TF_OK, "");
}

// Events may still name the stream, so it is not freed.
static void destroy_stream(const SP_Device *device, SP_Stream stream) {
  (void)device;
  pthread_mutex_lock(&stream->mutex);
  stream->ends = true;
  pthread_cond_broadcast(&stream->changed);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
}

static void run_wait(task *task) { await(task->stream, task->target); }

static void create_stream_dependency(const SP_Device *device, SP_Stream dependent, SP_Stream other,
                                     TF_Status *status) {
  (void)device;
  give(dependent, (task){.run = run_wait, .stream = other, .target = given(other)});
  TF_SetStatus(status, TF_OK, "");
}

static void get_stream_status(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device, (void)stream;
  TF_SetStatus(status, TF_OK, "");
}

static void block_host_until_done(const SP_Device *device, SP_Stream stream, TF_Status *status) {
  (void)device;
  await(stream, given(stream));
  TF_SetStatus(status, TF_OK, "");
}

static void synchronize_all_activity(const SP_Device *device, TF_Status *status) {
  pthread_mutex_lock(&streams_mutex);
  SP_Stream first = streams;
  pthread_mutex_unlock(&streams_mutex);
  for (SP_Stream stream = first; stream; stream = stream->next) {
    block_host_until_done(device, stream, status);
  }
}

static void run_callback(task *task) {
  TF_Status *status = TF_NewStatus();
  task->callback(task->to, status);
  TF_DeleteStatus(status);
}

static TF_Bool host_callback(const SP_Device *device, SP_Stream stream,
                             SE_StatusCallbackFn callback, void *argument) {
  (void)device;
  give(stream, (task){.run = run_callback, .callback = callback, .to = argument});
  return true;
}

// ---- Events -------------------------------------------------------------------------------------

static void create_event(const SP_Device *device, SP_Event *event, TF_Status *status) {
  (void)device;
  *event = calloc(1, sizeof **event);
  if (!*event) abort();
  TF_SetStatus(status, TF_OK, "");
}

static void destroy_event(const SP_Device *device, SP_Event event) {
  (void)device;
  free(event);
}

static SE_EventStatus get_event_status(const SP_Device *device, SP_Event event) {
  (void)device;
  if (!event->stream) return SE_EVENT_COMPLETE;
  pthread_mutex_lock(&event->stream->mutex);
  bool is_done = event->stream->done >= event->target;
  pthread_mutex_unlock(&event->stream->mutex);
  return is_done ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

static void record_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                         TF_Status *status) {
  (void)device;
  event->target = given(stream);
  event->stream = stream;
  TF_SetStatus(status, TF_OK, "");
}

static void wait_for_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                           TF_Status *status) {
  (void)device;
  if (event->stream) {
    give(stream, (task){.run = run_wait, .stream = event->stream, .target = event->target});
  }
  TF_SetStatus(status, TF_OK, "");
}

static void block_host_for_event(const SP_Device *device, SP_Event event, TF_Status *status) {
  (void)device;
  if (event->stream) await(event->stream, event->target);
  TF_SetStatus(status, TF_OK, "");
}

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

// ---- Kernels for floats -------------------------------------------------------------------------

static void give_kernel(TF_OpKernelContext *context, void (*run)(task *task)) {
  TF_Status *status = TF_NewStatus();
  TF_Tensor *inputs[2] = {NULL, NULL}, *output = NULL;
  int64_t dims[8];
  int rank = 0;
  for (int i = 0; i < 2 && TF_GetCode(status) == TF_OK; i++) {
    TF_GetInput(context, i, &inputs[i], status);
  }
  if (TF_GetCode(status) == TF_OK) {
    rank = TF_NumDims(inputs[0]);
    size_t size = TF_TensorByteSize(inputs[0]), other = TF_TensorByteSize(inputs[1]);
    if (rank > 8 || (other != size && other != sizeof(float))) {
      TF_SetStatus(status, TF_INVALID_ARGUMENT,
                   "the test's device does not broadcast these shapes");
    }
  }
  if (TF_GetCode(status) == TF_OK) {
    for (int i = 0; i < rank; i++) dims[i] = TF_Dim(inputs[0], i);
    // The operations within a collective one must write where they read.
    const int first = 0;
    int forwarded;
    output = TF_ForwardInputOrAllocateOutput(context, &first, 1, 0, dims, rank, &forwarded, status);
  }
  SP_Stream stream = TF_GetCode(status) == TF_OK ? TF_GetStream(context, status) : NULL;
  if (TF_GetCode(status) != TF_OK) {
    TF_OpKernelContext_Failure(context, status);
  } else if (TF_TensorByteSize(output) > 0) {
    give(stream, (task){.run = run,
                        .late = kernel_us,
                        .to = reach(TF_TensorData(output)),
                        .from = reach(TF_TensorData(inputs[0])),
                        .other = reach(TF_TensorData(inputs[1])),
                        .other_step = TF_TensorElementCount(inputs[1]) != 1,
                        .size = TF_TensorByteSize(output)});
  }
  for (int i = 0; i < 2; i++) {
    if (inputs[i]) TF_DeleteTensor(inputs[i]);
  }
  if (output) TF_DeleteTensor(output);
  TF_DeleteStatus(status);
}

// The second input `b` has the first one's shape or is one number.
#define BINARY(name, result)                                    \
  static void run_##name(task *task) {                          \
    float *to = task->to;                                       \
    const float *from = task->from, *other = task->other;       \
    for (uint64_t i = 0; i < task->size / sizeof *to; i++) {    \
      float a = from[i], b = other[i * task->other_step];       \
      to[i] = (result);                                         \
    }                                                           \
  }                                                             \
  static void name(void *kernel, TF_OpKernelContext *context) { \
    (void)kernel;                                               \
    give_kernel(context, run_##name);                           \
  }

BINARY(add, a + b)
BINARY(multiply, a *b)
BINARY(divide, a / b)
BINARY(minimum, a < b ? a : b)
BINARY(maximum, a > b ? a : b)

static void register_kernel(const char *operation, void (*compute)(void *, TF_OpKernelContext *)) {
  TF_Status *status = TF_NewStatus();
  TF_KernelBuilder *builder = TF_NewKernelBuilder(operation, device_type(), NULL, compute, NULL);
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_FLOAT, status);
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(operation, builder, status);
  if (TF_GetCode(status) != TF_OK) abort();
  TF_DeleteStatus(status);
}

EXPORT void TF_InitKernel(void) {
  register_kernel("Add", add);
  register_kernel("AddV2", add);
  register_kernel("Mul", multiply);
  register_kernel("Div", divide);
  register_kernel("Minimum", minimum);
  register_kernel("Maximum", maximum);
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
      .create_stream = create_stream,
      .destroy_stream = destroy_stream,
      .create_stream_dependency = create_stream_dependency,
      .get_stream_status = get_stream_status,
      .create_event = create_event,
      .destroy_event = destroy_event,
      .get_event_status = get_event_status,
      .record_event = record_event,
      .wait_for_event = wait_for_event,
      .memcpy_dtoh = memcpy_dtoh,
      .memcpy_htod = memcpy_htod,
      .memcpy_dtod = memcpy_dtod,
      .sync_memcpy_dtoh = sync_memcpy_dtoh,
      .sync_memcpy_htod = sync_memcpy_htod,
      .sync_memcpy_dtod = sync_memcpy_dtod,
      .block_host_for_event = block_host_for_event,
      .block_host_until_done = block_host_until_done,
      .synchronize_all_activity = synchronize_all_activity,
      .mem_zero = mem_zero,
      .memset = fill,
      .memset32 = fill32,
      .host_callback = host_callback,
  };
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
