/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of the verbs transport, and who may access what.
 *
 *   domain    an opened port: protection domain, shared receive queue, registrations, staging slots
 *   endpoint  one peer: queue pairs, one completion queue, the ring of records that the peer writes
 *             to, with the words of credit, and a mirror of the peer's ring
 *   queue     one queue pair and the pieces posted to it, in order
 *   piece     one work request, and what its completion releases
 *
 * The send side of an endpoint belongs to whoever holds the channel's send lock, the receive side to
 * whoever polls, one at a time. They meet in the atomics only.
 */
#ifndef RDT_TRANSPORT_VERBS_OBJECTS_H
#define RDT_TRANSPORT_VERBS_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/records.h"
#include "transport/transport.h"
#include "transport/verbs/address.h"
#include "transport/verbs/library.h"
#include "transport/verbs/ports.h"

#define RDT_VERBS_BATCH 32u  /* work requests handed over with one doorbell */
#define RDT_VERBS_RESERVE 8u /* of a queue, kept free of data for credit and probes */
/* A piece of a transfer has at most RDT_VERBS_PIECE_BYTES. One of RDT_VERBS_REPORT_BYTES or more reports
 * its own completion, so that a slow network is told from a device that lost a completion
 * (core/post/overdue.c). */
#define RDT_VERBS_PIECE_BYTES (64u << 20)
#define RDT_VERBS_REPORT_BYTES (1u << 20)
#define RDT_VERBS_SLOT_BYTES 16384u /* of a staging slot */
#define RDT_VERBS_SLOTS 64u
#define RDT_VERBS_RECEIVE_ID \
  UINT64_MAX /* the work request id of receives; sends use queue and position */
/* Receives of an endpoint: for notifications, for credit (see give_credit), and those that were
 * used and are reposted in a batch. */
#define RDT_VERBS_NOTIFY_RECEIVES 104u
#define RDT_VERBS_CREDIT_RECEIVES 8u
#define RDT_VERBS_REPOST 16u
#define RDT_VERBS_RECEIVES \
  (RDT_VERBS_NOTIFY_RECEIVES + RDT_VERBS_CREDIT_RECEIVES + RDT_VERBS_REPOST)

/* A staging slot: registered memory for payloads that lie elsewhere. */
typedef struct rdt_verbs_slot {
  struct rdt_verbs_slot *next;
  void *memory;
} rdt_verbs_slot;

/* A key to a registration that is valid for one queue pair. */
typedef struct rdt_verbs_window {
  struct ibv_mw *mw;
  uint32_t rkey;
} rdt_verbs_window;

/* One peer's access to a registration: a window for each of its queue pairs. Under windows_lock. */
typedef struct rdt_verbs_grant {
  struct rdt_verbs_grant *next; /* of the endpoint's */
  rdt_endpoint *endpoint;       /* NULL once the windows are closed */
  bool ending;                  /* a thread closes them, without the lock */
  uint32_t count;
  rdt_verbs_window windows[RDT_VERBS_MAX_QUEUES];
} rdt_verbs_grant;

struct rdt_registration {
  rdt_registration *next; /* in the domain's list */
  rdt_domain *domain;
  struct ibv_mr *mr;
  uint64_t start, size;
  uint32_t access;        /* of peers; with RDT_VERBS_ACCESS_ATOMIC where they have that */
  bool one_peer;          /* peers reach it through the windows of its grant */
  rdt_verbs_grant *grant; /* under windows_lock */
  bool target;            /* the device may write into it */
  atomic_int refs;        /* the owner's, and one for each piece in flight */
};

struct rdt_domain {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_srq *srq;
  rdt_verbs_port *ports;
  size_t port_count;
  rdt_verbs_choice choice; /* points into ports */
  char text[160];          /* the choice in words */
  atomic_bool dead;        /* the device is gone */
  bool windows;            /* memory for one peer is opened by windows */
  pthread_mutex_t windows_lock;
  pthread_cond_t windows_ended; /* of a grant; its endpoint and its registration may have waited */

  pthread_rwlock_t registrations_lock;
  rdt_registration *registrations;

  pthread_mutex_t lock; /* slots, receives */
  void *slot_memory;
  struct ibv_mr *slot_mr;
  rdt_verbs_slot slots[RDT_VERBS_SLOTS], *free_slots;
  uint32_t receives, max_receives; /* pledged to endpoints */
};

struct rdt_mapping {
  uint64_t address;
  rdt_verbs_keys keys;
};

typedef struct rdt_verbs_piece {
  rdt_request *request;           /* NULL: notifications, credit, probes */
  rdt_registration *registration; /* held for the local buffer; or NULL */
  rdt_verbs_slot *slot;           /* likewise */
  void *target;                   /* of a read through a slot */
  uint32_t size;
  bool fence; /* notifications have to wait for it */
  bool notification;
  bool event; /* its completion has to wake the progress thread */
} rdt_verbs_piece;

typedef struct rdt_verbs_queue {
  struct ibv_qp *qp;
  uint32_t psn;
  rdt_verbs_piece *pieces; /* those in [completed, posted), modulo depth */
  uint32_t depth;          /* a power of two */
  _Atomic uint32_t posted, completed;
  _Atomic uint32_t handed; /* what the device accepted; less than posted after a failure */
  uint32_t batched;
  struct ibv_send_wr requests[RDT_VERBS_BATCH];
  struct ibv_sge segments[RDT_VERBS_BATCH];
} rdt_verbs_queue;

/* Written by the peer. Each word changes after what it counts. */
typedef struct rdt_verbs_credit {
  _Atomic uint64_t consumed; /* bytes of records */
  _Atomic uint64_t receives; /* notifications taken whose receives were reposted */
} rdt_verbs_credit;

/* Registered memory of an endpoint. */
typedef struct rdt_verbs_block {
  void *start;
  size_t size;
  struct ibv_mr *mr;
  rdt_verbs_window window; /* the window through which the peer reaches it, if any */
} rdt_verbs_block;

/* Notifications are solicited, so a sleeping receiver is not woken by its own completions. */
enum rdt_verbs_armed { RDT_VERBS_UNARMED, RDT_VERBS_SOLICITED, RDT_VERBS_ALL };

struct rdt_endpoint {
  rdt_domain *domain;
  struct ibv_comp_channel *events;
  struct ibv_cq *cq;
  rdt_verbs_queue queues[RDT_VERBS_MAX_QUEUES];
  uint32_t queue_count;
  uint32_t max_inline;
  uint64_t stripe; /* bytes; longer operations go over all queues */
  char peer[64];

  rdt_verbs_grant *grants; /* under windows_lock */
  rdt_verbs_block inbound, outbound;
  rdt_verbs_credit *credit_in, *credit_out; /* in the inbound block */
  rdt_records receive;                      /* likewise */

  /* Send side. */
  uint32_t mtu;       /* of packets, an enum ibv_mtu */
  rdt_records mirror; /* of the peer's ring, in the outbound block */
  uint64_t published; /* mirror.position as last sent to the peer */
  rdt_verbs_address remote;
  uint64_t notifies; /* messages to the peer that used one of its receives */
  uint32_t next_queue;
  atomic_bool stopped;

  /* Shared. */
  atomic_uint wanted;     /* pieces in flight whose completion has to wake the progress thread */
  atomic_int armed;       /* rdt_verbs_armed: which completions raise an event */
  atomic_uint fences;     /* pieces in flight that notifications wait for */
  atomic_uint notifying;  /* messages in flight that carry notifications */
  atomic_bool credit_due; /* the peer should learn what was consumed */
  atomic_bool stalled;    /* notifications wait for credit or room */
  _Atomic uint64_t consumed, granted; /* credit_in, as of the last credit message */
  atomic_bool broken; /* the device refused work, or an asynchronous event said so */

  /* Receive side. */
  bool failed, reported;
  struct ibv_wc stash; /* found while arming */
  bool stashed;
  uint64_t taken; /* notifications that used a receive */
  uint64_t told_consumed, told_taken;
  uint32_t unposted;     /* receives to repost */
  uint32_t idle_credits; /* consecutive credit messages that brought no credit */
  uint32_t pledged;      /* receives held in the domain's queue */
  uint64_t flushed;
  char failure[384];
};

/* domain.c */

rdt_status rdt_verbs_domain_open(rdt_domain **domain);
void rdt_verbs_domain_close(rdt_domain *domain);
int rdt_verbs_domain_event_fd(const rdt_domain *domain);
rdt_status rdt_verbs_domain_events(rdt_domain *domain);
/* Posts `count` receives to the shared queue. With `pledge` they are additional, for a new
 * endpoint. */
rdt_status rdt_verbs_domain_receives(rdt_domain *domain, uint32_t count, bool pledge);
void rdt_verbs_domain_unpledge(rdt_domain *domain, uint32_t count);

/* local.c: local memory */

rdt_status rdt_verbs_region_register(rdt_domain *domain, const rdt_region_memory *memory,
                                     rdt_registration **registration);
void rdt_verbs_region_deregister(rdt_registration *registration);
rdt_status rdt_verbs_region_export(rdt_registration *registration, rdt_bundle *bundle);
rdt_status rdt_verbs_region_import(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                   rdt_mapping **mapping);
void rdt_verbs_region_release(rdt_mapping *mapping);
rdt_status rdt_verbs_slots_create(rdt_domain *domain);
void rdt_verbs_slots_destroy(rdt_domain *domain);

/* A local buffer that the device can reach: inside a region, through a slot, or registered for
 * one operation. */
typedef struct rdt_verbs_local {
  uint64_t address;
  uint32_t lkey;
  rdt_registration *registration; /* held, or NULL */
  rdt_verbs_slot *slot;           /* held, or NULL */
} rdt_verbs_local;

/* Makes [buffer, buffer + size) reachable for the device, with `target` for writing. Returns
 * RDT_NO_CREDIT if all slots are taken. Errors concern this operation only. */
rdt_status rdt_verbs_local_acquire(rdt_domain *domain, void *buffer, uint64_t size, bool target,
                                   rdt_verbs_local *local);
void rdt_verbs_registration_ref(rdt_registration *registration);
void rdt_verbs_registration_unref(rdt_registration *registration);
void rdt_verbs_slot_free(rdt_domain *domain, rdt_verbs_slot *slot);

/* windows.c */

/* Decides whether the domain uses windows. Returns RDT_ERR_UNSUPPORTED if the setting demands
 * windows and the device has none. */
rdt_status rdt_verbs_windows_choose(rdt_domain *domain);
rdt_status rdt_verbs_window_open(rdt_domain *domain, rdt_verbs_window *window);
/* Ends access through the window. Ignores one that is not open. */
void rdt_verbs_window_close(rdt_verbs_window *window);
/* Returns the work request that binds the window to all of `mr`, for the queue pair that it is
 * posted to. */
struct ibv_send_wr rdt_verbs_window_bind(const rdt_verbs_window *window, struct ibv_mr *mr,
                                         uint32_t access);
/* Creates windows for the endpoint's queue pairs, without binding them. */
rdt_status rdt_verbs_grant_open(rdt_endpoint *endpoint, rdt_registration *registration);
void rdt_verbs_grant_close(rdt_registration *registration);
/* Returns the keys of the grant, or RDT_ERR_ACCESS once the endpoint has ended. */
rdt_status rdt_verbs_grant_keys(const rdt_registration *registration, rdt_verbs_keys *keys);
/* Closes the windows of the endpoint's ring and of what was granted to its peer. */
void rdt_verbs_endpoint_close_windows(rdt_endpoint *endpoint);

/* endpoint.c: connecting and ending */

rdt_status rdt_verbs_endpoint_create(rdt_domain *domain, rdt_endpoint **endpoint,
                                     rdt_bundle *offer);
rdt_status rdt_verbs_endpoint_connect(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer);
void rdt_verbs_endpoint_stop(rdt_endpoint *endpoint);
bool rdt_verbs_endpoint_idle(const rdt_endpoint *endpoint);
void rdt_verbs_endpoint_sever(rdt_endpoint *endpoint);
void rdt_verbs_endpoint_abort(rdt_endpoint *endpoint, const rdt_events *events);
void rdt_verbs_endpoint_destroy(rdt_endpoint *endpoint);
uint64_t rdt_verbs_max_notify(const rdt_endpoint *endpoint);
rdt_atomics rdt_verbs_atomics(const rdt_endpoint *endpoint);

/* post.c: the send side */

rdt_status rdt_verbs_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                           rdt_request *request);
rdt_status rdt_verbs_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                          rdt_request *request);
rdt_status rdt_verbs_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                            rdt_request *request);
rdt_status rdt_verbs_region_grant(rdt_endpoint *endpoint, rdt_registration *registration,
                                  rdt_request *request);
/* Posts the bind of the ring's window. */
void rdt_verbs_bind_ring(rdt_endpoint *endpoint);
rdt_status rdt_verbs_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                            uint64_t size);
int rdt_verbs_doorbell(rdt_endpoint *endpoint);
bool rdt_verbs_wants_doorbell(const rdt_endpoint *endpoint);
bool rdt_verbs_delivering(const rdt_endpoint *endpoint);
rdt_status rdt_verbs_probe(rdt_endpoint *endpoint);

/* poll.c: the receive side */

int rdt_verbs_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events);
/* Reposts the shared receives that the peer used, including those not polled yet, and drops
 * other completions. Call it for a stopped endpoint before its queue pairs are destroyed, and after. */
void rdt_verbs_return_receives(rdt_endpoint *endpoint);
bool rdt_verbs_arm(rdt_endpoint *endpoint, bool may_take, bool completions);
void rdt_verbs_disarm(rdt_endpoint *endpoint);
int rdt_verbs_event_fd(const rdt_endpoint *endpoint);
/* Completes every piece of the queue before `end` with `status`, oldest first. */
void rdt_verbs_complete_until(rdt_endpoint *endpoint, rdt_verbs_queue *queue, uint32_t end,
                              rdt_status status, const rdt_events *events);

static inline uint32_t rdt_verbs_outstanding(const rdt_verbs_queue *queue) {
  return atomic_load(&queue->posted) - atomic_load(&queue->completed);
}

#endif
