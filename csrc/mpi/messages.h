/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between two members of a communicator, and the requests of those that are under way.
 */
#ifndef RDT_MPI_MESSAGES_H
#define RDT_MPI_MESSAGES_H

/* Ends the requests that nobody waits for. From any thread. */
void rdt_mpi_requests_end(void);

#endif
