/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory of a device's groups: blocks of powers of two, which are reused because
 * registering costs more than most operations. Small blocks are cut from slabs, because each
 * region costs descriptors and a request by every peer.
 */
#include <stdlib.h>

#include "base/status.h"
#include "group/objects.h"

#define SMALLEST 12u                    /* 4 KB */
#define SLAB_BYTES (4ull * 1024 * 1024) /* larger blocks have regions of their own */

static unsigned class_of(uint64_t size) {
  unsigned class = SMALLEST;
  while (class < 62 && (1ull << class) < size) class++;
  return class;
}

static rdt_status region_new(rdt_groups *groups, uint64_t size, rdt_group_slab *slab) {
  rdt_region *region;
  rdt_region_info info;
  rdt_status status =
      rdt_region_alloc(groups->device, size, RDT_ACCESS_READ | RDT_ACCESS_WRITE, NULL, &region);
  if (status != RDT_OK) return status;
  rdt_region_get_info(region, &info);
  *slab = (rdt_group_slab){.address = info.address, .size = size, .key = info.key};
  return RDT_OK;
}

/* Takes the next `size` bytes of the slab. The rest of a slab that is too short stays unused. */
static rdt_status cut(rdt_groups *groups, uint64_t size, rdt_group_block *block) {
  rdt_group_slab *slab = &groups->slab;
  if (slab->size - slab->used < size) {
    rdt_status status = region_new(groups, SLAB_BYTES, slab);
    if (status != RDT_OK) return status;
  }
  *block = (rdt_group_block){
      .address = slab->address + slab->used, .offset = slab->used, .size = size, .key = slab->key};
  slab->used += size;
  return RDT_OK;
}

static rdt_status block_fill(rdt_groups *groups, uint64_t size, rdt_group_block *block) {
  rdt_group_slab own;
  if (size <= SLAB_BYTES / 2) {
    pthread_mutex_lock(&groups->slab_lock);
    rdt_status status = cut(groups, size, block);
    pthread_mutex_unlock(&groups->slab_lock);
    return status;
  }
  rdt_status status = region_new(groups, size, &own);
  if (status == RDT_OK)
    *block = (rdt_group_block){.address = own.address, .size = size, .key = own.key};
  return status;
}

static rdt_status block_new(rdt_groups *groups, uint64_t size, rdt_group_block **block_out) {
  rdt_group_block *block = malloc(sizeof(*block));
  if (!block) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = block_fill(groups, size, block);
  if (status == RDT_OK)
    *block_out = block;
  else
    free(block);
  return status;
}

rdt_status rdt_group_scratch_take(rdt_groups *groups, uint64_t size, rdt_group_block **block_out) {
  unsigned class = class_of(size);
  pthread_mutex_lock(&groups->ready_lock);
  rdt_group_block *block = groups->blocks[class];
  if (block) groups->blocks[class] = block->next;
  pthread_mutex_unlock(&groups->ready_lock);
  *block_out = block;
  return block ? RDT_OK : block_new(groups, 1ull << class, block_out);
}

void rdt_group_scratch_give(rdt_groups *groups, rdt_group_block *block) {
  if (!block) return;
  unsigned class = class_of(block->size);
  pthread_mutex_lock(&groups->ready_lock);
  block->next = groups->blocks[class];
  groups->blocks[class] = block;
  pthread_mutex_unlock(&groups->ready_lock);
}
