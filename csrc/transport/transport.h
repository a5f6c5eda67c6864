/* SPDX-License-Identifier: Apache-2.0
 *
 * What a transport is to the core: a table of functions over two opaque objects.
 *
 *   endpoint        one end of one channel: the queues towards the peer and the events from it
 *   remote mapping  one of the peer's regions, made reachable
 *
 * The core checks every argument, keeps the software queue, the order of operations, deadlines and
 * life cycle; a transport only moves bytes. Calls on one endpoint: create and connect come first,
 * destroy last; write and read may run from many threads at once; notify and doorbell run under the
 * channel's send lock; poll, arm and disarm only on the progress thread.
 */
#ifndef RDT_TRANSPORT_TRANSPORT_H
#define RDT_TRANSPORT_TRANSPORT_H

#include <stdbool.h>

#include "core/net.h"

#define RDT_BUNDLE_SIZE 512

/* What one end must hand to the other: bytes that only the same transport reads, and descriptors. */
typedef struct rdt_bundle {
  uint8_t bytes[RDT_BUNDLE_SIZE];
  size_t size;
  rdt_fds fds;
} rdt_bundle;

typedef struct rdt_endpoint rdt_endpoint;
typedef struct rdt_mapping rdt_mapping;

/* Local memory behind a region, as the core knows it. */
typedef struct rdt_region_memory {
  void *address;
  uint64_t size;
  uint32_t access;
} rdt_region_memory;

/* Takes one notification during poll. */
typedef void (*rdt_notify_fn)(void *context, uint64_t immediate, const void *data, size_t size);

typedef struct rdt_transport {
  const char *name;
  uint32_t capabilities; /* rdt_capability bits */

  /* Could this process talk to a peer with `peer_host` at all? Otherwise `why` says what is missing;
   * not being usable is an answer, not an error. */
  bool (*usable)(const char *own_host, const char *peer_host, char *why, size_t size);

  /* Creates an endpoint and fills `offer` with what the peer's endpoint needs. */
  rdt_status (*endpoint_create)(rdt_endpoint **endpoint, rdt_bundle *offer);
  /* Joins it to the peer's offer, which is untrusted; takes descriptors out of it. */
  rdt_status (*endpoint_connect)(rdt_endpoint *endpoint, rdt_bundle *offer);
  void (*endpoint_destroy)(rdt_endpoint *endpoint);
  /* Largest payload notify takes. */
  uint64_t (*max_notify)(const rdt_endpoint *endpoint);

  /* One-sided moves; complete on return. */
  rdt_status (*write)(rdt_mapping *mapping, uint64_t offset, const void *source, uint64_t size);
  rdt_status (*read)(rdt_mapping *mapping, uint64_t offset, void *target, uint64_t size);
  /* Puts a notification behind everything written before. RDT_IN_PROGRESS: no credit, try again after
   * the next event. RDT_ERR_PROTOCOL: the peer corrupted the queue. */
  rdt_status (*notify)(rdt_endpoint *endpoint, uint64_t immediate, const void *data, uint64_t size);
  /* Wakes the peer if it sleeps, once for all that was posted; true if it did. */
  bool (*doorbell)(rdt_endpoint *endpoint);

  /* Hands at most `budget` arrived notifications to `take`; their count, or RDT_ERR_PROTOCOL. */
  int (*poll)(rdt_endpoint *endpoint, int budget, rdt_notify_fn take, void *context);
  /* Asks for an event on event_fd at the next arrival or credit; false if something is there already.
   * After true the caller may sleep. */
  bool (*arm)(rdt_endpoint *endpoint);
  void (*disarm)(rdt_endpoint *endpoint);
  int (*event_fd)(const rdt_endpoint *endpoint);

  /* Can the memory be given to peers? */
  rdt_status (*region_check)(const rdt_region_memory *memory);
  /* What a peer needs to reach the region, with no more access than it grants. */
  rdt_status (*region_export)(const rdt_region_memory *memory, rdt_bundle *bundle);
  /* The peer's side; the bundle is untrusted, the core checked size and access. */
  rdt_status (*region_import)(const rdt_region_memory *claimed, rdt_bundle *bundle,
                              rdt_mapping **mapping);
  void (*region_release)(rdt_mapping *mapping);
  /* The region's first byte in this process; NULL without RDT_CAP_MAP. */
  void *(*region_address)(const rdt_mapping *mapping);
} rdt_transport;

/* Every transport of this build, and the one called `name` (NULL if none is). */
extern const rdt_transport *const rdt_transports[];
extern const size_t rdt_transport_count;
const rdt_transport *rdt_transport_find(const char *name);

#endif
