/* SPDX-License-Identifier: Apache-2.0 */
#include "core/memory/region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "core/post/channel.h"
#include "core/post/transfer.h"
#include "transport/atomic.h"
#include "transport/memory_kind.h"
#include "transport/registry.h"

static rdt_status check_arguments(const rdt_device *device, uint64_t size, uint32_t access,
                                  const char *name, rdt_region **region) {
  if (!device || !region) return rdt_fail(RDT_ERR_INVALID, "device and region must not be NULL");
  rdt_status status = rdt_device_check(device);
  if (status != RDT_OK) return status;
  if (size == 0 || size > SIZE_MAX / 2)
    return rdt_fail(RDT_ERR_INVALID, "a region cannot have %llu bytes", (unsigned long long)size);
  if (access & ~(uint32_t)(RDT_ACCESS_READ | RDT_ACCESS_WRITE))
    return rdt_fail(RDT_ERR_INVALID, "access %u is not a combination of READ (1) and WRITE (2)",
                    access);
  if (name && strlen(name) >= RDT_REGION_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a region's name has at most %d bytes",
                    RDT_REGION_NAME_SIZE - 1);
  return RDT_OK;
}

static rdt_region *find_locked(rdt_device *device, uint64_t key, const char *name) {
  rdt_region *each = device->regions;
  while (each && (name[0] ? strcmp(each->name, name) != 0 : each->key != key)) each = each->next;
  return each;
}

static rdt_status insert(rdt_device *device, rdt_region *added) {
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&device->lock);
  if (device->closing || (added->tenant && added->tenant->released)) {
    status = rdt_fail(RDT_ERR_CLOSED, "device %s is closing, or the peer is gone", device->name);
  } else if (added->name[0] && find_locked(device, 0, added->name)) {
    status = rdt_fail(RDT_ERR_INVALID, "device %s already has a region named \"%s\"", device->name,
                      added->name);
  } else {
    added->next = device->regions;
    device->regions = added;
    rdt_count(&device->counters.regions, 1);
    rdt_count(&device->counters.region_bytes, added->memory.size);
  }
  pthread_mutex_unlock(&device->lock);
  return status;
}

static void deregister(rdt_region *region) {
  for (size_t i = 0; i < rdt_transport_count; i++)
    if (region->registrations[i])
      region->device->transports[i].ops->region_deregister(region->registrations[i]);
}

/* Registers the memory with every transport that can share it, and takes its kind. There must be at least one. */
static rdt_status register_memory(rdt_device *device, rdt_region *region) {
  rdt_status first = RDT_OK;
  size_t registered = 0, failed = 0;
  char why[512] = "";
  for (size_t i = 0; i < rdt_transport_count; i++) {
    const rdt_device_transport *each = &device->transports[i];
    if (!each->open) continue;
    rdt_status status = rdt_memory_kind_check(each->ops, region->memory.kind);
    if (status == RDT_OK)
      status = each->ops->region_register(each->domain, &region->memory, &region->registrations[i]);
    registered += status == RDT_OK;
    if (status == RDT_OK || failed++ > 0) continue;
    first = status;
    snprintf(why, sizeof(why), "%s", rdt_last_error());
  }
  if (registered == 0) return rdt_fail(first, "%s", why);
  /* That a transport cannot share foreign memory is expected; a limit is not. */
  if (failed > 0)
    rdt_log(first == RDT_ERR_UNSUPPORTED ? RDT_LOG_DEBUG : RDT_LOG_WARN,
            "device %s: not every peer can reach a region of %llu bytes: %s", device->name,
            (unsigned long long)region->memory.size, why);
  return RDT_OK;
}

static void free_region(rdt_region *region) {
  deregister(region);
  if (region->memory.address && region->pool)
    rdt_pool_give_back(region->pool, region->memory.address, region->memory.size);
  else if (region->memory.address && region->owned)
    rdt_memory_free(region->memory.address);
  free(region);
}

/* Only the channel's peer may open the region. On devices that can tell peers apart, only that
 * peer can reach it. */
static rdt_status reserve_for(rdt_region *region, rdt_channel *channel) {
  rdt_registration *registration = region->registrations[rdt_transport_index(channel->transport)];
  if (!registration)
    return rdt_fail(RDT_ERR_UNSUPPORTED, "transport %s cannot share the region",
                    channel->transport->name);
  return rdt_channel_grant(channel, registration);
}

/* There may be thousands of regions for one peer, some for each graph of a program. Those that the peer may
 * write to lie in one file: over shared memory, whoever may open one of them can reach all of it. */
static rdt_status allocate(rdt_region *region) {
  if (!region->pool) return rdt_memory_alloc(region->memory.size, &region->memory.address);
  return rdt_pool_take(region->pool, region->memory.size, &region->memory.address);
}

/* Creates a region like `region`, which lacks the key, the registrations and, if memory is to be
 * allocated, the address. With `only`, it is for that channel's peer alone. `out` and `key` may
 * be NULL. */
static rdt_status create(const rdt_region *region, rdt_channel *only, rdt_region **out,
                         uint64_t *key) {
  rdt_region *added = malloc(sizeof(*added));
  if (!added) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *added = *region;
  added->owned = added->memory.address == NULL;
  added->memory.one_peer = only != NULL;
  added->reserved_for = only ? only->number : 0;
  /* A random key is never reused, so an old key opens no new region. */
  rdt_status status = rdt_random_id(&added->key);
  if (status == RDT_OK && added->owned) status = allocate(added);
  if (status == RDT_OK) status = register_memory(added->device, added);
  if (status == RDT_OK && only) status = reserve_for(added, only);
  uint64_t added_key = added->key; /* a tenant's region may be freed with its channel at any time */
  if (status == RDT_OK) status = insert(added->device, added);
  if (status != RDT_OK) {
    free_region(added);
    return status;
  }
  if (out) *out = added;
  if (key) *key = added_key;
  return RDT_OK;
}

static rdt_status create_own(rdt_device *device, rdt_memory_kind kind, void *address, uint64_t size,
                             uint32_t access, const char *name, rdt_channel *only,
                             rdt_region **region) {
  rdt_status status = check_arguments(device, size, access, name, region);
  if (status != RDT_OK) return status;
  rdt_region wanted = {.device = device, .memory = {address, size, access, kind, false}};
  if (name) memcpy(wanted.name, name, strlen(name));
  if (!address && only && access == RDT_ACCESS_WRITE) wanted.pool = only->pool;
  return create(&wanted, only, region, NULL);
}

rdt_status rdt_region_alloc(rdt_device *device, uint64_t size, uint32_t access, const char *name,
                            rdt_region **region) {
  return create_own(device, RDT_MEMORY_HOST, NULL, size, access, name, NULL, region);
}

rdt_status rdt_region_alloc_for(rdt_channel *channel, uint64_t size, uint32_t access,
                                rdt_region **region) {
  if (!channel) return rdt_fail(RDT_ERR_INVALID, "channel must not be NULL");
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "rdt_region_alloc_for waits: not from a handler");
  return create_own(channel->device, RDT_MEMORY_HOST, NULL, size, access, NULL, channel, region);
}

rdt_status rdt_region_register(rdt_device *device, void *address, uint64_t size, uint32_t access,
                               const char *name, rdt_region **region) {
  return rdt_region_register_kind(device, RDT_MEMORY_HOST, address, size, access, name, region);
}

rdt_status rdt_region_register_kind(rdt_device *device, rdt_memory_kind kind, void *address,
                                    uint64_t size, uint32_t access, const char *name,
                                    rdt_region **region) {
  if (device && region && !address) return rdt_fail(RDT_ERR_INVALID, "no address to register");
  if (device && region && kind == RDT_MEMORY_CUDA && size > 0) {
    rdt_status status = rdt_cuda_check(address, size);
    if (status != RDT_OK) return status;
  }
  return create_own(device, kind, address, size, access, name, NULL, region);
}

rdt_status rdt_region_create_for_tenant(rdt_channel *channel, uint64_t size, uint32_t access,
                                        uint64_t *key) {
  rdt_region wanted = {.device = channel->device,
                       .tenant = channel,
                       .memory = {.size = size, .access = access, .kind = RDT_MEMORY_HOST}};
  if (access & RDT_ACCESS_WRITE) wanted.pool = channel->pool;
  return create(&wanted, channel, NULL, key);
}

rdt_status rdt_region_get_info(const rdt_region *region, rdt_region_info *info) {
  if (!region || !info) return rdt_fail(RDT_ERR_INVALID, "region and info must not be NULL");
  *info = (rdt_region_info){.address = region->memory.address,
                            .size = region->memory.size,
                            .key = region->key,
                            .access = region->memory.access};
  return RDT_OK;
}

/* Reports whether every peer over the transport can use the region. */
static bool reaches(const rdt_region *region, const rdt_transport *transport) {
  const rdt_registration *registration = region->registrations[rdt_transport_index(transport)];
  return registration && !(transport->region_is_lent && transport->region_is_lent(registration));
}

int rdt_region_reaches(const rdt_region *region, const rdt_channel *channel) {
  if (!region || !channel || region->device != channel->device) return 0;
  return reaches(region, channel->transport);
}

static void uncount(rdt_region *region) {
  rdt_count(&region->device->counters.regions, (uint64_t)-1);
  rdt_count(&region->device->counters.region_bytes, -region->memory.size);
  if (region->tenant) rdt_admission_release(&region->device->admission, region->memory.size);
}

void rdt_region_free_detached(rdt_region *region) {
  uncount(region);
  free_region(region);
}

/* A forked child leaves its copy alone, because threads that only the parent has may hold the
 * locks. */
void rdt_region_close(rdt_region *region) {
  if (!region || region->device->fork_epoch != rdt_forks_epoch()) return;
  rdt_device *device = region->device;
  pthread_mutex_lock(&device->lock);
  rdt_region **link = &device->regions;
  while (*link && *link != region) link = &(*link)->next;
  if (*link) *link = region->next;
  pthread_mutex_unlock(&device->lock);
  rdt_region_free_detached(region);
}

rdt_region *rdt_region_detach_tenants(const rdt_channel *channel, uint64_t key) {
  rdt_device *device = channel->device;
  pthread_mutex_lock(&device->lock);
  rdt_region **link = &device->regions;
  while (*link && ((*link)->key != key || (*link)->tenant != channel)) link = &(*link)->next;
  rdt_region *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&device->lock);
  return found;
}

void rdt_regions_free(rdt_device *device, const rdt_channel *tenant) {
  rdt_region *freed = NULL;
  pthread_mutex_lock(&device->lock);
  for (rdt_region **link = &device->regions; *link;) {
    rdt_region *each = *link;
    if (tenant && each->tenant != tenant) {
      link = &each->next;
      continue;
    }
    *link = each->next;
    each->next = freed;
    freed = each;
  }
  pthread_mutex_unlock(&device->lock);
  while (freed) {
    rdt_region *next = freed->next;
    rdt_region_free_detached(freed);
    freed = next;
  }
}

bool rdt_region_at(const rdt_channel *channel, const void *address, uint64_t size, uint32_t access,
                   uint64_t *key, uint64_t *offset) {
  rdt_device *device = channel->device;
  pthread_mutex_lock(&device->lock);
  const rdt_region *each = device->regions;
  for (; each; each = each->next) {
    uint64_t start = (uintptr_t)address - (uintptr_t)each->memory.address;
    if (start < each->memory.size && size <= each->memory.size - start && !each->reserved_for &&
        (each->memory.access & access) == access && reaches(each, channel->transport))
      break;
  }
  if (each) {
    *key = each->key;
    *offset = (uintptr_t)address - (uintptr_t)each->memory.address;
  }
  pthread_mutex_unlock(&device->lock);
  return each != NULL;
}

static rdt_status export_locked(const rdt_channel *channel, const rdt_region *found,
                                rdt_bundle *bundle) {
  rdt_registration *registration = found->registrations[rdt_transport_index(channel->transport)];
  if (found->memory.access == RDT_ACCESS_NONE)
    return rdt_fail(RDT_ERR_ACCESS,
                    "region %#llx is not open to peers: give it access READ or WRITE",
                    (unsigned long long)found->key);
  if (!registration && found->memory.kind != RDT_MEMORY_HOST)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "region %#llx lies in memory of kind %s, which transport %s cannot share: "
                    "connect to this device over tcp",
                    (unsigned long long)found->key, rdt_memory_kind_name(found->memory.kind),
                    channel->transport->name);
  if (!registration)
    return rdt_fail(RDT_ERR_UNSUPPORTED,
                    "region %#llx lies in memory that transport %s cannot share: have the "
                    "device allocate it",
                    (unsigned long long)found->key, channel->transport->name);
  return channel->transport->region_export(registration, bundle);
}

/* A device that is atomic only with itself would not see what others do over another transport: a sum would be
 * wrong without a word. */
static rdt_region_atomics atomics_of(const rdt_channel *channel, const rdt_region *region) {
  size_t transports = 0;
  if (region->memory.kind != RDT_MEMORY_HOST) return RDT_REGION_DEVICE;
  for (size_t i = 0; i < rdt_transport_count; i++) transports += region->registrations[i] != NULL;
  if (!rdt_atomic_aligned(region->memory.address)) return RDT_REGION_UNALIGNED;
  bool mixed = transports > 1 && !region->reserved_for;
  return mixed && rdt_channel_atomics(channel) == RDT_ATOMICS_DEVICE ? RDT_REGION_MIXED
                                                                     : RDT_REGION_ATOMIC;
}

rdt_status rdt_region_export(const rdt_channel *channel, uint64_t key, const char *name,
                             rdt_region_info *info, rdt_region_atomics *atomics,
                             rdt_bundle *bundle) {
  rdt_device *device = channel->device;
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&device->lock);
  const rdt_region *found = find_locked(device, key, name);
  if (found && found->reserved_for && found->reserved_for != channel->number) found = NULL;
  if (found) {
    rdt_region_get_info(found, info);
    *atomics = atomics_of(channel, found);
    status = export_locked(channel, found, bundle);
  }
  pthread_mutex_unlock(&device->lock);
  if (found) return status;
  if (name[0])
    return rdt_fail(RDT_ERR_NO_REGION, "device %s has no region named \"%s\"", device->name, name);
  return rdt_fail(RDT_ERR_NO_REGION, "device %s has no region with key %#llx", device->name,
                  (unsigned long long)key);
}
