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
#define RDT_CUDA_ENABLE_PEER_ACCESS 1u /* a flag of cuIpcOpenMemHandle */
typedef void *rdt_cuda_context, *rdt_cuda_stream_handle;
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
  ROW(context_push, "cuCtxPushCurrent_v2", (rdt_cuda_context context))                             \
  ROW(context_pop, "cuCtxPopCurrent_v2", (rdt_cuda_context * context))                             \
  ROW(allocate, "cuMemAlloc_v2", (uint64_t *address, size_t size))                                 \
  ROW(release, "cuMemFree_v2", (uint64_t address))                                                 \
  ROW(fill, "cuMemsetD8Async",                                                                     \
      (uint64_t to, unsigned char value, size_t size, rdt_cuda_stream_handle on))                  \
  ROW(copy, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t size, rdt_cuda_stream_handle on)) \
  ROW(stream_create, "cuStreamCreate", (rdt_cuda_stream_handle * stream, unsigned flags))          \
  ROW(stream_wait, "cuStreamSynchronize", (rdt_cuda_stream_handle stream))                         \
  ROW(attribute, "cuPointerGetAttribute", (void *value, int attribute, uint64_t address))          \
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
/* Returns the number of devices. The driver is there. */
int rdt_cuda_device_count(void);
/* Returns the number of the device whose memory is at the address, or -1. The driver is there. */
int rdt_cuda_device_at(uint64_t address);
/* Makes the device current for the calling thread, until rdt_cuda_leave(). */
rdt_status rdt_cuda_enter(int ordinal, const rdt_cuda_device **entered);
void rdt_cuda_leave(void);
/* Records "cannot <what>: <the driver's words>". */
__attribute__((format(printf, 2, 3))) rdt_status rdt_cuda_fail(int error, const char *format, ...);

/* Returns true, and frees the memory later, if other processes have it open (cuda_ipc.c). */
bool rdt_cuda_put_off(uint64_t address);
/* Frees what was put off and nobody has open any more. */
void rdt_cuda_free_due(void);

#endif
