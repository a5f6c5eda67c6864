/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between two members. XLA forgets the other requests of a thread when one of them fails, and frees their buffers:
 * so a failure ends all of them, and returns when nobody touches the buffers any more.
 */
#include "mpi/messages.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "mpi/communicators.h"
#include "mpi/errors.h"
#include "mpi/memory.h"
#include "mpi/types.h"

typedef struct request {
  rdt_transfer *transfer;
  rdt_mpi_comm *comm;
  uint64_t tag[2]; /* names the message in the group */
  pthread_t owner; /* the thread that began it */
  struct request *next;
} request;

/* The arguments that describe a message to MPI's functions. */
typedef struct message {
  void *buffer;
  int count;
  rdt_mpi_handle type;
  int peer, tag;
} message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static request *requests;
static atomic_uint_fast64_t numbers = 1;

/* Waits for the end, which the time-out of the message bounds, and frees the request. */
static int finish(request *done, const char *function) {
  int error = RDT_MPI_SUCCESS;
  if (rdt_transfer_wait(done->transfer, INT_MAX) != RDT_OK)
    error = rdt_mpi_comm_fail(done->comm, function);
  rdt_transfer_free(done->transfer);
  rdt_mpi_comm_leave(done->comm);
  free(done);
  return error;
}

/* Takes a request off the list: the one with this handle, or, without one, any of the thread, or of all threads. */
static request *take(rdt_mpi_handle handle, const pthread_t *owner) {
  pthread_mutex_lock(&lock);
  request **link = &requests;
  while (*link && ((handle && (rdt_mpi_handle)*link != handle) ||
                   (owner && !pthread_equal((*link)->owner, *owner))))
    link = &(*link)->next;
  request *found = *link;
  if (found) *link = found->next;
  pthread_mutex_unlock(&lock);
  return found;
}

/* Ends the requests of a thread, or of all, and waits until nobody touches their buffers. */
static void abandon(const pthread_t *owner) {
  for (request *each = take(0, owner); each; each = take(0, owner)) {
    rdt_group_cancel(each->comm->group, each->tag);
    finish(each, "");
  }
}

void rdt_mpi_requests_end(void) { abandon(NULL); }

/* Fails with the text that there is, after the end of what this thread has begun. */
static int fail_all(void) {
  char text[RDT_MPI_ERROR_SIZE];
  const pthread_t self = pthread_self();
  strncpy(text, rdt_mpi_error(), sizeof(text) - 1);
  text[sizeof(text) - 1] = '\0';
  abandon(&self);
  return rdt_mpi_fail("%s", text);
}

static int describe(const rdt_mpi_comm *comm, const message *what, bool sends, const char *function,
                    rdt_collective *call) {
  rdt_mpi_elements elements;
  if (rdt_mpi_elements_of(what->type, what->count, function, &elements)) return RDT_MPI_ERR_OTHER;
  if (what->peer < 0 || (uint32_t)what->peer >= comm->size || (uint32_t)what->peer == comm->rank)
    return rdt_mpi_fail("%s: %d is no other member: there are %u", function, what->peer,
                        comm->size);
  if (what->tag < 0)
    return rdt_mpi_fail("%s: rdmatensor does not know the tag %d", function, what->tag);
  *call = (rdt_collective){.struct_size = sizeof(*call),
                           .kind = sends ? RDT_SEND : RDT_RECEIVE,
                           .dtype = elements.dtype,
                           .root = (uint32_t)what->peer,
                           .tag = {(uint64_t)what->tag, atomic_fetch_add(&numbers, 1)},
                           .input = sends ? what->buffer : NULL,
                           .output = sends ? NULL : what->buffer,
                           .count = elements.count,
                           .timeout_ms = rdt_mpi_timeout()};
  if (!sends) rdt_mpi_populate(what->buffer, elements.bytes);
  return RDT_MPI_SUCCESS;
}

/* Begins a message. The handle is for MPI_Wait. */
static int begin(rdt_mpi_handle handle, const message *what, bool sends, const char *function,
                 rdt_mpi_handle *out) {
  *out = RDT_MPI_REQUEST_NULL;
  rdt_collective call;
  rdt_mpi_comm *comm = rdt_mpi_comm_enter(handle, function);
  if (!comm) return fail_all();
  request *made = calloc(1, sizeof(*made));
  int error = made ? describe(comm, what, sends, function, &call)
                   : rdt_mpi_fail("%s: no memory left", function);
  if (!error && rdt_group_submit(comm->group, &call, &made->transfer) < 0)
    error = rdt_mpi_comm_fail(comm, function);
  if (error) {
    rdt_mpi_comm_leave(comm);
    free(made);
    return fail_all();
  }
  made->comm = comm;
  memcpy(made->tag, call.tag, sizeof(made->tag));
  made->owner = pthread_self();
  pthread_mutex_lock(&lock);
  made->next = requests;
  requests = made;
  pthread_mutex_unlock(&lock);
  *out = (rdt_mpi_handle)made;
  return RDT_MPI_SUCCESS;
}

static int wait_for(rdt_mpi_handle *handle, const void *status, const char *function) {
  if (*handle == RDT_MPI_REQUEST_NULL) return RDT_MPI_SUCCESS;
  request *found = take(*handle, NULL);
  *handle = RDT_MPI_REQUEST_NULL;
  if (!found) return rdt_mpi_fail("%s: the request does not exist, or has failed before", function);
  int error = finish(found, function);
  if (!error && status) error = rdt_mpi_fail("%s: rdmatensor fills no MPI_Status", function);
  return error ? fail_all() : RDT_MPI_SUCCESS;
}

RDT_API int MPIABI_Isend(const void *buffer, int count, rdt_mpi_handle type, int to, int tag,
                         rdt_mpi_handle comm, rdt_mpi_handle *handle);
int MPIABI_Isend(const void *buffer, int count, rdt_mpi_handle type, int to, int tag,
                 rdt_mpi_handle comm, rdt_mpi_handle *handle) {
  const message what = {(void *)buffer, count, type, to, tag};
  return begin(comm, &what, true, "MPI_Isend", handle);
}

RDT_API int MPIABI_Irecv(void *buffer, int count, rdt_mpi_handle type, int from, int tag,
                         rdt_mpi_handle comm, rdt_mpi_handle *handle);
int MPIABI_Irecv(void *buffer, int count, rdt_mpi_handle type, int from, int tag,
                 rdt_mpi_handle comm, rdt_mpi_handle *handle) {
  const message what = {buffer, count, type, from, tag};
  return begin(comm, &what, false, "MPI_Irecv", handle);
}

RDT_API int MPIABI_Wait(rdt_mpi_handle *handle, void *status);
int MPIABI_Wait(rdt_mpi_handle *handle, void *status) {
  return wait_for(handle, status, "MPI_Wait");
}

RDT_API int MPIABI_Waitall(int count, rdt_mpi_handle *handles, void *statuses);
int MPIABI_Waitall(int count, rdt_mpi_handle *handles, void *statuses) {
  int error = RDT_MPI_SUCCESS;
  for (int i = 0; i < count && !error; i++) error = wait_for(&handles[i], statuses, "MPI_Waitall");
  return error;
}

RDT_API int MPIABI_Sendrecv(const void *input, int count, rdt_mpi_handle type, int to, int tag,
                            void *output, int output_count, rdt_mpi_handle output_type, int from,
                            int output_tag, rdt_mpi_handle comm, void *status);
int MPIABI_Sendrecv(const void *input, int count, rdt_mpi_handle type, int to, int tag,
                    void *output, int output_count, rdt_mpi_handle output_type, int from,
                    int output_tag, rdt_mpi_handle comm, void *status) {
  static const char function[] = "MPI_Sendrecv";
  const message sent = {(void *)input, count, type, to, tag};
  const message received = {output, output_count, output_type, from, output_tag};
  rdt_mpi_handle handles[2];
  int error = begin(comm, &received, false, function, &handles[0]);
  if (!error) error = begin(comm, &sent, true, function, &handles[1]);
  for (int i = 0; i < 2 && !error; i++) error = wait_for(&handles[i], status, function);
  return error;
}
