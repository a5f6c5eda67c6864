/* SPDX-License-Identifier: Apache-2.0
 *
 * From where peers connect, and how much of us they may take. What a peer may do at all is a matter of
 * the secret (handshake.h) and of regions' access.
 */
#ifndef RDT_CORE_MEET_ADMISSION_H
#define RDT_CORE_MEET_ADMISSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* Where the other end of a socket is. */
typedef struct rdt_origin {
  char host
      [64]; /* what is counted as one: an address, "this host", or "this user" over unix sockets */
  bool this_host;
} rdt_origin;

rdt_status rdt_origin_of(int socket, rdt_origin *origin);
/* Without a secret: RDT_ERR_REFUSED for another host, with the remedies, unless INSECURE is set. */
rdt_status rdt_origin_check(const rdt_origin *origin, const char *device);

/* One host's share of a device. */
typedef struct rdt_guest {
  struct rdt_guest *next;
  char host[64];
  uint64_t channels;
} rdt_guest;

#define RDT_COMPLAINTS 16

/* What a device gave to peers. */
typedef struct rdt_admission {
  pthread_mutex_t lock;
  rdt_guest *guests; /* those with channels */
  uint64_t channels; /* that peers opened */
  uint64_t tenant_bytes;
  struct {
    char host[64];
    int64_t until; /* ms: no more lines about it before */
  } complaints[RDT_COMPLAINTS];
} rdt_admission;

void rdt_admission_init(rdt_admission *admission);
void rdt_admission_destroy(rdt_admission *admission);
/* Counts a channel of a peer there; RDT_ERR_REFUSED, naming the setting, if it is one too many. Give the
 * guest back when the channel is freed; NULL is ignored. */
rdt_status rdt_admission_enter(rdt_admission *admission, const char *host, rdt_guest **guest);
void rdt_admission_leave(rdt_admission *admission, rdt_guest *guest);
/* Counts memory that peers allocate here; RDT_ERR_LIMIT, naming the setting. */
rdt_status rdt_admission_reserve(rdt_admission *admission, uint64_t bytes);
void rdt_admission_release(rdt_admission *admission, uint64_t bytes);
/* True if the log may have a line about that host now: one a minute, of a few hosts. */
bool rdt_admission_may_complain(rdt_admission *admission, const char *host);

#endif
