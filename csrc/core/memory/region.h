/* SPDX-License-Identifier: Apache-2.0
 *
 * Local memory that peers may access, and the keys that open it.
 */
#ifndef RDT_CORE_MEMORY_REGION_H
#define RDT_CORE_MEMORY_REGION_H

#include "core/objects.h"

/* Allocates, registers and adds a region for the channel's peer. It ends with the channel at the latest. */
rdt_status rdt_region_create_for_tenant(rdt_channel *channel, uint64_t size, uint32_t access,
                                        uint64_t *key);
/* Describes the region with `key`, or with `name` unless that is empty, what the channel's peer may do with it,
 * and how it can import it. */
rdt_status rdt_region_export(const rdt_channel *channel, uint64_t key, const char *name,
                             rdt_region_info *info, rdt_region_atomics *atomics,
                             rdt_bundle *bundle);
/* Finds the region that holds [address, address + size), grants peers `access`, and reaches the
 * channel's peer. Returns its key and the offset of the bytes in it, or false if there is none. */
bool rdt_region_at(const rdt_channel *channel, const void *address, uint64_t size, uint32_t access,
                   uint64_t *key, uint64_t *offset);
/* Takes a region that the channel's peer allocated out of the device, so that nobody finds it any more. Returns NULL if
 * there is none with that key. */
rdt_region *rdt_region_detach_tenants(const rdt_channel *channel, uint64_t key);
/* Frees what that returned. Deregistering may take long. */
void rdt_region_free_detached(rdt_region *region);
/* Frees the regions that the peer of `tenant` allocated, or all regions if it is NULL. */
void rdt_regions_free(rdt_device *device, const rdt_channel *tenant);

#endif
