/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators: a group, or the reason why there is none. A handle is checked before it is used, and a communicator is not
 * closed while somebody uses it. All functions may be called from any thread.
 */
#ifndef RDT_MPI_COMMUNICATORS_H
#define RDT_MPI_COMMUNICATORS_H

#include <stdbool.h>

#include "mpi/abi.h"
#include "rdmatensor.h"

typedef struct rdt_mpi_comm {
  rdt_group *group; /* NULL if there is one member, or a cause */
  uint32_t rank, size;
  int *processes; /* `size` ranks in the world; NULL for the world, and if they are not known */
  char cause[RDT_MPI_ERROR_SIZE]; /* why every operation fails; "" if none has to */
  unsigned users;
  bool closing;   /* by rdt_mpi_comms_close */
  bool announced; /* by rdt_mpi_program */
  int color;      /* of an announced one */
  struct rdt_mpi_comm *next;
} rdt_mpi_comm;

/* Returns a communicator that lives until rdt_mpi_comm_leave; NULL, with the text of the failure, if operations on it
 * fail. `function` is for the text. */
rdt_mpi_comm *rdt_mpi_comm_enter(rdt_mpi_handle handle, const char *function);
void rdt_mpi_comm_leave(rdt_mpi_comm *comm);
/* Returns the milliseconds after which an operation fails. */
int rdt_mpi_timeout(void);
/* Fails with the text of the core's last failure, and the processes that the communicator's member numbers stand for. */
int rdt_mpi_comm_fail(const rdt_mpi_comm *comm, const char *function);

/* Lets every operation that begins fail with `cause`; those under way go on. Returns false if the world has not begun, or that
 * was done before. */
bool rdt_mpi_comms_refuse(const char *cause);
/* Ends what is under way, and closes the groups. */
void rdt_mpi_comms_close(void);

#endif
