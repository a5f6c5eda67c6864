/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a thread's last failure.
 */
#include "mpi/errors.h"

#include <stdarg.h>
#include <stdio.h>

#include "mpi/abi.h"
#include "rdmatensor.h"

static _Thread_local char last[RDT_MPI_ERROR_SIZE];

int rdt_mpi_fail(const char *format, ...) {
  char text[sizeof(last)]; /* an argument may be `last` */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  snprintf(last, sizeof(last), "%s", text);
  return RDT_MPI_ERR_OTHER;
}

int rdt_mpi_missing(const char *name) {
  const int error = rdt_mpi_fail(
      "this MPI has no %s: it has what XLA's collectives on CPUs call, and this jaxlib may call "
      "more",
      name);
  rdt_log_line(RDT_LOG_ERROR, last);
  return error;
}

const char *rdt_mpi_error(void) { return last; }

RDT_API int MPIABI_Error_string(int error, char *text, int *length);
int MPIABI_Error_string(int error, char *text, int *length) {
  *length = snprintf(text, RDT_MPI_ERROR_SIZE, "%s", error == RDT_MPI_SUCCESS ? "no error" : last);
  return RDT_MPI_SUCCESS;
}
