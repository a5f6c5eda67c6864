/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of CUDA devices, which peers open by CUDA IPC. A device copies what they write and read, and the copy has ended
 * when the operation is done. A file that both ends have keeps the owner from freeing the memory meanwhile: its first
 * byte is locked while a peer copies, its second while a peer has the memory open. The kernel drops the locks of a
 * process that dies.
 */
#ifndef RDT_TRANSPORT_SHM_DEVICE_MEMORY_H
#define RDT_TRANSPORT_SHM_DEVICE_MEMORY_H

#include "transport/transport.h"

/* The owner's side. */
typedef struct rdt_shm_shared rdt_shm_shared;
/* RDT_ERR_UNSUPPORTED, with the driver's words, if CUDA does not share this memory. */
rdt_status rdt_shm_device_share(const rdt_region_memory *memory, rdt_shm_shared **shared);
rdt_status rdt_shm_device_export(const rdt_shm_shared *shared, rdt_bundle *bundle);
/* From now on operations fail. Waits for those that are copying, at most as long as DEADLINE_MS says. */
void rdt_shm_device_end(rdt_shm_shared *shared);

/* The peer's side. */
typedef struct rdt_shm_opened rdt_shm_opened;
/* Reports whether the bundle is of rdt_shm_device_export. */
bool rdt_shm_is_device(const rdt_bundle *bundle);
/* Takes the descriptor out of the bundle. RDT_ERR_UNSUPPORTED, with the remedy, if this process cannot open it. */
rdt_status rdt_shm_device_open(const rdt_region_memory *claimed, rdt_bundle *bundle,
                               rdt_shm_opened **opened);
/* `local` is host memory, or a CUDA device's. Any thread. */
rdt_status rdt_shm_device_write(rdt_shm_opened *opened, uint64_t offset, const void *local,
                                uint64_t size);
rdt_status rdt_shm_device_read(rdt_shm_opened *opened, uint64_t offset, void *local, uint64_t size);
void rdt_shm_device_close(rdt_shm_opened *opened);

#endif
