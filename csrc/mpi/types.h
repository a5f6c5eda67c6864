/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI's datatypes and reductions as those of groups.
 */
#ifndef RDT_MPI_TYPES_H
#define RDT_MPI_TYPES_H

#include "mpi/abi.h"
#include "rdmatensor.h"

/* So many elements of a type. */
typedef struct rdt_mpi_elements {
  rdt_dtype dtype;
  uint64_t count, bytes;
} rdt_mpi_elements;

/* Translates `count` elements of MPI's type. Complex numbers are two floats each. Returns 0, or the error. */
int rdt_mpi_elements_of(rdt_mpi_handle type, int count, const char *function,
                        rdt_mpi_elements *elements);
/* Translates a reduction of MPI's type. Returns 0, or the error: complex numbers can only be added up. */
int rdt_mpi_reduction_of(rdt_mpi_handle op, rdt_mpi_handle type, const char *function,
                         rdt_reduction *reduction);

#endif
