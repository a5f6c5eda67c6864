/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of results. XLA allocates it anew for each one, so that a copy would stop at each of its pages.
 */
#ifndef RDT_MPI_MEMORY_H
#define RDT_MPI_MEMORY_H

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define RDT_MPI_POPULATED (1u << 20) /* bytes from which on it pays */
/* The memory of results up to the one size is used again, and the other one is how much of it may be free. */
#define RDT_MPI_KEPT_EACH (32 << 20)
#define RDT_MPI_KEPT_FREE (256 << 20)

/* Lets malloc keep the memory of results that XLA has freed, unless the user has configured that. The kernel would take it back,
 * and clear each page of the next result. */
static inline void rdt_mpi_keep_freed(void) {
  const char *tunables = getenv("GLIBC_TUNABLES");
  if (getenv("MALLOC_TRIM_THRESHOLD_") || getenv("MALLOC_MMAP_THRESHOLD_") ||
      (tunables && (strstr(tunables, "trim_threshold") || strstr(tunables, "mmap_threshold"))))
    return;
  (void)mallopt(M_MMAP_THRESHOLD, RDT_MPI_KEPT_EACH);
  (void)mallopt(M_TRIM_THRESHOLD, RDT_MPI_KEPT_FREE);
}

/* Lets the kernel provide the pages that lie within a result at once, and large ones, if it can. */
static inline void rdt_mpi_populate(void *result, uint64_t bytes) {
  const uintptr_t page = 4096, begin = ((uintptr_t)result + page - 1) & ~(page - 1);
  const uintptr_t end = ((uintptr_t)result + bytes) & ~(page - 1);
  if (bytes < RDT_MPI_POPULATED) return;
  (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
  (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
}

#endif
