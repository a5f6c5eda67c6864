/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered memory of a device's groups, in blocks of powers of two that are used again: registering costs
 * more than most operations.
 */
#include <stdlib.h>

#include "core/group/group.h"

#define SMALLEST 16u /* 64 KB */

static unsigned class_of(uint64_t size) {
  unsigned class = SMALLEST;
  while (class < 62 && (1ull << class) < size) class++;
  return class;
}

static rdt_block *block_new(rdt_groups *groups, uint64_t size) {
  rdt_region_info info;
  rdt_block *block = calloc(1, sizeof(*block));
  if (!block) return NULL;
  if (rdt_region_alloc(groups->device, size, RDT_ACCESS_READ | RDT_ACCESS_WRITE, NULL,
                       &block->region) != RDT_OK) {
    free(block);
    return NULL;
  }
  rdt_region_get_info(block->region, &info);
  block->address = info.address;
  block->size = size;
  block->key = info.key;
  return block;
}

rdt_block *rdt_scratch_take(rdt_groups *groups, uint64_t size) {
  unsigned class = class_of(size);
  pthread_mutex_lock(&groups->ready_lock);
  rdt_block *block = groups->blocks[class];
  if (block) groups->blocks[class] = block->next;
  pthread_mutex_unlock(&groups->ready_lock);
  return block ? block : block_new(groups, 1ull << class);
}

void rdt_scratch_give(rdt_groups *groups, rdt_block *block) {
  if (!block) return;
  unsigned class = class_of(block->size);
  pthread_mutex_lock(&groups->ready_lock);
  block->next = groups->blocks[class];
  groups->blocks[class] = block;
  pthread_mutex_unlock(&groups->ready_lock);
}
