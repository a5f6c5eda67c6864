/* SPDX-License-Identifier: Apache-2.0
 *
 * The core's objects, and who may access what. docs/ownership.md explains it.
 *
 *   device        owns regions and active channels (device->lock)
 *   channel       owns endpoint, control socket, queue (send_lock), calls and remote regions (lock)
 *   remote region holds its channel
 *
 * A channel is held by the device while active, by each user handle and each remote region; a device
 * by its opener and by each channel. What a channel's threads may be using (endpoint, socket) is
 * freed with the last reference only.
 */
#ifndef RDT_CORE_OBJECTS_H
#define RDT_CORE_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/local.h"
#include "base/net.h"
#include "base/pool.h"
#include "core/meet/admission.h"
#include "core/meet/secret.h"
#include "transport/transport.h"

#define RDT_NAME_SIZE 256
#define RDT_REGION_NAME_SIZE 64
#define RDT_HOST_ID_SIZE 64

typedef struct rdt_counters {
  _Atomic uint64_t writes, write_bytes, reads, read_bytes, atomics;
  _Atomic uint64_t notifies_sent, notifies_received, notify_bytes_sent, notify_bytes_received;
  _Atomic uint64_t queued, doorbells, wakeups, channels_opened, channels_lost, regions,
      region_bytes;
} rdt_counters;

static inline void rdt_count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

struct rdt_region {
  rdt_region *next;
  rdt_device *device;
  const rdt_channel *tenant; /* the channel whose peer allocated it; NULL if this process did */
  uint64_t reserved_for; /* the number of the only channel whose peer may open it; 0 if any may */
  rdt_region_memory memory;
  rdt_registration
      *registrations[RDT_MAX_TRANSPORTS]; /* NULL for a transport that cannot share it */
  uint64_t key;
  char name[RDT_REGION_NAME_SIZE];
  bool owned;     /* the memory is freed with the region */
  rdt_pool *pool; /* to which it is given back; NULL if it is a block of its own */
};

typedef struct rdt_watch {
  enum { RDT_WATCH_CONTROL, RDT_WATCH_ENDPOINT, RDT_WATCH_DOMAIN, RDT_WATCH_TICK } kind;
  rdt_channel *channel; /* of the first two */
  size_t transport;     /* of a domain */
} rdt_watch;

/* A transport, as one device uses it. */
typedef struct rdt_device_transport {
  const rdt_transport *ops; /* from rdt_transports, or wrapped to inject faults */
  rdt_domain *domain;
  bool open;
  bool lost; /* progress thread only: the domain failed */
  char why_not[256];
  rdt_watch watch;
} rdt_device_transport;

typedef struct rdt_client rdt_client;                     /* client.h */
typedef struct rdt_handshake rdt_handshake;               /* meet/bootstrap.c */
typedef struct rdt_data_connections rdt_data_connections; /* meet/data_connections.h */

#define RDT_TRANSPORT_FAILURES 16

/* A transport that did not reach a peer lately. */
typedef struct rdt_transport_failure {
  uint64_t generation; /* of the peer */
  size_t transport;
  int64_t until; /* ms */
  char why[256];
} rdt_transport_failure;

/* The client that a channel serves. The number goes over the wire. */
typedef enum rdt_purpose {
  RDT_PURPOSE_USER = 0,
  RDT_PURPOSE_GROUPS = 1, /* not shown to the user, like the next */
  RDT_PURPOSE_STORES = 2,
  RDT_PURPOSE_COUNT
} rdt_purpose;

/* What workers do. Each kind of work has a limit of its own. */
typedef enum rdt_task_kind {
  RDT_TASK_HANDSHAKE,
  RDT_TASK_ALLOCATION,
  RDT_TASK_ENDING,
  RDT_TASK_KINDS
} rdt_task_kind;
typedef struct rdt_task rdt_task; /* one piece of it */

/* A task of a channel that ends; see core/ending.c. */
typedef enum rdt_task_state { RDT_TASK_NONE, RDT_TASK_RUNS, RDT_TASK_DONE } rdt_task_state;

/* A timer, which runs while a channel is silent; see post/waiting.h. */
typedef struct rdt_tick {
  rdt_watch watch;
  int fd;
  atomic_bool runs;
  atomic_uint us;
  _Atomic int64_t began;    /* us */
  _Atomic uint64_t channel; /* the number of the only channel that it is for */
} rdt_tick;

struct rdt_device {
  atomic_int refs;
  void (*free)(rdt_device *device);
  rdt_device_options options;
  char name[RDT_NAME_SIZE], address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  char local_name[RDT_LOCAL_NAME_SIZE]; /* of the unix socket; empty if there is none */
  uint64_t generation;
  unsigned fork_epoch;
  rdt_secret *secret; /* NULL if there is none */
  bool encrypts;      /* every connection over TCP */
  rdt_admission admission;
  rdt_device_transport transports[RDT_MAX_TRANSPORTS]; /* indexed as rdt_transports */
  rdt_counters counters;
  void *client_states[RDT_PURPOSE_COUNT];
  /* The number of clients' operations that only the progress thread watches. While there are
   * any, it calls the clients, and sleeps for WATCH_MS at most. */
  atomic_uint client_work;
  atomic_bool throttled; /* the user reads too slowly, so senders have to wait */

  pthread_mutex_t lock; /* regions, arrivals, closing; `active` for all but the progress thread */
  rdt_region *regions;
  rdt_channel *arrivals; /* connected, not yet seen by the progress thread */
  bool closing;

  /* progress thread */
  pthread_t progress_thread;
  rdt_channel *active; /* only this thread changes the list, under lock */
  int epoll_fd, wake_fd;
  atomic_bool stop;
  rdt_tick tick;
  atomic_uint readers; /* threads that wait for a notification */

  /* bootstrap thread */
  pthread_t bootstrap_thread;
  int tcp_socket, local_socket, bootstrap_wake;

  rdt_handshake *handshakes; /* those that may be evicted; under lock */
  int handshake_count;
  rdt_data_connections
      *expected; /* data connections, of channels that are being attached; under lock */

  rdt_transport_failure transport_failures[RDT_TRANSPORT_FAILURES]; /* under lock */

  int workers[RDT_TASK_KINDS]; /* how many run; under lock */
  rdt_task *endings;           /* that wait for a worker; under lock */
  pthread_cond_t workers_done;
};

/* Operations that are posted and not complete. They wait in the channel's queue or for the
 * transport. */
typedef struct rdt_posting {
  rdt_request request; /* the part that transports see; must be first */
  struct rdt_posting *next;
  rdt_channel *channel; /* the channel it is posted on, which outlives it */
  unsigned batch;       /* index into channel->batches */
  atomic_int status;    /* the first failure */
  rdt_done_fn done;
  void *context;
  uint32_t at, count; /* ops[at] is what remains of the first operation that is not wholly posted */
  rdt_op ops[];       /* with one, 120 bytes, which malloc finds fast */
} rdt_posting;

/* A control message that waits for its answer. */
typedef struct rdt_call {
  struct rdt_call *next;
  uint32_t sequence;
  bool answered;
  rdt_status failed; /* the channel went down first */
  rdt_wire answer;
  rdt_fds fds;
} rdt_call;

typedef enum rdt_waiting_mode { RDT_ARMED, RDT_SILENT, RDT_POLLED } rdt_waiting_mode;

/* The threads that wait for what comes over a channel; see post/waiting.h. */
typedef struct rdt_waiting {
  _Atomic rdt_waiting_mode mode; /* set under poll_lock, but for RDT_ARMED */
  atomic_uint sleepers;          /* threads that sleep until a transfer completes */
  atomic_uint waiters;           /* threads that poll for a transfer */
  atomic_uint pollers;           /* threads that take notifications themselves */
  atomic_uint polls;             /* by waiters and pollers */
  _Atomic int64_t waited_us;     /* when a thread last ended its wait */
  uint64_t seen;                 /* operations of the peer at that time, and */
  int64_t seen_us;               /* when there was a new one; under poll_lock */
  /* Progress thread only: `polls` when it last looked, and armed; rounds with something to take. */
  unsigned polls_seen, polls_armed, busy;
} rdt_waiting;

struct rdt_channel {
  atomic_int refs;
  void (*free)(rdt_channel *channel);
  uint64_t number;   /* counted from 1 over the whole process; never reused */
  rdt_channel *next; /* in arrivals or active */
  rdt_device *device;
  const rdt_transport *transport;
  rdt_endpoint *endpoint;
  rdt_socket
      control; /* With a local transport it is also the lease: its end of stream says that the peer holds nothing of ours */
  bool accepted;
  rdt_guest *guest; /* its place in the device's admission; NULL if we connected */
  rdt_purpose purpose;
  const rdt_client *client; /* the client of that purpose */
  char peer_name[RDT_NAME_SIZE], peer_address[RDT_ADDRESS_SIZE];
  uint64_t peer_generation, max_notify;
  char *passed_over; /* see rdt_channel_passed_over; NULL: nothing */
  char better[64];   /* see rdt_channel_better */
  _Atomic(void *) context;
  rdt_watch control_watch, event_watch;

  atomic_bool down, close_requested, broken;
  rdt_status why;  /* why it went down; set before `down` */
  char cause[384]; /* the first cause, in words; under `lock` until `down` */
  atomic_int task; /* rdt_task_state; only its worker and the progress thread set it */
  void (*run_task)(rdt_channel *); /* set before it runs */
  /* progress thread only */
  bool closing, peer_gone, own_end_sent, drained, withdrawn;
  int64_t drain_deadline, next_probe; /* ms */
  int64_t announced_until; /* ms: the log has said that another channel to this peer was lost */

  /* A control message that has not arrived whole, and bytes that the socket did not take. */
  rdt_wire incoming; /* progress thread only */
  size_t incoming_size;
  pthread_mutex_t control_lock;
  uint8_t *unsent;
  size_t unsent_size;
  rdt_remote_region *unfreed; /* whose FREE the socket did not take; they hold no channel */
  atomic_bool has_unsent;     /* one of both */

  pthread_mutex_t poll_lock; /* the endpoint's receive side */
  rdt_waiting waiting;
  pthread_mutex_t send_lock; /* the endpoint's send side, and the queue */
  rdt_posting *queue, **queue_tail;
  int64_t last_credit; /* ms: when the queue last moved or began, or did not depend on the peer */
  atomic_bool queued;  /* the queue is not empty; lets posters skip the lock */

  /* See overdue.c. */
  struct {
    atomic_uint waiting; /* requests that are not complete */
    atomic_bool moved;
  } batches[2];
  atomic_uint batch;    /* the batch that new requests join */
  atomic_uint eventful; /* those of them that want an event */
  unsigned quiet_ticks; /* progress thread only */

  pthread_mutex_t lock; /* calls, remote regions, what the peer allocated */
  pthread_cond_t answered;
  rdt_call *calls;
  uint32_t next_sequence;
  rdt_remote_region *remote_regions;
  uint64_t remote_count, remote_bytes; /* of remote_regions */
  uint64_t tenant_count, tenant_bytes; /* allocated here by the peer */
  int allocating;                      /* requests of the peer under way */
  int freeing;                         /* of its regions that a worker frees */
  bool released;                       /* the peer gets no region any more; under device->lock */
  rdt_pool *pool;                      /* the memory of regions for this peer only; may be NULL */
};

/* Whether the channel's peer may use atomic operations on a region. The number goes over the wire. */
typedef enum rdt_region_atomics {
  RDT_REGION_ATOMIC = 0,
  RDT_REGION_UNALIGNED = 1, /* its words are not aligned */
  RDT_REGION_MIXED =
      2, /* those of others, over other transports, would not be atomic with the peer's */
  RDT_REGION_DEVICE = 3 /* it does not lie in host memory */
} rdt_region_atomics;

struct rdt_remote_region {
  atomic_int refs;
  void (*free)(rdt_remote_region *region);
  rdt_remote_region *next;
  rdt_channel *channel;
  rdt_mapping *mapping;
  rdt_region_info info;
  rdt_region_atomics atomics;
  bool allocated; /* by this channel: the peer frees it after the last handle */
};

/* Returns RDT_ERR_FORKED in a child of the process that opened the device, and RDT_ERR_CLOSED
 * while it closes. */
rdt_status rdt_device_check(const rdt_device *device);
void rdt_device_ref(rdt_device *device);
void rdt_device_unref(rdt_device *device);
/* Wakes the progress thread, which then looks at everything. */
void rdt_device_wake(rdt_device *device);
/* Hands a connected channel to the progress thread, which takes over one reference. Returns
 * RDT_ERR_CLOSED once the device is closing. */
rdt_status rdt_device_adopt(rdt_channel *channel);

/* Returns true on any device's progress thread, where nothing may block. */
bool rdt_on_progress_thread(void);
/* Marks the calling thread as a progress thread. */
void rdt_begin_progress_thread(void);

#endif
