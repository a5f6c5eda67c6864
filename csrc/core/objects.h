/* SPDX-License-Identifier: Apache-2.0
 *
 * The core's objects and who may touch what. docs/ownership.md has the prose.
 *
 *   device ──owns──> regions, active channels        (device->lock)
 *   channel ──owns─> endpoint, control socket, queue (send_lock), calls and remote regions (lock)
 *   remote region ──holds──> its channel
 *
 * References: a channel is held by the device while active, by each user handle and each remote
 * region; a device by its opener and by each channel. What a channel's threads may be using (endpoint,
 * socket) is freed with the last reference only.
 */
#ifndef RDT_CORE_OBJECTS_H
#define RDT_CORE_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/local.h"
#include "base/net.h"
#include "core/meet/admission.h"
#include "core/meet/secret.h"
#include "transport/transport.h"

#define RDT_NAME_SIZE 256
#define RDT_REGION_NAME_SIZE 64
#define RDT_HOST_ID_SIZE 64

typedef struct rdt_counters {
  _Atomic uint64_t writes, write_bytes, reads, read_bytes;
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
  const rdt_channel *tenant; /* the channel whose peer allocated it; NULL for our own */
  uint64_t reserved_for;     /* number of the channel whose peer alone may open it; 0: any may */
  rdt_region_memory memory;
  rdt_registration *registrations[RDT_MAX_TRANSPORTS]; /* NULL where a transport cannot share it */
  uint64_t key;
  char name[RDT_REGION_NAME_SIZE];
  bool owned; /* the memory too */
};

typedef struct rdt_watch {
  enum { RDT_WATCH_CONTROL, RDT_WATCH_ENDPOINT, RDT_WATCH_DOMAIN } kind;
  rdt_channel *channel; /* of the first two */
  size_t transport;     /* of the last */
} rdt_watch;

/* A transport as one device has it. */
typedef struct rdt_device_transport {
  const rdt_transport *ops; /* that of rdt_transports, or with faults */
  rdt_domain *domain;
  bool open;
  bool lost; /* progress thread only: the domain works no more */
  char why_not[256];
  rdt_watch watch;
} rdt_device_transport;

typedef struct rdt_client rdt_client;       /* client.h */
typedef struct rdt_handshake rdt_handshake; /* meet/bootstrap.c */

/* Whom a channel serves; a number on the wire. */
typedef enum rdt_purpose {
  RDT_PURPOSE_USER = 0,
  RDT_PURPOSE_GROUPS = 1, /* not shown to the user */
  RDT_PURPOSE_COUNT
} rdt_purpose;

/* What workers are for; each has its own number of them. */
typedef enum rdt_work { RDT_WORK_HANDSHAKE, RDT_WORK_ALLOCATION, RDT_WORK_KINDS } rdt_work;

struct rdt_device {
  atomic_int refs;
  void (*free)(rdt_device *device);
  rdt_device_options options;
  char name[RDT_NAME_SIZE], address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  char local_name[RDT_LOCAL_NAME_SIZE]; /* of the unix socket; empty: there is none */
  uint64_t generation;
  unsigned fork_epoch;
  rdt_secret *secret; /* NULL: none */
  rdt_admission admission;
  rdt_device_transport transports[RDT_MAX_TRANSPORTS]; /* as rdt_transports */
  rdt_counters counters;
  void *client_states[RDT_PURPOSE_COUNT];
  /* Operations of clients that nobody but the progress thread watches: it looks after them every now and then. */
  atomic_uint client_work;
  atomic_bool throttled; /* the user reads too slowly: senders shall wait */

  pthread_mutex_t lock; /* regions, arrivals, closing; `active` for all but the progress thread */
  rdt_region *regions;
  rdt_channel *arrivals; /* connected, not yet seen by the progress thread */
  bool closing;

  /* progress thread */
  pthread_t progress_thread;
  rdt_channel *active; /* it alone changes the list, under lock */
  int epoll_fd, wake_fd;
  atomic_bool stop;

  /* bootstrap thread */
  pthread_t bootstrap_thread;
  int tcp_socket, local_socket, bootstrap_wake;

  rdt_handshake *handshakes; /* that may be evicted; under lock */
  int handshake_count;

  int workers[RDT_WORK_KINDS]; /* running, under lock */
  pthread_cond_t workers_done;
};

/* Posted operations that are not complete: they wait in the channel's queue, or for the transport. */
typedef struct rdt_posting {
  rdt_request request; /* first: what transports see of it */
  struct rdt_posting *next;
  rdt_channel *channel; /* it is posted on; outlives it */
  unsigned batch;       /* of that channel's */
  rdt_done_fn done;
  void *context;
  atomic_int status; /* the first failure */
  size_t at, count;  /* ops[at] is the first that is not wholly posted, and what is left of it */
  rdt_op ops[];
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

struct rdt_channel {
  atomic_int refs;
  void (*free)(rdt_channel *channel);
  uint64_t number;   /* from 1, of all in this process; never used again */
  rdt_channel *next; /* in arrivals or active */
  rdt_device *device;
  const rdt_transport *transport;
  rdt_endpoint *endpoint;
  int control; /* socket; of a local transport also the lease: its end of stream says that the peer
                  holds nothing of ours */
  bool accepted;
  rdt_guest *guest; /* its place among those that peers may have; NULL if we connected */
  rdt_purpose purpose;
  const rdt_client *client; /* of that purpose */
  char peer_name[RDT_NAME_SIZE], peer_address[RDT_ADDRESS_SIZE];
  uint64_t peer_generation, max_notify;
  _Atomic(void *) context;
  rdt_watch control_watch, event_watch;

  atomic_bool down, close_requested, broken;
  rdt_status why;  /* it went down; set before `down` */
  char cause[384]; /* the first one, in words; under `lock` until `down` */
  /* progress thread only */
  bool closing, peer_gone, own_end_sent, drained, released;
  int64_t drain_deadline, next_probe; /* ms */

  /* Control messages that are not whole, and that the socket did not take. */
  rdt_wire incoming; /* progress thread only */
  size_t incoming_size;
  pthread_mutex_t control_lock;
  uint8_t *unsent;
  size_t unsent_size;
  atomic_bool has_unsent;

  pthread_mutex_t poll_lock; /* endpoint's receive side */
  atomic_uint sleepers;      /* threads that sleep until a transfer completes */
  /* Threads that take this channel's notifications themselves. While it is `warm`, no doorbell wakes the
   * progress thread for it, which looks by itself from time to time instead. */
  atomic_uint pollers, polls;
  atomic_bool warm;
  unsigned polls_seen,
      polls_armed;           /* progress thread only: `polls` when it last looked, and armed */
  pthread_mutex_t send_lock; /* endpoint's send side, queue */
  rdt_posting *queue, **queue_tail;
  int64_t last_credit; /* ms: when the queue last moved or began, or had to wait for no peer */
  atomic_bool queued;  /* queue is not empty: lets posters skip the lock */

  /* See overdue.c. */
  struct {
    atomic_uint waiting; /* requests that are not complete */
    atomic_bool moved;
  } batches[2];
  atomic_uint batch;    /* the one that new requests belong to */
  unsigned quiet_ticks; /* progress thread only */

  pthread_mutex_t lock; /* calls, remote regions, what the peer allocated */
  pthread_cond_t answered;
  rdt_call *calls;
  uint32_t next_sequence;
  rdt_remote_region *remote_regions;
  uint64_t remote_count, remote_bytes; /* of remote_regions */
  uint64_t tenant_count, tenant_bytes; /* allocated here by the peer */
  int allocating;                      /* requests of the peer under way */
};

struct rdt_remote_region {
  atomic_int refs;
  void (*free)(rdt_remote_region *region);
  rdt_remote_region *next;
  rdt_channel *channel;
  rdt_mapping *mapping;
  rdt_region_info info;
};

/* RDT_ERR_FORKED in a child of the process that opened the device, RDT_ERR_CLOSED while it closes. */
rdt_status rdt_device_check(const rdt_device *device);
void rdt_device_ref(rdt_device *device);
void rdt_device_unref(rdt_device *device);
/* Has the progress thread look at everything. */
void rdt_device_wake(rdt_device *device);
/* Hands a connected channel to the progress thread; takes over one reference on success.
 * RDT_ERR_CLOSED once the device is closing. */
rdt_status rdt_device_adopt(rdt_channel *channel);

/* True on any device's progress thread, where nothing may block. */
bool rdt_on_progress_thread(void);
/* Marks the calling thread as one. */
void rdt_begin_progress_thread(void);

#endif
