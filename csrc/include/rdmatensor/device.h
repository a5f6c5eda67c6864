/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices, regions, channels, and one-sided operations over them. rdmatensor.h includes this file, and says what
 * holds for all functions.
 */
#ifndef RDMATENSOR_DEVICE_H
#define RDMATENSOR_DEVICE_H

#include "rdmatensor/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device */

typedef struct rdt_device rdt_device;
typedef struct rdt_channel rdt_channel;
typedef struct rdt_region rdt_region;
typedef struct rdt_remote_region rdt_remote_region;
typedef struct rdt_transfer rdt_transfer;

#define RDT_TIMEOUT_DEFAULT (-1)

typedef struct rdt_device_options {
  size_t struct_size;       /* sizeof(rdt_device_options): how fields can be added later */
  const char *name;         /* shown to peers and in every message; NULL: host:pid */
  const char *bind_address; /* NULL: the setting BIND_ADDRESS */
  uint16_t port;            /* 0: the setting BIND_PORT, by default any free port */
  void *context;            /* passed to every handler */
  /* A peer connected to this device (not called for rdt_device_connect). The handle is borrowed: take
   * rdt_channel_ref to keep it beyond on_released. */
  void (*on_connect)(void *context, rdt_channel *channel);
  /* A notification arrived; everything the peer wrote before it is visible. `data` may still be
   * changed by a hostile peer: copy, then check. Valid during the call only. NULL: notifications are
   * queued for rdt_device_next_notification. */
  void (*on_notify)(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                    size_t size);
  /* No more traffic; once per channel, also after rdt_channel_close. rdt_last_error() has the cause. */
  void (*on_down)(void *context, rdt_channel *channel, rdt_status why);
  /* The peer can no longer touch this process's memory through this channel; once, after on_down.
   * Only now may memory that was lent to the peer be reused. Not called when the device is closed while
   * the peer still holds regions. */
  void (*on_released)(void *context, rdt_channel *channel);
} rdt_device_options;

typedef struct rdt_stats {
  uint64_t writes, write_bytes; /* one-sided writes posted */
  uint64_t reads, read_bytes;   /* one-sided reads posted */
  uint64_t atomics;             /* atomic operations posted */
  uint64_t notifies_sent, notifies_received;
  uint64_t notify_bytes_sent, notify_bytes_received;
  uint64_t queued;    /* batches that had to wait for a credit */
  uint64_t doorbells; /* shm: sleeping peers woken; verbs: batches handed to the device */
  uint64_t wakeups;   /* own wake-ups from sleep */
  uint64_t channels_opened, channels_lost;
  uint64_t regions, region_bytes; /* registered now */
  uint64_t pending; /* requests that are not complete now: without credit, or the transport's */
} rdt_stats;

/* Opens a device: the transports of the setting TRANSPORTS that this machine has, the bootstrap port
 * and the progress thread; reads the secret. `options` may be NULL. RDT_ERR_UNSUPPORTED if there is no
 * transport, with each one's reason. RDT_ERR_INVALID (also: the secret's file), RDT_ERR_SYSTEM (an
 * address that is not this machine's), RDT_ERR_LIMIT (a port in use), RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_device_open(const rdt_device_options *options, rdt_device **device);
/* Ends, with RDT_ERR_CLOSED, what other threads wait for in rdt_device_connect and rdt_group_create, so that the
 * device can be closed without waiting for their time-outs; no peer can connect any more. Any thread, any
 * number of times, before rdt_device_close. NULL is ignored. */
RDT_API void rdt_device_interrupt(rdt_device *device);
/* Closes channels and regions, stops the thread, frees the device. Pending operations complete with
 * RDT_ERR_CLOSED first. Handles of its channels stay valid for their holders but fail. Not from a
 * handler. NULL is ignored. */
RDT_API void rdt_device_close(rdt_device *device);
/* Returns the "host:port" that peers connect to. Valid while the device is open. */
RDT_API const char *rdt_device_address(const rdt_device *device);
RDT_API const char *rdt_device_name(const rdt_device *device);

/* Where memory lies. Each is a bit of what a transport takes. */
typedef enum rdt_memory_kind {
  RDT_MEMORY_HOST = 1, /* what the processor addresses */
  RDT_MEMORY_CUDA = 2, /* of a CUDA device */
  RDT_MEMORY_OTHER = 4 /* of another accelerator */
} rdt_memory_kind;

typedef struct rdt_transport_info {
  const char *name; /* "shm" */
  int usable;       /* 1 if this device opened it */
  const char *text; /* what it uses ("mlx5_0:1 (Ethernet, 100 Gbit/s, ...", or ""), or why not */
  uint32_t memory_kinds; /* rdt_memory_kind bits: what can be registered with it */
} rdt_transport_info;

/* Describes transport `index` of this build, best first. RDT_ERR_INVALID past the last. Texts are valid while
 * the device is open. */
RDT_API rdt_status rdt_device_get_transport(const rdt_device *device, size_t index,
                                            rdt_transport_info *info);
/* Returns how many bytes may still be registered before a limit of the system is reached (verbs:
 * RLIMIT_MEMLOCK, which counts for the process); UINT64_MAX if there is none. Changes with every registration. */
RDT_API uint64_t rdt_device_registrable(const rdt_device *device);
RDT_API rdt_status rdt_device_stats(const rdt_device *device, rdt_stats *stats);

/* Regions */

/* The rights that peers have to a region. Each is a bit. */
typedef enum rdt_access {
  RDT_ACCESS_NONE = 0,
  RDT_ACCESS_READ = 1,
  RDT_ACCESS_WRITE = 2
} rdt_access;

typedef struct rdt_region_info {
  void *address; /* local address; NULL for a remote region that is not mapped */
  uint64_t size; /* bytes */
  uint64_t key;  /* what a peer opens it by; never reused, not guessable */
  uint32_t access;
} rdt_region_info;

/* Allocates and registers `size` > 0 bytes, zero-filled, page-aligned. `name` (NULL or up to 63 bytes)
 * lets peers find it without the key; it must be unique on the device. The device owns the memory. */
RDT_API rdt_status rdt_region_alloc(rdt_device *device, uint64_t size, uint32_t access,
                                    const char *name, rdt_region **region);
/* Registers memory that the caller owns and keeps until rdt_region_close. It may be read-only if `access` is
 * RDT_ACCESS_READ. Transports that share pages (shm) need it to come from rdt_memory_alloc. Of other memory with
 * RDT_ACCESS_READ alone, peers over shm may read, if their kernel lets them (process_vm_readv), and cannot map;
 * memory that no transport of the device can share is RDT_ERR_UNSUPPORTED, and peers reach it over the transports
 * that can (the log says which cannot, and why). Verbs pin it:
 * RDT_ERR_LIMIT, with the limit that is needed, if RLIMIT_MEMLOCK does not permit it. */
RDT_API rdt_status rdt_region_register(rdt_device *device, void *address, uint64_t size,
                                       uint32_t access, const char *name, rdt_region **region);
/* Does the same with memory of any kind: RDT_ERR_UNSUPPORTED if no transport of the device takes that kind. */
RDT_API rdt_status rdt_region_register_kind(rdt_device *device, rdt_memory_kind kind, void *address,
                                            uint64_t size, uint32_t access, const char *name,
                                            rdt_region **region);
/* Allocates and registers memory that only the peer of `channel` may open, by its key; for others there is no
 * such region. Over verbs, where the device has memory windows (the setting WINDOWS), only the queue pairs of
 * the channel reach it, and none once it has ended; the region itself stays until it is closed. Waits for the
 * device, at most DEADLINE_MS: not from a handler. RDT_ERR_CONNECTION_LOST if the channel is down. */
RDT_API rdt_status rdt_region_alloc_for(rdt_channel *channel, uint64_t size, uint32_t access,
                                        rdt_region **region);
RDT_API rdt_status rdt_region_get_info(const rdt_region *region, rdt_region_info *info);
/* Returns 1 if the channel's peer can open the region and always use it: its memory is registered with the channel's
 * transport, and its reads do not depend on what the peer's kernel permits. */
RDT_API int rdt_region_reaches(const rdt_region *region, const rdt_channel *channel);
/* Withdraws the key. Peers that already opened the region keep valid pages until they let go where the
 * transport maps them (RDT_CAP_MAP); elsewhere access ends now, and an operation of such a peer fails
 * and takes its channel with it. NULL is ignored. Not after rdt_device_close, which closes every region
 * itself. */
RDT_API void rdt_region_close(rdt_region *region);

/* Channels */
/* The capabilities of a transport that are in effect for a channel: the bits of rdt_channel_info.capabilities. */
#define RDT_CAP_ENCRYPTED 4 /* nobody on the way can read what the channel carries (ENCRYPT=on) */
typedef enum rdt_capability {
  RDT_CAP_MAP = 1,              /* remote regions can be used in place (rdt_remote_region_map) */
  RDT_CAP_UNREGISTERED_SRC = 2, /* local buffers need not lie in a region, without cost */
  RDT_CAP_ATOMIC = 8            /* atomic operations; over verbs, if both RDMA devices have them */
} rdt_capability;

typedef struct rdt_channel_info {
  const char *peer_name;    /* the peer device's name; valid while the channel handle is */
  const char *peer_address; /* its host:port */
  const char *transport;    /* "shm", "verbs", "tcp" */
  uint32_t capabilities;
  uint32_t memory_kinds; /* rdt_memory_kind bits of the transport */
  uint64_t generation;   /* differs each time a peer device is opened */
  uint64_t max_notify;   /* largest notification payload, bytes */
  int up;                /* 1 while traffic is accepted */
} rdt_channel_info;

/* Connects to the device at "host:port" and returns an owned handle. Blocks for at most `timeout_ms`.
 * RDT_ERR_UNREACHABLE, RDT_ERR_DEADLINE, RDT_ERR_PROTOCOL (another version, or not an rdmatensor
 * port), RDT_ERR_REFUSED (another secret or host, or too many connections: the text says which),
 * RDT_ERR_NO_TRANSPORT (each refused transport with its reason, which may be the peer's user). Not from a
 * handler. */
RDT_API rdt_status rdt_device_connect(rdt_device *device, const char *address, int timeout_ms,
                                      rdt_channel **channel);
/* Connects in the same way, but only to a device of this name, and over one of these transports: names separated
 * by commas. NULL permits any. RDT_ERR_REFUSED if another device is at the address; with a secret, nobody without
 * it can pretend the name, or lead the connection to another device that has the secret. */
RDT_API rdt_status rdt_device_connect_to(rdt_device *device, const char *address, const char *name,
                                         const char *transports, int timeout_ms,
                                         rdt_channel **channel);
/* Tells why the channel uses no better transport, if this process connected: for each of them a line
 * with its name, a colon and the reason. "" otherwise. Valid while the channel handle is. */
RDT_API const char *rdt_channel_passed_over(const rdt_channel *channel);
/* The names, separated by commas, of those among them that both devices have, and that failed or were not
 * permitted: they may work another time. Valid while the channel handle is. */
RDT_API const char *rdt_channel_better(const rdt_channel *channel);
RDT_API void rdt_channel_ref(rdt_channel *channel);
/* Gives the handle up; does not close the connection, nor wait for what is left of one. NULL is ignored. */
RDT_API void rdt_channel_unref(rdt_channel *channel);
/* Ends traffic in both directions: what waits for credit completes with RDT_ERR_CANCELLED, what is under
 * way goes out first, for at most a second, and on_down runs on the progress thread. Idempotent. The
 * handle still needs rdt_channel_unref. */
RDT_API void rdt_channel_close(rdt_channel *channel);
RDT_API rdt_status rdt_channel_get_info(const rdt_channel *channel, rdt_channel_info *info);
/* Keeps a pointer for the user, which the core does not interpret. Set it in on_connect or right after
 * rdt_device_connect. */
RDT_API void rdt_channel_set_context(rdt_channel *channel, void *context);
RDT_API void *rdt_channel_context(const rdt_channel *channel);

/* Remote regions */

/* Opens a peer's region by key or by name, or allocates one there, for this channel alone: it counts against
 * the peer's REMOTE_ALLOC_LIMIT and 1024 regions, and lives until its last handle here is given up, or the
 * channel ends. All block for at most `timeout_ms`, return an owned handle, and may not be called from a
 * handler (the reply arrives on the progress thread), except that a key whose region is already open on this
 * channel is answered at once, from anywhere.
 * RDT_ERR_NO_REGION, RDT_ERR_LIMIT, RDT_ERR_DEADLINE, RDT_ERR_CONNECTION_LOST. */
RDT_API rdt_status rdt_remote_region_open(rdt_channel *channel, uint64_t key, int timeout_ms,
                                          rdt_remote_region **region);
RDT_API rdt_status rdt_remote_region_find(rdt_channel *channel, const char *name, int timeout_ms,
                                          rdt_remote_region **region);
RDT_API rdt_status rdt_remote_region_alloc(rdt_channel *channel, uint64_t size, uint32_t access,
                                           int timeout_ms, rdt_remote_region **region);
RDT_API void rdt_remote_region_ref(rdt_remote_region *region);
/* While a handle is held, the peer does not see on_released: bytes used in place stay valid, even
 * after the peer closed or died. NULL is ignored. */
RDT_API void rdt_remote_region_unref(rdt_remote_region *region);
RDT_API rdt_status rdt_remote_region_get_info(const rdt_remote_region *region,
                                              rdt_region_info *info);
/* Returns rdt_memory_kind bits: where `local` of an operation on the region may lie. It is always RDT_MEMORY_HOST, and
 * also RDT_MEMORY_CUDA if CUDA itself copies, between processes of one host. */
RDT_API uint32_t rdt_remote_region_local_kinds(const rdt_remote_region *region);
/* Gives the address of `size` bytes at `offset` in this process, valid while the handle is held. Without
 * RDT_ACCESS_WRITE the pages are read-only. RDT_ERR_UNSUPPORTED if the channel lacks RDT_CAP_MAP. */
RDT_API rdt_status rdt_remote_region_map(rdt_remote_region *region, uint64_t offset, uint64_t size,
                                         void **address);

/* One-sided operations */

typedef enum rdt_op_kind {
  RDT_OP_WRITE = 1,        /* local -> remote */
  RDT_OP_READ = 2,         /* remote -> local */
  RDT_OP_NOTIFY = 3,       /* `local`, `size` and `immediate` to the peer's on_notify */
  RDT_OP_WRITE_NOTIFY = 4, /* WRITE, then a notification without payload */
  RDT_OP_FETCH_ADD = 5,    /* atomic: adds `operand` to a remote word, modulo 2^64 */
  RDT_OP_COMPARE_SWAP = 6  /* atomic: gives a remote word the value `operand` if it is `expected` */
} rdt_op_kind;

#define RDT_ATOMIC_SIZE 8

typedef struct rdt_op {
  uint32_t kind;             /* rdt_op_kind */
  uint32_t reserved;         /* 0 */
  void *local;               /* not written to, except by READ and atomic operations */
  uint64_t size;             /* of `local`, bytes; RDT_ATOMIC_SIZE for atomic operations */
  rdt_remote_region *remote; /* NULL for NOTIFY; must belong to the channel */
  uint64_t remote_offset;
  uint64_t immediate; /* NOTIFY, WRITE_NOTIFY */
  uint64_t operand;   /* FETCH_ADD, COMPARE_SWAP */
  uint64_t expected;  /* COMPARE_SWAP */
} rdt_op;

typedef void (*rdt_done_fn)(void *context, rdt_status status);

/* Posts `count` operations as one batch. Notifications of one channel arrive in the order posted, after
 * the data of every write posted before them; they are not ordered with reads. Operations of up to
 * STRIPE_BYTES, over tcp of up to 512 KB if that is less, are executed in order; before another
 * operation uses bytes, here or there, that a longer one touches, wait for its completion. A
 * notification's payload is taken when it is posted. All arguments are checked before the first byte
 * moves: RDT_ERR_INVALID, RDT_ERR_RANGE, RDT_ERR_ACCESS.
 * Where a transport needs registered memory (verbs), buffers in a region of this device move fastest;
 * others are copied if small, and registered for the operation if not (RDT_ERR_LIMIT when the machine
 * does not let this process pin so much).
 *
 * Atomic operations change one word of 8 bytes in the owner's byte order: nothing that other atomic operations do to
 * it comes between its reading and its writing. Afterwards `local` has the word's old value. The region must give
 * peers RDT_ACCESS_READ and RDT_ACCESS_WRITE, and the offset must be a multiple of 8 (RDT_ERR_INVALID).
 * RDT_ERR_UNSUPPORTED if the channel lacks RDT_CAP_ATOMIC, or the region does not begin at a multiple of 8 bytes.
 * Writes and reads of the word are not atomic with them; FETCH_ADD of 0 reads it. Over shm and tcp they are
 * atomic with the atomic instructions of any process that has the memory. Many RDMA devices are atomic with
 * themselves only (IBV_ATOMIC_HCA). Over these, instructions of the owner are not atomic with them, and regions that
 * peers also reach over other transports take none, with RDT_ERR_UNSUPPORTED: the owner must have
 * TRANSPORTS=verbs, or the peer must allocate the region (rdt_remote_region_alloc). If the channel is lost
 * before the completion, nobody knows whether the word was changed. */
RDT_API rdt_status rdt_channel_post(rdt_channel *channel, const rdt_op *ops, size_t count,
                                    rdt_done_fn done, void *context);
/* Does the same as rdt_channel_post, with a waitable completion instead of a callback. *transfer
 * is NULL when the result is RDT_OK, else a handle for rdt_transfer_free. */
RDT_API rdt_status rdt_channel_submit(rdt_channel *channel, const rdt_op *ops, size_t count,
                                      rdt_transfer **transfer);
/* Waits for completion and returns its status; RDT_ERR_DEADLINE when `timeout_ms` passed first (the
 * transfer goes on), RDT_IN_PROGRESS at once when it is 0, RDT_ERR_FORKED in a child of the process that began it, unless
 * it has succeeded there before. */
RDT_API rdt_status rdt_transfer_wait(rdt_transfer *transfer, int timeout_ms);
/* Gives the handle up, complete or not. NULL is ignored. */
RDT_API void rdt_transfer_free(rdt_transfer *transfer);

/* Queued notifications (devices opened without on_notify) */

typedef struct rdt_notification {
  rdt_channel *channel; /* owned: rdt_notification_clear gives it up */
  uint64_t immediate;
  void *data; /* owned, likewise; NULL when size is 0 */
  uint64_t size;
} rdt_notification;

/* Takes the oldest notification, waiting for at most `timeout_ms`: RDT_ERR_DEADLINE if none came,
 * RDT_IN_PROGRESS at once if none is there and it is 0. When nobody takes them, senders run out of
 * credit and their operations wait; nothing is lost. A reader that takes none for DEADLINE_MS while
 * operations wait counts as lost. */
RDT_API rdt_status rdt_device_next_notification(rdt_device *device, int timeout_ms,
                                                rdt_notification *notification);
RDT_API void rdt_notification_clear(rdt_notification *notification);

/* Event loops: waiting for many things in no thread */

/* A descriptor that poll and epoll take, and the tokens of what became ready. One thread at a time takes; any
 * thread watches. What nobody watches costs nothing. */
typedef struct rdt_event_queue rdt_event_queue;

/* RDT_ERR_NO_MEMORY, RDT_ERR_SYSTEM (this process may open no more descriptors). */
RDT_API rdt_status rdt_event_queue_open(rdt_event_queue **queue);
/* Returns the descriptor, which is readable while there are tokens. The queue owns it: do not read it. */
RDT_API int rdt_event_queue_fd(const rdt_event_queue *queue);
/* Moves at most `room` tokens into `tokens`, the oldest first, and returns how many. Does not block. */
RDT_API size_t rdt_event_queue_take(rdt_event_queue *queue, uint64_t *tokens, size_t room);
/* Closes the descriptor; no token comes any more. NULL is ignored. */
RDT_API void rdt_event_queue_close(rdt_event_queue *queue);
/* Returns RDT_IN_PROGRESS, and the token comes once, when the transfer is complete; or the status of a transfer
 * that is complete, and no token comes. RDT_ERR_NO_MEMORY. The transfer may be freed before. */
RDT_API rdt_status rdt_transfer_watch(rdt_transfer *transfer, rdt_event_queue *queue,
                                      uint64_t token);
/* From now on the token comes whenever a notification may be there for rdt_device_next_notification, at once if one
 * is, and when the device is interrupted or closed, which ends this. Once for each queue: RDT_ERR_INVALID.
 * RDT_ERR_NO_MEMORY, RDT_ERR_CLOSED. */
RDT_API rdt_status rdt_device_watch(rdt_device *device, rdt_event_queue *queue, uint64_t token);
/* Ends that, and withdraws a token that nobody has taken. Without rdt_device_watch it does nothing. */
RDT_API void rdt_device_unwatch(rdt_device *device, const rdt_event_queue *queue);

#ifdef __cplusplus
}
#endif

#endif
