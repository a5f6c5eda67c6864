/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI's operations that concern all members of a communicator.
 */
#include <string.h>

#include "mpi/communicators.h"
#include "mpi/errors.h"
#include "mpi/memory.h"
#include "mpi/types.h"

/* Runs an operation of `bytes` bytes of input, of an all-reduce or all-gather, or of output; both are equal where there is
 * one member. */
static int run(rdt_mpi_handle handle, const char *function, rdt_collective *call, uint64_t bytes) {
  if (call->input == (const void *)RDT_MPI_IN_PLACE || call->output == (void *)RDT_MPI_IN_PLACE)
    return rdt_mpi_fail("%s: rdmatensor does not know MPI_IN_PLACE", function);
  rdt_mpi_comm *comm = rdt_mpi_comm_enter(handle, function);
  if (!comm) return RDT_MPI_ERR_OTHER;
  int error = RDT_MPI_SUCCESS;
  call->struct_size = sizeof(*call);
  call->timeout_ms = rdt_mpi_timeout();
  rdt_mpi_populate(call->output, call->kind == RDT_ALL_GATHER ? bytes * comm->size : bytes);
  if (!comm->group) {
    if (call->input != call->output && bytes) memcpy(call->output, call->input, bytes);
  } else if (rdt_group_run(comm->group, call) != RDT_OK) {
    error = rdt_mpi_comm_fail(comm, function);
  }
  rdt_mpi_comm_leave(comm);
  return error;
}

RDT_API int MPIABI_Allreduce(const void *input, void *output, int count, rdt_mpi_handle type,
                             rdt_mpi_handle op, rdt_mpi_handle comm);
int MPIABI_Allreduce(const void *input, void *output, int count, rdt_mpi_handle type,
                     rdt_mpi_handle op, rdt_mpi_handle comm) {
  static const char function[] = "MPI_Allreduce";
  rdt_collective call = {.kind = RDT_ALL_REDUCE, .input = input, .output = output};
  rdt_mpi_elements elements;
  if (rdt_mpi_elements_of(type, count, function, &elements) ||
      rdt_mpi_reduction_of(op, type, function, &call.op))
    return RDT_MPI_ERR_OTHER;
  call.dtype = elements.dtype;
  call.count = elements.count;
  return run(comm, function, &call, elements.bytes);
}

RDT_API int MPIABI_Allgather(const void *input, int count, rdt_mpi_handle type, void *output,
                             int each, rdt_mpi_handle output_type, rdt_mpi_handle comm);
int MPIABI_Allgather(const void *input, int count, rdt_mpi_handle type, void *output, int each,
                     rdt_mpi_handle output_type, rdt_mpi_handle comm) {
  static const char function[] = "MPI_Allgather";
  rdt_mpi_elements elements;
  if (rdt_mpi_elements_of(type, count, function, &elements)) return RDT_MPI_ERR_OTHER;
  if (count != each || type != output_type)
    return rdt_mpi_fail("%s: what is sent and what is received must have one type and number",
                        function);
  rdt_collective call = {.kind = RDT_ALL_GATHER,
                         .dtype = elements.dtype,
                         .input = input,
                         .output = output,
                         .count = elements.count};
  return run(comm, function, &call, elements.bytes);
}

/* Returns the number of members that a failed operation would have had, or 0 with the error. */
static int size_of(rdt_mpi_handle handle, const char *function) {
  rdt_mpi_comm *comm = rdt_mpi_comm_enter(handle, function);
  if (!comm) return 0;
  const int size = (int)comm->size;
  rdt_mpi_comm_leave(comm);
  return size;
}

RDT_API int MPIABI_Reduce_scatter(const void *input, void *output, const int *counts,
                                  rdt_mpi_handle type, rdt_mpi_handle op, rdt_mpi_handle comm);
int MPIABI_Reduce_scatter(const void *input, void *output, const int *counts, rdt_mpi_handle type,
                          rdt_mpi_handle op, rdt_mpi_handle comm) {
  static const char function[] = "MPI_Reduce_scatter";
  rdt_collective call = {.kind = RDT_REDUCE_SCATTER, .input = input, .output = output};
  rdt_mpi_elements elements;
  const int size = size_of(comm, function);
  if (!size || rdt_mpi_elements_of(type, counts[0], function, &elements) ||
      rdt_mpi_reduction_of(op, type, function, &call.op))
    return RDT_MPI_ERR_OTHER;
  for (int i = 1; i < size; i++)
    if (counts[i] != counts[0])
      return rdt_mpi_fail("%s: all members must get equally many elements", function);
  call.dtype = elements.dtype;
  call.count = elements.count * (uint64_t)size;
  return run(comm, function, &call, elements.bytes);
}
