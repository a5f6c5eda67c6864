/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of results. XLA allocates it anew for each one, so that a copy would stop at each of its pages.
 */
#ifndef RDT_MPI_MEMORY_H
#define RDT_MPI_MEMORY_H

#include <stdint.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define RDT_MPI_POPULATED (1u << 20) /* bytes from which on it pays */

/* Lets the kernel provide the pages that lie within a result at once, if it can. */
static inline void rdt_mpi_populate(void *result, uint64_t bytes) {
  const uintptr_t page = 4096, begin = ((uintptr_t)result + page - 1) & ~(page - 1);
  const uintptr_t end = ((uintptr_t)result + bytes) & ~(page - 1);
  if (bytes >= RDT_MPI_POPULATED) (void)madvise((void *)begin, end - begin, MADV_POPULATE_WRITE);
}

#endif
