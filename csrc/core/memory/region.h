/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEMORY_REGION_H
#define RDT_CORE_MEMORY_REGION_H

#include "core/objects.h"

/* Allocates, registers and adds a region that the channel's peer asked for, and that ends with it. */
rdt_status rdt_region_create_for_tenant(rdt_channel *channel, uint64_t size, uint32_t access,
                                        uint64_t *key);
/* Describes the region with `key`, or, if `name` is not empty, with that name, and how the channel's
 * peer can import it. */
rdt_status rdt_region_export(const rdt_channel *channel, uint64_t key, const char *name,
                             rdt_region_info *info, rdt_bundle *bundle);
/* The region that holds [address, address + size), grants peers `access`, and reaches the channel's peer:
 * its key, and where in it the bytes lie. False if there is none. */
bool rdt_region_at(const rdt_channel *channel, const void *address, uint64_t size, uint32_t access,
                   uint64_t *key, uint64_t *offset);
/* Frees the regions that the channel's peer allocated; with NULL, all of them. */
void rdt_regions_free(rdt_device *device, const rdt_channel *tenant);

#endif
