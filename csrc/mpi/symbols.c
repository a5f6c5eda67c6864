/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines what MPItrampoline looks up and this library does not offer, by the table names.def: constants, and functions that
 * fail with a text that names them.
 */
#include "mpi/abi.h"
#include "mpi/errors.h"
#include "rdmatensor.h"

/* MPItrampoline refuses another major version, and a lower minor version, than its own. */
RDT_API const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
RDT_API const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10,
                  mpiwrapper_version_patch = 0;
RDT_API void mpiwrapper_export_fortran_constants_(void);
void mpiwrapper_export_fortran_constants_(void) {}

enum unknown_value {
  BEFORE_UNKNOWN = RDT_MPI_UNKNOWN,
#define CONSTANT(name) UNKNOWN_##name,
#include "mpi/names.def"
};

/* MPItrampoline reads an int or a word of 8 bytes of each: a little-endian word is both. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "constants are read in two sizes");
#define VALUE(name, number)                   \
  RDT_API extern const int64_t MPIABI_##name; \
  const int64_t MPIABI_##name = (number);
#define CONSTANT(name)                        \
  RDT_API extern const int64_t MPIABI_##name; \
  const int64_t MPIABI_##name = UNKNOWN_##name;
#include "mpi/names.def"

/* The arguments are not read. What is no status but a handle or an address is returned in the same register. */
#define FUNCTION(prefix, name)               \
  RDT_API intptr_t prefix##ABI_##name(void); \
  intptr_t prefix##ABI_##name(void) { return rdt_mpi_missing(#prefix "_" #name); }
#define CLOCK(name)                   \
  RDT_API double MPIABI_##name(void); \
  double MPIABI_##name(void) { return -(double)rdt_mpi_missing("MPI_" #name); }
#include "mpi/names.def"
