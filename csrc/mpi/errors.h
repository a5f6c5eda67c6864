/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a thread's last failure, which MPI_Error_string returns: XLA asks for it right after the failure.
 */
#ifndef RDT_MPI_ERRORS_H
#define RDT_MPI_ERRORS_H

/* Sets the text, and returns the error that MPI functions return. */
int rdt_mpi_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails because the library has no function of this name, and writes that into the log: callers may look at no status. */
int rdt_mpi_missing(const char *name);
/* Returns the text of the calling thread's last failure. Valid until its next one. */
const char *rdt_mpi_error(void);

#endif
