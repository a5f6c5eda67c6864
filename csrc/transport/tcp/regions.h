/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a device's regions that peers reach over TCP. It does what an RDMA card does: it
 * checks key, bounds, access and peer of every operation, and closes a region to all of them.
 */
#ifndef RDT_TRANSPORT_TCP_REGIONS_H
#define RDT_TRANSPORT_TCP_REGIONS_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/transport.h"

#define RDT_TCP_MAX_STREAMS 8u

struct rdt_registration {
  rdt_domain *domain;
  uint8_t *start;
  uint64_t size, key;
  uint32_t index, access;
  bool one_peer;
  bool on_device;           /* in CUDA memory: the processor must not touch it */
  _Atomic uint64_t grantee; /* the number of the only endpoint that may reach it; 0: none yet */
  atomic_bool closed;
  atomic_uint users; /* system calls that move its bytes now */
  atomic_uint refs;  /* the owner's, and one for each operation on its way */
};

typedef struct rdt_tcp_io_thread rdt_tcp_io_thread; /* io_threads.c */

struct rdt_domain {
  pthread_rwlock_t lock;
  rdt_registration **slots; /* NULL where free */
  uint32_t slot_count, next_free;
  uint32_t io_thread_limit; /* 0 at first; set it before the first connection */
  rdt_tcp_io_thread *io_threads[RDT_TCP_MAX_STREAMS];
};

struct rdt_mapping {
  uint64_t key;
  uint32_t index;
};

rdt_status rdt_tcp_domain_open(rdt_domain **domain);
void rdt_tcp_domain_close(rdt_domain *domain);
rdt_status rdt_tcp_region_register(rdt_domain *domain, const rdt_region_memory *memory,
                                   rdt_registration **registration);
/* No operation touches the memory any more when it returns. */
void rdt_tcp_region_deregister(rdt_registration *registration);
rdt_status rdt_tcp_region_export(rdt_registration *registration, rdt_bundle *bundle);
rdt_status rdt_tcp_region_import(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                 rdt_mapping **mapping);
void rdt_tcp_region_release(rdt_mapping *mapping);

/* What an operation of a peer wants to reach. */
typedef struct rdt_tcp_reach {
  uint64_t endpoint; /* the number of the peer's endpoint here */
  uint64_t key, offset, size;
  uint32_t index, access;
} rdt_tcp_reach;

/* Finds the registration that permits all of it, and holds it for the caller; NULL if none does. */
rdt_registration *rdt_tcp_region_find(rdt_domain *domain, const rdt_tcp_reach *wanted);
void rdt_tcp_registration_unref(rdt_registration *registration);
/* The memory is there from a pin that returns true to its unpin. Keep it short: closing waits. */
bool rdt_tcp_region_pin(rdt_registration *registration);
void rdt_tcp_region_unpin(rdt_registration *registration);
/* Copies bytes of CUDA memory to the host. The result holds them at its start, is never closed, and is the caller's to
 * unref. NULL if the registration is closed, or the driver fails, which the log says. */
rdt_registration *rdt_tcp_region_fetch(rdt_registration *registration, uint64_t offset,
                                       uint32_t size);
/* Copies bytes into pinned CUDA memory. Returns false if the driver fails, which the log says. */
bool rdt_tcp_region_store(uint8_t *to, const uint8_t *from, uint32_t size);

#endif
