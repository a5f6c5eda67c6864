/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"

enum { PAGE = 4096 };
/* Each block is as large as all before it together, between these. Larger pieces have their own. */
#define FIRST_BLOCK ((size_t)256 << 10)
#define LARGEST_BLOCK ((size_t)64 << 20)
/* Files that are left to the program. */
#define FILES_LEFT 128

typedef struct block {
  struct block *next;
  char *address;
  size_t pages, used;
  bool taken[]; /* by page */
} block;

struct rdt_pool {
  atomic_int refs;
  pthread_mutex_t lock;
  block *blocks;
  size_t total; /* bytes of all blocks */
};

rdt_pool *rdt_pool_create(void) {
  rdt_pool *pool = calloc(1, sizeof(*pool));
  if (!pool) return NULL;
  atomic_init(&pool->refs, 1);
  pthread_mutex_init(&pool->lock, NULL);
  return pool;
}

void rdt_pool_unref(rdt_pool *pool) {
  if (!pool || atomic_fetch_sub(&pool->refs, 1) != 1) return;
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

static rdt_status check_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RDT_OK;
  rlim_t left = limit.rlim_cur / 8 < FILES_LEFT ? limit.rlim_cur / 8 : FILES_LEFT;
  int lowest = eventfd(0, EFD_CLOEXEC); /* the system gives out the lowest free number */
  if (lowest >= 0) close(lowest);
  if (lowest >= 0 && (rlim_t)lowest < limit.rlim_cur - left) return RDT_OK;
  return rdt_fail(RDT_ERR_LIMIT,
                  "nearly all of the %llu files that this process may open are open: raise the "
                  "limit (ulimit -n)",
                  (unsigned long long)limit.rlim_cur);
}

static char *take_from(block *from, size_t pages) {
  size_t run = 0;
  for (size_t page = 0; from->pages - from->used >= pages && page < from->pages; page++) {
    run = from->taken[page] ? 0 : run + 1;
    if (run < pages) continue;
    size_t first = page + 1 - pages;
    memset(&from->taken[first], true, pages);
    from->used += pages;
    return from->address + first * PAGE;
  }
  return NULL;
}

static rdt_status add_block(rdt_pool *pool, size_t size) {
  void *beside = pool->blocks ? pool->blocks->address : NULL;
  rdt_status status = beside ? RDT_OK : check_open_files();
  if (status != RDT_OK) return status;
  block *added = malloc(sizeof(*added) + size / PAGE);
  if (!added) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *added = (block){.pages = size / PAGE, .next = pool->blocks};
  memset(added->taken, false, added->pages);
  status = rdt_memory_alloc_beside(beside, size, (void **)&added->address);
  if (status != RDT_OK) {
    free(added);
    return status;
  }
  pool->blocks = added;
  pool->total += size;
  return RDT_OK;
}

static size_t block_size(const rdt_pool *pool) {
  if (pool->total < FIRST_BLOCK) return FIRST_BLOCK;
  return pool->total < LARGEST_BLOCK ? pool->total : LARGEST_BLOCK;
}

rdt_status rdt_pool_take(rdt_pool *pool, size_t size, void **address) {
  size_t pages = (size + PAGE - 1) / PAGE;
  rdt_status status = RDT_OK;
  char *taken = NULL;
  pthread_mutex_lock(&pool->lock);
  for (block *each = pool->blocks; each && !taken; each = each->next)
    taken = take_from(each, pages);
  if (!taken) {
    size_t regular = block_size(pool);
    status = add_block(pool, regular > pages * PAGE ? regular : pages * PAGE);
    /* Limits may allow what is needed now, but no more. */
    if (status == RDT_ERR_NO_MEMORY && regular > pages * PAGE)
      status = add_block(pool, pages * PAGE);
    if (status == RDT_OK) taken = take_from(pool->blocks, pages);
  }
  pthread_mutex_unlock(&pool->lock);
  if (status != RDT_OK) return status;
  atomic_fetch_add(&pool->refs, 1);
  *address = taken;
  return RDT_OK;
}

void rdt_pool_give_back(rdt_pool *pool, void *address, size_t size) {
  size_t pages = (size + PAGE - 1) / PAGE;
  block *unused = NULL;
  int fd;
  uint64_t offset;
  /* Frees the pages of the file, which read as zeros afterwards. Emulators accept madvise(MADV_REMOVE) without doing
   * it. */
  if (rdt_memory_find(address, pages * PAGE, &fd, &offset) != RDT_OK ||
      fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                (off_t)(pages * PAGE)) != 0)
    memset(address, 0, pages * PAGE);
  pthread_mutex_lock(&pool->lock);
  block **link = &pool->blocks;
  while ((char *)address < (*link)->address ||
         (char *)address >= (*link)->address + (*link)->pages * PAGE)
    link = &(*link)->next;
  block *found = *link;
  memset(&found->taken[(size_t)((char *)address - found->address) / PAGE], false, pages);
  found->used -= pages;
  if (found->used == 0) {
    unused = found;
    *link = found->next;
    pool->total -= found->pages * PAGE;
  }
  pthread_mutex_unlock(&pool->lock);
  if (unused) {
    rdt_memory_free(unused->address);
    free(unused);
  }
  rdt_pool_unref(pool);
}
