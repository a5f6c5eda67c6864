/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that is not of rdt_memory_alloc, such as a file that is mapped or an array of another library. Its pages cannot
 * be shared, so the kernel copies what a peer reads (process_vm_readv), if it lets that peer. The owner may withdraw the
 * region at any time, after which its addresses hold something else: a page that both share tells, and a reader looks
 * at it after each read. Nothing can stop a writer in the same way, so peers do not write.
 */
#ifndef RDT_TRANSPORT_SHM_LENT_H
#define RDT_TRANSPORT_SHM_LENT_H

#include "transport/transport.h"

/* The owner's side. */
typedef struct rdt_shm_lent rdt_shm_lent;
/* RDT_ERR_UNSUPPORTED if peers may do more than read. */
rdt_status rdt_shm_lend(const rdt_region_memory *memory, rdt_shm_lent **lent);
rdt_status rdt_shm_lent_export(const rdt_shm_lent *lent, rdt_bundle *bundle);
/* From now on reads fail. */
void rdt_shm_lent_end(rdt_shm_lent *lent);

/* The peer's side. */
typedef struct rdt_shm_borrowed rdt_shm_borrowed;
/* Reports whether the bundle is of rdt_shm_lent_export. */
bool rdt_shm_is_lent(const rdt_bundle *bundle);
/* Takes the descriptors out of the bundle. RDT_ERR_UNSUPPORTED, with the remedy, if the kernel does not let this
 * process read. */
rdt_status rdt_shm_borrow(rdt_bundle *bundle, rdt_shm_borrowed **borrowed);
rdt_status rdt_shm_borrowed_read(const rdt_shm_borrowed *borrowed, uint64_t offset, void *to,
                                 uint64_t size);
void rdt_shm_give_back(rdt_shm_borrowed *borrowed);

#endif
