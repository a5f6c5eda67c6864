/* SPDX-License-Identifier: Apache-2.0
 *
 * getaddrinfo has no deadline and cannot be interrupted. So a thread of its own looks up each
 * name. A caller that gives up leaves the thread behind, until the name server answers or the
 * system's resolver gives up too.
 */
#include "base/resolve.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "base/thread.h"
#include "base/wait.h"

#define MOST_ABANDONED 64

typedef struct lookup {
  atomic_int holds; /* the caller's and the thread's */
  atomic_bool done, abandoned;
  int event; /* an eventfd, readable when the lookup is done */
  char host[256], port[16];
  struct addrinfo hints, *found;
  int error;
} lookup;

static atomic_int abandoned; /* lookups in progress that nobody waits for any more */

static void let_go(lookup *given) {
  if (atomic_fetch_sub(&given->holds, 1) != 1) return;
  if (atomic_load(&given->abandoned)) atomic_fetch_sub(&abandoned, 1);
  if (given->found) freeaddrinfo(given->found);
  close(given->event);
  free(given);
}

static void *look_up(void *argument) {
  lookup *given = argument;
  uint64_t one = 1;
  given->error = getaddrinfo(given->host, given->port, &given->hints, &given->found);
  if (given->error) given->found = NULL;
  atomic_store(&given->done, true);
  ssize_t ignored = write(given->event, &one, sizeof(one));
  (void)ignored;
  let_go(given);
  return NULL;
}

static rdt_status start(lookup *given) {
  int error = rdt_thread_detached(look_up, given);
  return error ? rdt_fail_errno(error, "cannot start a thread to resolve %s", given->host) : RDT_OK;
}

static rdt_status fail(const char *host, const char *port, int error) {
  return rdt_fail(RDT_ERR_UNREACHABLE, "cannot resolve %s port %s: %s", host, port,
                  gai_strerror(error));
}

static rdt_status result(lookup *given, struct addrinfo **found) {
  if (given->error) return fail(given->host, given->port, given->error);
  *found = given->found;
  given->found = NULL;
  return RDT_OK;
}

static rdt_status await(lookup *given, rdt_deadline deadline, struct addrinfo **found) {
  rdt_status status = rdt_wait_ready(given->event, POLLIN, deadline, "resolving");
  if (atomic_load(&given->done)) return result(given, found);
  atomic_fetch_add(&abandoned, 1);
  atomic_store(&given->abandoned, true);
  if (status != RDT_ERR_DEADLINE) return status;
  return rdt_fail(RDT_ERR_DEADLINE,
                  "%s was not resolved within the deadline: the name server does not answer "
                  "(/etc/resolv.conf), or give an address",
                  given->host);
}

static rdt_status begin(const char *host, const char *port, const struct addrinfo *hints,
                        lookup **begun) {
  if (atomic_load(&abandoned) >= MOST_ABANDONED)
    return rdt_fail(
        RDT_ERR_LIMIT,
        "cannot resolve %s: %d other names are being looked up in vain: the name server "
        "does not answer (/etc/resolv.conf), or give an address",
        host, MOST_ABANDONED);
  lookup *given = calloc(1, sizeof(*given));
  if (!given) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  atomic_init(&given->holds, 2);
  given->hints = *hints;
  snprintf(given->host, sizeof(given->host), "%s", host);
  snprintf(given->port, sizeof(given->port), "%s", port);
  given->event = eventfd(0, EFD_CLOEXEC);
  rdt_status status =
      given->event < 0 ? rdt_fail_errno(errno, "cannot create an eventfd") : start(given);
  if (status == RDT_OK) {
    *begun = given;
    return RDT_OK;
  }
  if (given->event >= 0) close(given->event);
  free(given);
  return status;
}

rdt_status rdt_resolve(const char *host, const char *port, int flags, rdt_deadline deadline,
                       struct addrinfo **found) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                           .ai_flags = flags | AI_NUMERICSERV | AI_NUMERICHOST};
  lookup *given;
  int error = getaddrinfo(host, port, &hints, found); /* a numeric address needs no name server */
  if (error == 0) return RDT_OK;
  if (error != EAI_NONAME) return fail(host, port, error);
  hints.ai_flags &= ~AI_NUMERICHOST;
  rdt_status status = begin(host, port, &hints, &given);
  if (status != RDT_OK) return status;
  status = await(given, deadline, found);
  let_go(given);
  return status;
}
