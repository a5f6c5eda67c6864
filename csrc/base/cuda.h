/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of CUDA, libcuda.so.1, opened when it is first needed. The public functions on CUDA memory are here too.
 *
 * Copies run on streams of this library and are complete on return. The streams wait for what the program queued before
 * on the default stream, where most programs work. Of work on other streams they know nothing.
 */
#ifndef RDT_BASE_CUDA_H
#define RDT_BASE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* Returns RDT_ERR_INVALID unless [address, address + size) is memory of one CUDA device. */
rdt_status rdt_cuda_check(const void *address, uint64_t size);
/* Does what rdt_cuda_copy does, for a peer's operation: it waits for no work that rdt_cuda_stream ordered before the
 * program's own copies. */
rdt_status rdt_cuda_copy_for_peer(void *to, const void *from, uint64_t size);

/* CUDA IPC: memory of a device, used by another process of this host. */
/* Describes memory to another process, which must check it: a peer can send any bytes. */
typedef struct rdt_cuda_export {
  uint8_t handle[64];        /* of the allocation */
  uint8_t device[16];        /* the device's UUID */
  uint64_t offset;           /* of the memory in its allocation */
  uint64_t process, address; /* a random number; where it is in that process */
} rdt_cuda_export;
/* RDT_ERR_UNSUPPORTED, with the driver's words, for memory that the driver does not share. */
rdt_status rdt_cuda_get_export(const void *address, uint64_t size, rdt_cuda_export *made);
/* Makes the memory usable here, where *address is what rdt_cuda_copy takes; give it to rdt_cuda_close. An allocation is
 * opened once, however often this is called. RDT_ERR_UNSUPPORTED, with the driver's words, if it cannot be opened. */
rdt_status rdt_cuda_open(const rdt_cuda_export *given, uint64_t size, void **address);
/* Closes `file` after the memory: later, if a copy that was given up still runs. */
void rdt_cuda_close(void *address, int file);
/* Reports whether such copies may still use the memory's device. */
bool rdt_cuda_is_used(const void *address);
/* The memory was exported and others may have it open: rdt_cuda_free waits with it until nobody holds a lock of `file`
 * (F_OFD_SETLK), whose descriptor is now this function's. */
void rdt_cuda_free_after(const void *address, int file);

#endif
