/* SPDX-License-Identifier: Apache-2.0
 *
 * What a transport is to the core: a table of functions over five opaque objects.
 *
 *   domain        what one device has of the transport: for verbs an opened port
 *   registration  local memory, prepared so that peers can reach it through the domain
 *   endpoint      one end of one channel: the queues towards the peer and the events from it
 *   mapping       one of the peer's regions, made reachable
 *   request       the core's: what posted operations complete
 *
 * The core checks every argument, keeps the software queue, the order of operations, deadlines and
 * life cycle; a transport only moves bytes. Calls on one endpoint: create and connect come first,
 * destroy last; doorbell, notify, probe, stop, region_grant and, unless the transport is synchronous, write,
 * read and atomic run under the channel's send lock; poll, abort, arm and disarm on one thread at a time, but at
 * the same time as those. Domain and region functions may run on any thread. Functions marked optional may be NULL.
 */
#ifndef RDT_TRANSPORT_TRANSPORT_H
#define RDT_TRANSPORT_TRANSPORT_H

#include <stdbool.h>

#include "base/net.h"
#include "transport/request.h"

#define RDT_BUNDLE_SIZE 512
#define RDT_MAX_TRANSPORTS 3

/* An operation found no credit or no room. Try again after the next event. Users never see this
 * status. */
#define RDT_NO_CREDIT ((rdt_status)2)

/* What one end passes to the other: bytes that only the same transport reads, and descriptors. */
typedef struct rdt_bundle {
  uint8_t bytes[RDT_BUNDLE_SIZE];
  size_t size;
  rdt_fds fds;
} rdt_bundle;

typedef struct rdt_domain rdt_domain;
typedef struct rdt_registration rdt_registration;
typedef struct rdt_endpoint rdt_endpoint;
typedef struct rdt_mapping rdt_mapping;

/* Local memory behind a region, as the core knows it. */
typedef struct rdt_region_memory {
  void *address;
  uint64_t size;
  uint32_t access;
  rdt_memory_kind kind;
  bool one_peer; /* only the peer that it is granted to may reach it */
} rdt_region_memory;

/* The callbacks of poll. */
typedef struct rdt_events {
  void *context;
  void (*notified)(void *context, uint64_t immediate, const void *data, size_t size);
  /* One piece of `request` succeeded or failed. After a failure the thread's last error is the
   * reason. */
  void (*completed)(void *context, rdt_request *request, rdt_status status);
} rdt_events;

/* What the atomic operations of an endpoint's peer, on memory here, are atomic with. */
typedef enum rdt_atomics {
  RDT_ATOMICS_NONE,   /* one of the two ends cannot do any */
  RDT_ATOMICS_DEVICE, /* only with those that came through the same domain */
  RDT_ATOMICS_CPU     /* also with those of this machine's processors */
} rdt_atomics;

typedef struct rdt_transport {
  const char *name;
  uint32_t capabilities; /* rdt_capability bits, but for RDT_CAP_ATOMIC */
  /* rdt_memory_kind bits: what region_register takes. It may still refuse memory of CUDA devices that the driver does
   * not share. */
  uint32_t memory_kinds;
  /* write, read and atomic are complete on return, need no credit and no `request`, do not change
   * *op, and may run on many threads at once. */
  bool synchronous;
  /* The transport is for peers on this host. Endpoints meet over a unix socket, which proves the
   * user and carries descriptors, and whose end says that the peer holds nothing of ours any
   * more. Endpoints of other transports meet over TCP, and stopping one ends the peer's access. */
  bool local;
  /* With ENCRYPT=on, its bytes are encrypted, or leave no machine. */
  bool encrypts;

  /* Opens what a device needs of the transport. An error says why this machine lacks it, which
   * is no failure of the device. */
  rdt_status (*domain_open)(rdt_domain **domain);
  void (*domain_close)(rdt_domain *domain);
  /* Optional: describes, for people, what the domain uses. */
  const char *(*domain_text)(const rdt_domain *domain);
  /* Optional: a descriptor that is readable when the domain has events, and the function that
   * handles these. An error means that none of its endpoints work any more. */
  int (*domain_event_fd)(const rdt_domain *domain);
  rdt_status (*domain_events)(rdt_domain *domain);
  /* Reports whether this process could reach a peer on `peer_host` at all. Otherwise `why` says
   * what is missing. */
  bool (*usable)(const char *own_host, const char *peer_host, char *why, size_t size);

  /* Creates an endpoint and fills `offer` with what the peer's endpoint needs. */
  rdt_status (*endpoint_create)(rdt_domain *domain, rdt_endpoint **endpoint, rdt_bundle *offer);
  /* Joins it to the peer's offer, which is untrusted; takes descriptors out of it. `peer` names it in
   * messages. */
  rdt_status (*endpoint_connect)(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer);
  /* Optional: for transports that use connections to the peer's bootstrap port. After
   * endpoint_connect, the first returns how many; the core makes them and hands them over, each with
   * its number, before the channel opens. On success the endpoint owns the socket. */
  uint32_t (*data_connection_count)(const rdt_endpoint *endpoint);
  rdt_status (*data_connection_add)(rdt_endpoint *endpoint, uint32_t index, rdt_socket socket);
  /* Optional: ends traffic. What was posted still completes through poll. Idle returns true when nothing is left. Unless
   * there is endpoint_sever, the peer can reach nothing then. */
  void (*endpoint_stop)(rdt_endpoint *endpoint);
  bool (*endpoint_idle)(const rdt_endpoint *endpoint);
  /* Optional: has hardware give up what is left, so that it touches no memory any more, and the peer reaches nothing. It
   * may take long, and runs on any thread, also when the endpoint is idle. */
  void (*endpoint_sever)(rdt_endpoint *endpoint);
  /* Optional, together with endpoint_stop and endpoint_idle: completes what is left of a severed endpoint and makes it
   * idle. */
  void (*endpoint_abort)(rdt_endpoint *endpoint, const rdt_events *events);
  void (*endpoint_destroy)(rdt_endpoint *endpoint);
  /* Returns the largest payload that notify takes. */
  uint64_t (*max_notify)(const rdt_endpoint *endpoint);

  /* Move op->size bytes one-sidedly. RDT_OK: complete. RDT_IN_PROGRESS: posted, and the request
   * is held once for each piece. RDT_NO_CREDIT: a part may have been posted; `op` is what is
   * left. */
  rdt_status (*write)(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                      rdt_request *request);
  rdt_status (*read)(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                     rdt_request *request);
  /* Executes the atomic operation *op as one piece, after the short writes posted before it. Returns what
   * write returns. The core has checked the alignment of the word as far as the peer tells the truth. */
  rdt_status (*atomic)(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                       rdt_request *request);
  /* Optional, for transports whose devices execute them; otherwise it is RDT_ATOMICS_CPU. */
  rdt_atomics (*atomics)(const rdt_endpoint *endpoint);
  /* Posts a notification that arrives after everything posted before it. Copies the payload.
   * Returns RDT_OK, RDT_NO_CREDIT, or RDT_ERR_PROTOCOL if the peer corrupted the queue. */
  rdt_status (*notify)(rdt_endpoint *endpoint, uint64_t immediate, const void *data, uint64_t size);
  /* Hands over what was posted, and wakes the peer if it sleeps. Returns the number of doorbells
   * rung. */
  int (*doorbell)(rdt_endpoint *endpoint);
  /* Optional: reports whether poll left something for a doorbell to hand over, such as credit. */
  bool (*wants_doorbell)(const rdt_endpoint *endpoint);
  /* Optional: reports whether posted messages are still in flight, so that the peer cannot have
   * given credit for them. */
  bool (*delivering)(const rdt_endpoint *endpoint);
  /* Optional: unless a completion is due anyway, posts an operation that completes after
   * everything before it, and fails if the peer's host is gone. */
  rdt_status (*probe)(rdt_endpoint *endpoint);

  /* Hands at most `budget` notifications, and every completion, to `events`, and serves the peer
   * where no device does. Returns their number, more than 0 also if it served the peer only, or an
   * error after which the channel is lost. */
  int (*poll)(rdt_endpoint *endpoint, int budget, const rdt_events *events);
  /* Asks for an event on event_fd at the next credit, at the next completion of a request that
   * wants one (with `completions`, of any request), and, with `may_take`, at the next
   * notification. Returns false if there is something already; after true the caller may sleep. */
  bool (*arm)(rdt_endpoint *endpoint, bool may_take, bool completions);
  void (*disarm)(rdt_endpoint *endpoint);
  int (*event_fd)(const rdt_endpoint *endpoint);
  /* Optional, for transports whose events do not tell completions from notifications: no events until
   * the next arm, unless many bytes come. Returns how many operations other than probes have come from the
   * peer so far. Runs on the thread that polls. */
  uint64_t (*silence)(rdt_endpoint *endpoint);

  /* Optional: returns how many bytes the system still lets this process register; UINT64_MAX
   * without a limit. */
  uint64_t (*registrable)(void);
  /* Prepares memory; an error says why this transport cannot. Deregistering withdraws it from peers,
   * as far as the transport can. */
  rdt_status (*region_register)(rdt_domain *domain, const rdt_region_memory *memory,
                                rdt_registration **registration);
  void (*region_deregister)(rdt_registration *registration);
  /* Optional: reports whether peers can only read the registration, and that only if their kernel permits it. */
  bool (*region_is_lent)(const rdt_registration *registration);
  /* Optional, for devices that can tell peers apart: lets the endpoint's peer reach a
   * registration of `one_peer` memory, once, before it is exported to that peer. Runs and
   * completes as write does. */
  rdt_status (*region_grant)(rdt_endpoint *endpoint, rdt_registration *registration,
                             rdt_request *request);
  /* Describes how a peer can reach the region, with no more access than the region grants. */
  rdt_status (*region_export)(rdt_registration *registration, rdt_bundle *bundle);
  /* Imports a peer's region. The bundle is untrusted; the core has checked size and access. */
  rdt_status (*region_import)(const rdt_region_memory *claimed, rdt_bundle *bundle,
                              rdt_mapping **mapping);
  void (*region_release)(rdt_mapping *mapping);
  /* Returns the address of the region's first byte in this process; NULL without RDT_CAP_MAP, and for what is lent. */
  void *(*region_address)(const rdt_mapping *mapping);
  /* Optional: returns rdt_memory_kind bits of what op->local may be in operations on the region; otherwise it is host
   * memory. */
  uint32_t (*region_local_kinds)(const rdt_mapping *mapping);
} rdt_transport;

#endif
