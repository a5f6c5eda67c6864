/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files on CUDA share: the driver's functions, and the devices that are open.
 */
#ifndef RDT_BASE_CUDA_DRIVER_H
#define RDT_BASE_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* These values are defined in NVIDIA's cuda.h, which is not needed to build. */
#define RDT_CUDA_NO_MEMORY 2
#define RDT_CUDA_NO_DEVICE 100
#define RDT_CUDA_NOT_READY 600 /* here: not within DEADLINE_MS */
#define RDT_CUDA_ALREADY_PINNED 712
#define RDT_CUDA_PORTABLE 1u           /* a flag of cuMemHostRegister: for all contexts */
#define RDT_CUDA_ENABLE_PEER_ACCESS 1u /* a flag of cuIpcOpenMemHandle */
typedef void *rdt_cuda_context, *rdt_cuda_stream_handle, *rdt_cuda_event;
typedef struct rdt_cuda_handle {
  uint8_t bytes[64];
} rdt_cuda_handle;

/* Rows: the name here, the name there, the arguments. */
#define RDT_CUDA_FUNCTIONS(ROW)                                                                    \
  ROW(init, "cuInit", (unsigned flags))                                                            \
  ROW(driver_version, "cuDriverGetVersion", (int *version))                                        \
  ROW(device_count, "cuDeviceGetCount", (int *count))                                              \
  ROW(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
  ROW(device_name, "cuDeviceGetName", (char *name, int size, int device))                          \
  ROW(context_retain, "cuDevicePrimaryCtxRetain", (rdt_cuda_context * context, int device))        \
  ROW(context_state, "cuDevicePrimaryCtxGetState", (int device, unsigned *flags, int *active))     \
  ROW(context_push, "cuCtxPushCurrent_v2", (rdt_cuda_context context))                             \
  ROW(context_pop, "cuCtxPopCurrent_v2", (rdt_cuda_context * context))                             \
  ROW(allocate, "cuMemAlloc_v2", (uint64_t *address, size_t size))                                 \
  ROW(release, "cuMemFree_v2", (uint64_t address))                                                 \
  ROW(fill, "cuMemsetD8Async",                                                                     \
      (uint64_t to, unsigned char value, size_t size, rdt_cuda_stream_handle on))                  \
  ROW(copy, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t size, rdt_cuda_stream_handle on)) \
  ROW(stream_create, "cuStreamCreate", (rdt_cuda_stream_handle * stream, unsigned flags))          \
  ROW(stream_query, "cuStreamQuery", (rdt_cuda_stream_handle stream))                              \
  ROW(event_create, "cuEventCreate", (rdt_cuda_event * event, unsigned flags))                     \
  ROW(event_destroy, "cuEventDestroy_v2", (rdt_cuda_event event))                                  \
  ROW(event_record, "cuEventRecord", (rdt_cuda_event event, rdt_cuda_stream_handle on))            \
  ROW(event_query, "cuEventQuery", (rdt_cuda_event event))                                         \
  ROW(pin, "cuMemHostRegister_v2", (void *address, size_t size, unsigned flags))                   \
  ROW(unpin, "cuMemHostUnregister", (void *address))                                               \
  ROW(attribute, "cuPointerGetAttribute", (void *value, int attribute, uint64_t address))          \
  ROW(can_access_peer, "cuDeviceCanAccessPeer", (int *can, int device, int peer))                  \
  ROW(device_uuid, "cuDeviceGetUuid", (uint8_t *uuid, int device))                                 \
  ROW(range, "cuMemGetAddressRange_v2", (uint64_t *base, size_t *size, uint64_t address))          \
  ROW(ipc_get, "cuIpcGetMemHandle", (rdt_cuda_handle * handle, uint64_t address))                  \
  ROW(ipc_open, "cuIpcOpenMemHandle_v2",                                                           \
      (uint64_t *address, rdt_cuda_handle handle, unsigned flags))                                 \
  ROW(ipc_close, "cuIpcCloseMemHandle", (uint64_t address))                                        \
  ROW(error_name, "cuGetErrorName", (int error, const char **text))                                \
  ROW(error_text, "cuGetErrorString", (int error, const char **text))

#define RDT_CUDA_FIELD(name, symbol, arguments) int(*name) arguments;
/* Filled by rdt_cuda_need. */
typedef struct rdt_cuda_driver {
  RDT_CUDA_FUNCTIONS(RDT_CUDA_FIELD)
} rdt_cuda_driver;
extern rdt_cuda_driver rdt_cuda;

/* Selects the stream of a copy. Copies for the program may wait long for its other streams; copies for peers may not. */
typedef enum rdt_cuda_user { RDT_CUDA_PROGRAM, RDT_CUDA_PEERS, RDT_CUDA_USERS } rdt_cuda_user;
typedef struct rdt_cuda_device {
  bool open;
  rdt_cuda_context context;
  rdt_cuda_stream_handle streams[RDT_CUDA_USERS];
} rdt_cuda_device;

/* Opens the driver at the first call. RDT_ERR_UNSUPPORTED if there is none, RDT_ERR_FORKED. */
rdt_status rdt_cuda_need(void);
/* Makes current a device that this process uses already. RDT_ERR_UNSUPPORTED if it uses none: nothing is opened then. */
rdt_status rdt_cuda_enter_used(int *ordinal);
/* Returns the number of devices. The driver is there. */
int rdt_cuda_device_count(void);
/* Returns the number of the device whose memory is at the address, or -1. The driver is there. */
int rdt_cuda_device_at(uint64_t address);
/* Makes the device current for the calling thread, until rdt_cuda_leave(). */
rdt_status rdt_cuda_enter(int ordinal, const rdt_cuda_device **entered);
void rdt_cuda_leave(void);
/* Records "cannot <what>: <the driver's words>". RDT_ERR_DEADLINE for RDT_CUDA_NOT_READY. */
__attribute__((format(printf, 2, 3))) rdt_status rdt_cuda_fail(int error, const char *format, ...);

/* cuda_lanes.c */

#define RDT_CUDA_CHUNK (1u << 20)
#define RDT_CUDA_CHUNKS 4u
/* A lane holds what a copy needs besides its stream. One thread uses it at a time, and enters its device before. */
typedef struct rdt_cuda_lane {
  struct rdt_cuda_lane *next;
  int ordinal;
  bool kept, pinned;
  char *chunks; /* RDT_CUDA_CHUNKS of host memory of our own; NULL until needed */
  rdt_cuda_event events[RDT_CUDA_CHUNKS];
  int other; /* the second device of the copy, or -1 */
  void
      *host; /* the block of rdt_memory_alloc that the device copies straight to or from, or NULL */
  /* These fields are set when the lane is abandoned. */
  rdt_cuda_stream_handle stream;
  bool by_event, host_due;
} rdt_cuda_lane;
/* Return the driver's error. */
int rdt_cuda_lane_take(int ordinal, rdt_cuda_lane **taken);
int rdt_cuda_lane_need_chunks(rdt_cuda_lane *lane);
void rdt_cuda_lane_give_back(rdt_cuda_lane *lane);
/* Keeps the lane, instead of giving it back, until all work on `stream` has ended: a copy may still run there. */
void rdt_cuda_lane_abandon(rdt_cuda_lane *lane, rdt_cuda_stream_handle stream);
/* Waits until what is queued on the stream by now has ended. RDT_CUDA_NOT_READY after DEADLINE_MS. */
int rdt_cuda_lane_await(const rdt_cuda_lane *lane, rdt_cuda_stream_handle stream);
/* Waits for the work before the last record of the event, in the same way. */
int rdt_cuda_await(rdt_cuda_event event);
/* Reports whether copies that were given up may still use memory of the device. */
bool rdt_cuda_is_copying(int ordinal);
/* Reports whether such a copy uses the block of rdt_memory_alloc. That is freed after it, by this library. */
bool rdt_cuda_keeps(void *block);

/* cuda_pinned.c: blocks of rdt_memory_alloc that devices copy to and from without a chunk */

/* Pins whole pages of host memory. The first failure is logged, for everything works without. A device is entered. */
int rdt_cuda_pin_pages(void *start, uint64_t size);
/* Returns the block if [address, address + size) can be copied straight, else NULL. The device is entered. A block is
 * pinned, as a whole, once as many bytes as it has were copied. */
void *rdt_cuda_pinned_block(const void *address, uint64_t size, int ordinal);
/* Returns false if a device still copies: then the block must stay, and is freed later. Call it before a block is
 * unmapped. Does nothing in a child of fork. */
bool rdt_cuda_let_go(void *block);

/* Returns true, and frees the memory later, if other processes have it open, or copies still use it (cuda_ipc.c). */
bool rdt_cuda_put_off(uint64_t address);
/* Frees and closes what was put off and is used no more. */
void rdt_cuda_free_due(void);

#endif
