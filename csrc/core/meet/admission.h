/* SPDX-License-Identifier: Apache-2.0
 *
 * Where peers connect from, and how many of our resources they may use. The secret (handshake.h)
 * and regions' access decide what a peer may do at all.
 */
#ifndef RDT_CORE_MEET_ADMISSION_H
#define RDT_CORE_MEET_ADMISSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* Finds out where the other end of a socket is. */
typedef struct rdt_origin {
  char host[64];    /* an address, "this host", or "this user" over unix sockets */
  char network[64]; /* the same, but of IPv6 the /64, of which one host may have all addresses */
  bool this_host;
} rdt_origin;

rdt_status rdt_origin_of(int socket, rdt_origin *origin);
/* For devices without a secret: returns RDT_ERR_REFUSED, with the remedies, for another host
 * unless INSECURE is set. */
rdt_status rdt_origin_check(const rdt_origin *origin, const char *device);

/* What one host uses of a device. */
typedef struct rdt_guest {
  struct rdt_guest *next;
  char host[64];
  uint64_t channels;
} rdt_guest;

#define RDT_COMPLAINTS 16

/* What peers use of a device. */
typedef struct rdt_admission {
  pthread_mutex_t lock;
  rdt_guest *guests; /* hosts with channels */
  uint64_t channels; /* opened by peers */
  uint64_t tenant_bytes;
  struct {
    char host[64];
    int64_t until; /* ms: no line about the host is logged before */
  } complaints[RDT_COMPLAINTS];
} rdt_admission;

void rdt_admission_init(rdt_admission *admission);
void rdt_admission_destroy(rdt_admission *admission);
/* Counts a channel of a peer on `host`. Returns RDT_ERR_REFUSED, which names the setting, if it
 * is one too many. Pass the guest to rdt_admission_leave when the channel is freed; that ignores
 * NULL. */
rdt_status rdt_admission_enter(rdt_admission *admission, const char *host, rdt_guest **guest);
void rdt_admission_leave(rdt_admission *admission, rdt_guest *guest);
/* Counts memory that peers allocate here. Returns RDT_ERR_LIMIT, which names the setting. */
rdt_status rdt_admission_reserve(rdt_admission *admission, uint64_t bytes);
void rdt_admission_release(rdt_admission *admission, uint64_t bytes);
/* Returns true if a line about that host may be logged now: one a minute, for a few hosts. */
bool rdt_admission_may_complain(rdt_admission *admission, const char *host);

#endif
