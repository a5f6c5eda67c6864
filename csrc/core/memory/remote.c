/* SPDX-License-Identifier: Apache-2.0
 *
 * Remote regions: a peer's memory, opened over a channel. Each is imported once per channel and
 * shared by its handles. The last handle releases it and, on a closing channel, perhaps the peer's
 * lease.
 */
#include "core/memory/remote.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "core/memory/control.h"

/* Takes a reference, unless the last one is being dropped. */
static bool try_ref(rdt_remote_region *region) {
  int refs = atomic_load(&region->refs);
  while (refs > 0)
    if (atomic_compare_exchange_weak(&region->refs, &refs, refs + 1)) return true;
  return false;
}

static rdt_remote_region *find_open(rdt_channel *channel, uint64_t key) {
  pthread_mutex_lock(&channel->lock);
  rdt_remote_region *each = channel->remote_regions;
  while (each && !(each->info.key == key && try_ref(each))) each = each->next;
  pthread_mutex_unlock(&channel->lock);
  return each;
}

static rdt_status check_claim(const rdt_channel *channel, const rdt_region_info *info,
                              rdt_region_atomics atomics) {
  if (info->size == 0 || atomics > RDT_REGION_DEVICE || info->size > SIZE_MAX / 2 ||
      info->access == 0 || (info->access & ~(uint32_t)(RDT_ACCESS_READ | RDT_ACCESS_WRITE)))
    return rdt_fail(RDT_ERR_PROTOCOL, "%s describes an impossible region", channel->peer_name);
  return RDT_OK;
}

/* Limits what a peer that describes ever more regions can take of our address space. */
static rdt_status reserve(rdt_channel *channel, uint64_t size) {
  uint64_t most = rdt_config_number(RDT_CONFIG_REMOTE_REGIONS);
  uint64_t limit = rdt_config_number(RDT_CONFIG_REMOTE_OPEN_LIMIT);
  pthread_mutex_lock(&channel->lock);
  bool few = channel->remote_count < most;
  bool room = few && size <= limit && channel->remote_bytes <= limit - size;
  if (room) {
    channel->remote_count++;
    channel->remote_bytes += size;
  }
  pthread_mutex_unlock(&channel->lock);
  if (room) return RDT_OK;
  return rdt_fail(RDT_ERR_LIMIT, "%s has %llu %s open here, and can have no more: close some",
                  channel->peer_name, (unsigned long long)(few ? limit : most),
                  few ? "bytes" : "regions");
}

static void give_back(rdt_channel *channel, uint64_t size) {
  pthread_mutex_lock(&channel->lock);
  channel->remote_count--;
  channel->remote_bytes -= size;
  pthread_mutex_unlock(&channel->lock);
}

/* Checks that this is the region that was asked for. If asked for by name, its key was not known
 * before. */
static rdt_status check_answer(const rdt_channel *channel, const rdt_region_request *request,
                               const rdt_region_info *info) {
  bool found = request->type == RDT_MESSAGE_FIND;
  if (found ? request->name[0] || info->key == request->key
            : info->size == request->size && info->access == request->access)
    return RDT_OK;
  return rdt_fail(RDT_ERR_PROTOCOL, "%s answers with another region than the one asked for",
                  channel->peer_name);
}

/* On a closing channel the progress thread waits for the last region before it gives the lease
 * back. */
static void remote_region_free(rdt_remote_region *region) {
  rdt_channel *channel = region->channel;
  pthread_mutex_lock(&channel->lock);
  rdt_remote_region **link = &channel->remote_regions;
  while (*link != region) link = &(*link)->next;
  *link = region->next;
  bool last = channel->remote_regions == NULL;
  pthread_mutex_unlock(&channel->lock);
  channel->transport->region_release(region->mapping);
  give_back(channel, region->info.size);
  if (region->allocated && !atomic_load(&channel->down))
    rdt_control_give_back(channel, region);
  else
    free(region);
  if (last && atomic_load(&channel->down)) rdt_device_wake(channel->device);
  rdt_channel_unref(channel);
}

static rdt_status import(rdt_channel *channel, const rdt_region_info *info,
                         rdt_region_atomics atomics, rdt_bundle *bundle, bool allocated,
                         rdt_remote_region **region_out) {
  rdt_region_memory claimed = {.size = info->size, .access = info->access};
  rdt_remote_region *region = calloc(1, sizeof(*region));
  if (!region) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = reserve(channel, info->size);
  if (status == RDT_OK) {
    status = channel->transport->region_import(&claimed, bundle, &region->mapping);
    if (status != RDT_OK) give_back(channel, info->size);
  }
  if (status != RDT_OK) {
    free(region);
    return status;
  }
  atomic_init(&region->refs, 1);
  region->free = remote_region_free;
  region->channel = channel;
  region->allocated = allocated;
  rdt_channel_ref(channel);
  region->info = *info;
  region->atomics = atomics;
  region->info.address = channel->transport->region_address(region->mapping);
  pthread_mutex_lock(&channel->lock);
  region->next = channel->remote_regions;
  channel->remote_regions = region;
  pthread_mutex_unlock(&channel->lock);
  *region_out = region;
  return RDT_OK;
}

static rdt_status ask_and_import(rdt_channel *channel, const rdt_region_request *request,
                                 int timeout_ms, rdt_remote_region **region) {
  rdt_region_info info;
  rdt_region_atomics atomics;
  rdt_bundle bundle;
  if (!channel || !region) return rdt_fail(RDT_ERR_INVALID, "channel and region must not be NULL");
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "opening a remote region waits: not from a handler");
  rdt_status status = rdt_device_check(channel->device);
  if (status == RDT_OK)
    status = rdt_control_ask(channel, request, timeout_ms, &info, &atomics, &bundle);
  if (status != RDT_OK) return status;
  const bool allocated = request->type == RDT_MESSAGE_ALLOC;
  status = check_answer(channel, request, &info);
  rdt_remote_region *open = status == RDT_OK ? find_open(channel, info.key) : NULL;
  if (open) {
    *region = open;
  } else {
    if (status == RDT_OK) status = check_claim(channel, &info, atomics);
    if (status == RDT_OK) status = import(channel, &info, atomics, &bundle, allocated, region);
    if (status != RDT_OK && allocated) rdt_control_give_back_key(channel, info.key);
  }
  rdt_fds_close(&bundle.fds);
  return status;
}

rdt_status rdt_remote_region_open(rdt_channel *channel, uint64_t key, int timeout_ms,
                                  rdt_remote_region **region) {
  rdt_region_request request = {.type = RDT_MESSAGE_FIND, .key = key, .name = ""};
  rdt_remote_region *open = channel && region ? find_open(channel, key) : NULL;
  if (!open) return ask_and_import(channel, &request, timeout_ms, region);
  *region = open;
  return RDT_OK;
}

rdt_status rdt_remote_region_find(rdt_channel *channel, const char *name, int timeout_ms,
                                  rdt_remote_region **region) {
  if (!name || !name[0] || strlen(name) >= RDT_REGION_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a region's name has 1 to %d bytes", RDT_REGION_NAME_SIZE - 1);
  rdt_region_request request = {.type = RDT_MESSAGE_FIND, .name = name};
  return ask_and_import(channel, &request, timeout_ms, region);
}

rdt_status rdt_remote_region_alloc(rdt_channel *channel, uint64_t size, uint32_t access,
                                   int timeout_ms, rdt_remote_region **region) {
  rdt_region_request request = {.type = RDT_MESSAGE_ALLOC, .size = size, .access = access};
  return ask_and_import(channel, &request, timeout_ms, region);
}

bool rdt_channel_holds_regions(rdt_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  bool holds = channel->remote_regions != NULL;
  pthread_mutex_unlock(&channel->lock);
  return holds;
}

rdt_status rdt_remote_region_get_info(const rdt_remote_region *region, rdt_region_info *info) {
  if (!region || !info) return rdt_fail(RDT_ERR_INVALID, "region and info must not be NULL");
  *info = region->info;
  return RDT_OK;
}

uint32_t rdt_remote_region_local_kinds(const rdt_remote_region *region) {
  const rdt_transport *transport = region ? region->channel->transport : NULL;
  if (!transport || !transport->region_local_kinds) return RDT_MEMORY_HOST;
  return transport->region_local_kinds(region->mapping);
}

rdt_status rdt_remote_region_map(rdt_remote_region *region, uint64_t offset, uint64_t size,
                                 void **address) {
  if (!region || !address) return rdt_fail(RDT_ERR_INVALID, "region and address must not be NULL");
  const rdt_transport *transport = region->channel->transport;
  if (!(transport->capabilities & RDT_CAP_MAP))
    return rdt_fail(RDT_ERR_UNSUPPORTED, "transport %s cannot map remote memory: read it instead",
                    transport->name);
  if (offset > region->info.size || size > region->info.size - offset)
    return rdt_fail(RDT_ERR_RANGE, "bytes [%llu, +%llu) lie outside a region of %llu bytes",
                    (unsigned long long)offset, (unsigned long long)size,
                    (unsigned long long)region->info.size);
  if (!region->info.address)
    return rdt_fail(
        RDT_ERR_UNSUPPORTED,
        "the region lies in memory that cannot be mapped by others: read it instead, or "
        "have %s allocate it",
        region->channel->peer_name);
  *address = (char *)region->info.address + offset;
  return RDT_OK;
}
