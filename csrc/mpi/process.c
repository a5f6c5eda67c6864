/* SPDX-License-Identifier: Apache-2.0
 *
 * The beginning and the end of MPI in this process.
 */
#include <stdio.h>
#include <string.h>

#include "mpi/communicators.h"
#include "mpi/errors.h"
#include "mpi/memory.h"
#include "mpi/messages.h"
#include "mpi/mpi.h"

void rdt_mpi_end(void) {
  if (!rdt_mpi_comms_refuse("this process has left the others")) return;
  rdt_mpi_requests_end();
  rdt_mpi_comms_close();
}

/* Succeeds also if rdmatensor.jax.use() was not called: JAX ignores the result, and operations say why they fail. */
RDT_API int MPIABI_Init_thread(int *count, char ***arguments, int required, int *provided);
int MPIABI_Init_thread(int *count, char ***arguments, int required, int *provided) {
  (void)count, (void)arguments, (void)required;
  *provided = RDT_MPI_THREAD_MULTIPLE;
  rdt_mpi_keep_freed();
  return RDT_MPI_SUCCESS;
}

/* JAX calls this while programs that nobody waited for still run, and others wait for their part. It ends them later, and
 * then rdmatensor.jax calls rdt_mpi_end. */
RDT_API int MPIABI_Finalize(void);
int MPIABI_Finalize(void) { return RDT_MPI_SUCCESS; }

RDT_API int MPIABI_Initialized(int *flag);
int MPIABI_Initialized(int *flag) {
  *flag = 1;
  return RDT_MPI_SUCCESS;
}

RDT_API int MPIABI_Finalized(int *flag);
int MPIABI_Finalized(int *flag) {
  *flag = 0;
  return RDT_MPI_SUCCESS;
}

/* XLA asks for fewer rights than it uses: its pool calls from any thread, and this says that each of them may. */
RDT_API int MPIABI_Is_thread_main(int *flag);
int MPIABI_Is_thread_main(int *flag) {
  *flag = 1;
  return RDT_MPI_SUCCESS;
}

RDT_API int MPIABI_Get_version(int *version, int *subversion);
int MPIABI_Get_version(int *version, int *subversion) {
  *version = 3;
  *subversion = 1;
  return RDT_MPI_SUCCESS;
}

RDT_API int MPIABI_Get_library_version(char *text, int *length);
int MPIABI_Get_library_version(char *text, int *length) {
  *length = snprintf(text, RDT_MPI_VERSION_SIZE, "rdmatensor %s", rdt_version());
  return RDT_MPI_SUCCESS;
}
