/* SPDX-License-Identifier: Apache-2.0
 *
 * MPItrampoline's binary interface of MPI, version 2.10: handles are addresses or small numbers, and constants are
 * variables that it reads when it loads the library. Source: https://github.com/eschnett/MPItrampoline.
 */
#ifndef RDT_MPI_ABI_H
#define RDT_MPI_ABI_H

#include <stdint.h>

/* A communicator, datatype, reduction or request. */
typedef uintptr_t rdt_mpi_handle;

#define RDT_MPI_UNKNOWN 0x100 /* constants from here on have no meaning here */

enum rdt_mpi_value {
#define VALUE(name, number) RDT_MPI_##name = (number),
#include "mpi/names.def"
};

/* Sizes of the buffers that callers give, in bytes. */
#define RDT_MPI_ERROR_SIZE 1024
#define RDT_MPI_VERSION_SIZE 8192

#endif
