/* SPDX-License-Identifier: Apache-2.0
 *
 * librdmatensor_mpi.so: the part of MPI that XLA's collectives on CPUs call, over a group. jaxlib loads the library through
 * MPItrampoline (the variable MPITRAMPOLINE_LIB); rdmatensor/jax.py gives it the group of all processes by these
 * functions. They may be called from any thread.
 */
#ifndef RDT_MPI_MPI_H
#define RDT_MPI_MPI_H

#include "rdmatensor.h"

/* Makes `world` the communicator of all processes, MPI_COMM_WORLD. It is borrowed until rdt_mpi_end. Each operation fails
 * after `timeout_ms` > 0. RDT_ERR_INVALID: NULL, or there is one already. */
RDT_API rdt_status rdt_mpi_begin(rdt_group *world, int timeout_ms);
/* Tells of the cliques of a program that begins, in the order in which XLA needs them, and for each of them the number of its first
 * device, how many devices it has, and the ranks of their processes. MPI_Comm_split then makes the group of the first one that
 * fits, and for which there is no communicator yet; it fails if none fits. Without this function, all processes have to call
 * MPI_Comm_split at the same time. `count` is that of all numbers. RDT_ERR_INVALID, RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_mpi_program(const int32_t *numbers, uint32_t count);
/* Ends every operation, here and at the others, also those that begin later, with a text that holds the first 511 bytes of
 * `text`: this process has failed, and nobody should wait for it. Does nothing before rdt_mpi_begin. */
RDT_API void rdt_mpi_abort(const char *text);
/* Ends what is under way here, and closes all communicators. Afterwards nobody uses the group, and operations fail; MPI_Comm_free
 * still works. Does nothing before rdt_mpi_begin, or again. */
RDT_API void rdt_mpi_end(void);

#endif
