/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI's datatypes and reductions as those of groups.
 */
#include "mpi/types.h"

#include "mpi/errors.h"

static const struct {
  rdt_dtype dtype;
  unsigned each; /* numbers in an element */
} types[] = {
    [RDT_MPI_BYTE] = {RDT_UINT8, 1},
    [RDT_MPI_INT8_T] = {RDT_INT8, 1},
    [RDT_MPI_UINT8_T] = {RDT_UINT8, 1},
    [RDT_MPI_INT16_T] = {RDT_INT16, 1},
    [RDT_MPI_UINT16_T] = {RDT_UINT16, 1},
    [RDT_MPI_INT32_T] = {RDT_INT32, 1},
    [RDT_MPI_UINT32_T] = {RDT_UINT32, 1},
    [RDT_MPI_INT64_T] = {RDT_INT64, 1},
    [RDT_MPI_UINT64_T] = {RDT_UINT64, 1},
    [RDT_MPI_FLOAT] = {RDT_FLOAT32, 1},
    [RDT_MPI_DOUBLE] = {RDT_FLOAT64, 1},
    [RDT_MPI_C_COMPLEX] = {RDT_FLOAT32, 2},
    [RDT_MPI_C_DOUBLE_COMPLEX] = {RDT_FLOAT64, 2},
};

int rdt_mpi_elements_of(rdt_mpi_handle type, int count, const char *function,
                        rdt_mpi_elements *elements) {
  if (type >= sizeof(types) / sizeof(types[0]) || !types[type].each)
    return rdt_mpi_fail("%s: rdmatensor does not know MPI's datatype %llu", function,
                        (unsigned long long)type);
  if (count < 0)
    return rdt_mpi_fail(
        "%s: more than 2147483647 elements, or bytes, which XLA cannot tell MPI: cut the array",
        function);
  elements->dtype = types[type].dtype;
  elements->count = (uint64_t)count * types[type].each;
  elements->bytes = elements->count * rdt_dtype_size(elements->dtype);
  return RDT_MPI_SUCCESS;
}

int rdt_mpi_reduction_of(rdt_mpi_handle op, rdt_mpi_handle type, const char *function,
                         rdt_reduction *reduction) {
  static const rdt_reduction reductions[] = {[RDT_MPI_SUM] = RDT_SUM,
                                             [RDT_MPI_PROD] = RDT_PRODUCT,
                                             [RDT_MPI_MIN] = RDT_MIN,
                                             [RDT_MPI_MAX] = RDT_MAX};
  if (op >= sizeof(reductions) / sizeof(reductions[0]) || !reductions[op])
    return rdt_mpi_fail("%s: rdmatensor does not know MPI's reduction %llu", function,
                        (unsigned long long)op);
  if (op != RDT_MPI_SUM && (type == RDT_MPI_C_COMPLEX || type == RDT_MPI_C_DOUBLE_COMPLEX))
    return rdt_mpi_fail("%s: complex numbers can only be added up: gather them, and multiply then",
                        function);
  *reduction = reductions[op];
  return RDT_MPI_SUCCESS;
}
