/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor treats a remote machine as a device whose memory you allocate, read and write one-sidedly.
 *
 * This is the only public header. Python (cffi reads this very file) and the TensorFlow plugin use nothing
 * else of the core.
 *
 * Example. The owner of the memory allocates a region under a name and waits for a notification; the other
 * process connects, finds the region, and writes into it. examples/c/hello.c is the whole program.
 *
 *     rdt_region_alloc(device, ROOM, RDT_ACCESS_WRITE, "mailbox", &region)
 *     rdt_device_next_notification(device, PATIENCE_MS, &news)
 *
 *     rdt_device_connect(device, address, RDT_TIMEOUT_DEFAULT, &channel)
 *     rdt_remote_region_find(channel, "mailbox", RDT_TIMEOUT_DEFAULT, &mailbox)
 *     rdt_channel_submit(channel, &op, 1, &transfer)
 *     rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT)
 *
 * Objects. A *device* is one local endpoint with one progress thread. It owns *regions*, memory that
 * peers may read or write, and *channels*, connections to devices of other processes. A *remote region*
 * is a peer's region opened over a channel. A *transfer* is the completion of posted operations.
 *
 * Threads. Every function may be called from any thread unless it says otherwise. Handlers run on the
 * device's progress thread, one at a time; they must not block, and must not close the device. (On a
 * device without on_notify, `done` may also run on a thread that waits for a transfer.)
 *
 * Completion. A function that posts returns RDT_OK when the operations are complete (`done` will not
 * be called), RDT_IN_PROGRESS when `done` will be called exactly once on the progress thread, or an
 * error (< 0) when nothing is under way: of a batch, operations before the one that failed may have been
 * executed. Until completion the local buffers belong to the core.
 *
 * Errors. Functions return rdt_status; rdt_last_error() describes the calling thread's last failure: cause,
 * device, peer, remedy. Output parameters are set only on success. Nothing aborts.
 *
 * Time. All time-outs are in milliseconds; RDT_TIMEOUT_DEFAULT means the setting DEADLINE_MS.
 */
#ifndef RDMATENSOR_H
#define RDMATENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDT_API __attribute__((visibility("default")))

/* ---- Status ------------------------------------------------------------------------------------ */

/* Grouped by the largest thing that broke, so a caller knows what to rebuild: its call (-1..), the
 * local device (-20..), the connection (-40..), the region (-60..). */
typedef enum rdt_status {
  RDT_OK = 0,
  RDT_IN_PROGRESS = 1,
  RDT_ERR_INVALID = -1,
  RDT_ERR_UNSUPPORTED = -2,
  RDT_ERR_CANCELLED = -3,
  RDT_ERR_FORKED = -4,
  RDT_ERR_NO_MEMORY = -20,
  RDT_ERR_SYSTEM = -21,
  RDT_ERR_LIMIT = -22,
  RDT_ERR_CLOSED = -23,
  RDT_ERR_UNREACHABLE = -40,
  RDT_ERR_CONNECTION_LOST = -41,
  RDT_ERR_DEADLINE = -42,
  RDT_ERR_PROTOCOL = -43,
  RDT_ERR_REFUSED = -44,
  RDT_ERR_NO_TRANSPORT = -45,
  RDT_ERR_CORRUPTED = -46,
  RDT_ERR_NO_REGION = -60,
  RDT_ERR_ACCESS = -61,
  RDT_ERR_RANGE = -62
} rdt_status;

/* Returns the name, such as "CONNECTION_LOST", or "UNKNOWN" for a number outside the table; never NULL. Static
 * storage. */
RDT_API const char *rdt_status_name(rdt_status status);
/* Returns one sentence about the code itself. Static storage. */
RDT_API const char *rdt_status_text(rdt_status status);
/* Returns "ok", "caller", "device", "connection" or "region". Static storage. */
RDT_API const char *rdt_status_group(rdt_status status);
/* Describes the calling thread's last failure; "" if there was none. Valid until the thread's next call. */
RDT_API const char *rdt_last_error(void);
/* Returns the library's version, "0.1.0". */
RDT_API const char *rdt_version(void);

/* ---- Configuration: one table; each entry is also the environment variable RDMATENSOR_<NAME> ---- */

typedef struct rdt_config_entry {
  const char *name;          /* "SPIN_US" */
  const char *default_value; /* as text */
  const char *range;         /* "0..1000000", "auto|rdma|grpc", "text" */
  const char *doc;           /* one sentence, with the unit */
  int internal;              /* 1: the default was measured, and users need not change it */
} rdt_config_entry;

/* Returns the number of entries. */
RDT_API size_t rdt_config_count(void);
/* Describes entry `index` of the table. RDT_ERR_INVALID past its end. */
RDT_API rdt_status rdt_config_describe(size_t index, rdt_config_entry *entry);
/* Writes the value in force as text, with its terminating zero, into `value`. RDT_ERR_RANGE if `size` is too
 * small, RDT_ERR_INVALID for an unknown name (the message names the nearest). */
RDT_API rdt_status rdt_config_get(const char *name, char *value, size_t size);
/* Gives the value in force of a numeric entry. Errors as rdt_config_get. */
RDT_API rdt_status rdt_config_get_u64(const char *name, uint64_t *value);
/* Overrides default and environment for this process. Devices read their settings when opened.
 * RDT_ERR_INVALID for an unknown name, RDT_ERR_RANGE for a bad value. */
RDT_API rdt_status rdt_config_set(const char *name, const char *value);

/* For tests: returns how many faults of kind `index` the setting FAULTS has injected into this
 * process. RDT_ERR_INVALID past the last kind. */
RDT_API rdt_status rdt_fault_count(size_t index, const char **name, uint64_t *count);
/* For clients of a device that inject faults into their own messages: -1 if this occasion of `kind`
 * ("call_delay"), on a channel over `transport` to the peer called `whom`, has no fault. Otherwise the fault is
 * counted, and this is how long it lasts, in microseconds; 0 for kinds without a time. Thread-safe. */
RDT_API int64_t rdt_fault_occasion(const char *kind, const char *transport, const char *whom);

/* ---- Checksums ---------------------------------------------------------------------------------- */

/* Returns the CRC32C (RFC 3720) of `size` bytes that follow those whose checksum is `crc`; 0 if they are the
 * first. `data` may be NULL if `size` is 0. Never fails. */
RDT_API uint32_t rdt_crc32c(uint32_t crc, const void *data, uint64_t size);

/* ---- Log ---------------------------------------------------------------------------------------- */

typedef enum rdt_log_level {
  RDT_LOG_ERROR = 0,
  RDT_LOG_WARN = 1,
  RDT_LOG_INFO = 2,
  RDT_LOG_DEBUG = 3
} rdt_log_level;

/* Receives each line at or below LOG_LEVEL, without newline. Called from any thread. */
typedef void (*rdt_log_fn)(void *context, rdt_log_level level, const char *line);
/* Replaces the sink (NULL: standard error). Process-wide; set it before opening devices. */
RDT_API void rdt_log_set_sink(rdt_log_fn sink, void *context);
/* Writes one line into the sink if `level` is enabled. The plugin logs through it too. */
RDT_API void rdt_log_line(rdt_log_level level, const char *line);

/* ---- Shareable memory --------------------------------------------------------------------------- */

/* Reserves `size` bytes (rounded up to pages) of memory that any transport can hand to peers; pages
 * are taken from the machine on first touch. Zero-filled, page-aligned. The caller frees it, after
 * closing every region registered over it. In a child of fork the block is memory of its own: writes of the
 * child do not reach the parent, but pages that the child has not written show what the parent writes.
 * RDT_ERR_NO_MEMORY, RDT_ERR_SYSTEM. */
RDT_API rdt_status rdt_memory_alloc(size_t size, void **address);
/* RDT_ERR_INVALID if `address` did not come from rdt_memory_alloc. */
RDT_API rdt_status rdt_memory_free(void *address);

/* ---- Device ------------------------------------------------------------------------------------- */

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

typedef struct rdt_transport_info {
  const char *name; /* "shm" */
  int usable;       /* 1 if this device opened it */
  const char *text; /* what it uses ("mlx5_0:1 (Ethernet, 100 Gbit/s, ...", or ""), or why not */
} rdt_transport_info;

/* Describes transport `index` of this build, best first. RDT_ERR_INVALID past the last. Texts are valid while
 * the device is open. */
RDT_API rdt_status rdt_device_get_transport(const rdt_device *device, size_t index,
                                            rdt_transport_info *info);
/* Returns how many bytes may still be registered before a limit of the system is reached (verbs:
 * RLIMIT_MEMLOCK, which counts for the process); UINT64_MAX if there is none. Changes with every registration. */
RDT_API uint64_t rdt_device_registrable(const rdt_device *device);
RDT_API rdt_status rdt_device_stats(const rdt_device *device, rdt_stats *stats);

/* ---- Regions ------------------------------------------------------------------------------------ */

/* What peers may do with a region (bits). */
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
/* Registers memory that the caller owns and keeps until rdt_region_close. Transports that share pages
 * (shm) need it to come from rdt_memory_alloc; memory that no transport of the device can share is
 * RDT_ERR_UNSUPPORTED, and peers reach other memory over the transports that can (rdt_region_reaches; the
 * log says which cannot, and why). Verbs pin it:
 * RDT_ERR_LIMIT, with the limit that is needed, if RLIMIT_MEMLOCK does not permit it. */
RDT_API rdt_status rdt_region_register(rdt_device *device, void *address, uint64_t size,
                                       uint32_t access, const char *name, rdt_region **region);
/* Allocates and registers memory that only the peer of `channel` may open, by its key; for others there is no
 * such region. Over verbs, where the device has memory windows (the setting WINDOWS), only the queue pairs of
 * the channel reach it, and none once it has ended; the region itself stays until it is closed. Waits for the
 * device, at most DEADLINE_MS: not from a handler. RDT_ERR_CONNECTION_LOST if the channel is down. */
RDT_API rdt_status rdt_region_alloc_for(rdt_channel *channel, uint64_t size, uint32_t access,
                                        rdt_region **region);
RDT_API rdt_status rdt_region_get_info(const rdt_region *region, rdt_region_info *info);
/* Returns 1 if the channel's peer can open the region: its memory is registered with the channel's transport. */
RDT_API int rdt_region_reaches(const rdt_region *region, const rdt_channel *channel);
/* Withdraws the key. Peers that already opened the region keep valid pages until they let go where the
 * transport maps them (RDT_CAP_MAP); elsewhere access ends now, and an operation of such a peer fails
 * and takes its channel with it. NULL is ignored. Not after rdt_device_close, which closes every region
 * itself. */
RDT_API void rdt_region_close(rdt_region *region);

/* ---- Channels ----------------------------------------------------------------------------------- */
/* What a transport can do, and does for this channel (bits of rdt_channel_info.capabilities). */
#define RDT_CAP_ENCRYPTED 4 /* nobody on the way can read what the channel carries (ENCRYPT=on) */
typedef enum rdt_capability {
  RDT_CAP_MAP = 1,             /* remote regions can be used in place (rdt_remote_region_map) */
  RDT_CAP_UNREGISTERED_SRC = 2 /* local buffers need not lie in a region, without cost */
} rdt_capability;

typedef struct rdt_channel_info {
  const char *peer_name;    /* the peer device's name; valid while the channel handle is */
  const char *peer_address; /* its host:port */
  const char *transport;    /* "shm", "verbs", "tcp" */
  uint32_t capabilities;
  uint64_t generation; /* differs each time a peer device is opened */
  uint64_t max_notify; /* largest notification payload, bytes */
  int up;              /* 1 while traffic is accepted */
} rdt_channel_info;

/* Connects to the device at "host:port" and returns an owned handle. Blocks for at most `timeout_ms`.
 * RDT_ERR_UNREACHABLE, RDT_ERR_DEADLINE, RDT_ERR_PROTOCOL (another version, or not an rdmatensor
 * port), RDT_ERR_REFUSED (another secret or host, or too many connections: the text says which),
 * RDT_ERR_NO_TRANSPORT (each refused transport with its reason, which may be the peer's user). Not from a
 * handler. */
RDT_API rdt_status rdt_device_connect(rdt_device *device, const char *address, int timeout_ms,
                                      rdt_channel **channel);
/* Connects in the same way, but over one of these transports only: names separated by commas. */
RDT_API rdt_status rdt_device_connect_over(rdt_device *device, const char *address,
                                           const char *transports, int timeout_ms,
                                           rdt_channel **channel);
/* Tells why the channel uses no better transport, if this process connected: for each of them a line
 * with its name, a colon and the reason. "" otherwise. Valid while the channel handle is. */
RDT_API const char *rdt_channel_passed_over(const rdt_channel *channel);
/* The names, separated by commas, of those among them that both devices have, and that failed or were not
 * permitted: they may work another time. Valid while the channel handle is. */
RDT_API const char *rdt_channel_better(const rdt_channel *channel);
RDT_API void rdt_channel_ref(rdt_channel *channel);
/* Gives the handle up; does not close the connection. NULL is ignored. */
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

/* ---- Remote regions ----------------------------------------------------------------------------- */

/* Opens a peer's region by key or by name, or allocates one there: it lives until the channel ends and
 * counts against the peer's REMOTE_ALLOC_LIMIT. All block for at most `timeout_ms`, return an owned
 * handle, and may not be called from a handler (the reply arrives on the progress thread), except that
 * a key whose region is already open on this channel is answered at once, from anywhere.
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
/* Gives the address of `size` bytes at `offset` in this process, valid while the handle is held. Without
 * RDT_ACCESS_WRITE the pages are read-only. RDT_ERR_UNSUPPORTED if the channel lacks RDT_CAP_MAP. */
RDT_API rdt_status rdt_remote_region_map(rdt_remote_region *region, uint64_t offset, uint64_t size,
                                         void **address);

/* ---- One-sided operations ----------------------------------------------------------------------- */

typedef enum rdt_op_kind {
  RDT_OP_WRITE = 1,       /* local -> remote */
  RDT_OP_READ = 2,        /* remote -> local */
  RDT_OP_NOTIFY = 3,      /* `local`, `size` and `immediate` to the peer's on_notify */
  RDT_OP_WRITE_NOTIFY = 4 /* WRITE, then a notification without payload */
} rdt_op_kind;

typedef struct rdt_op {
  uint32_t kind;     /* rdt_op_kind */
  uint32_t reserved; /* 0 */
  void *local;       /* not written to, except by READ */
  uint64_t size;
  rdt_remote_region *remote; /* NULL for NOTIFY; must belong to the channel */
  uint64_t remote_offset;
  uint64_t immediate; /* NOTIFY, WRITE_NOTIFY */
} rdt_op;

typedef void (*rdt_done_fn)(void *context, rdt_status status);

/* Posts `count` operations as one batch. Notifications of one channel arrive in the order posted, after
 * the data of every write posted before them; they are not ordered with reads. Operations of up to
 * STRIPE_BYTES are executed in order; before another operation uses bytes, here or there, that a longer
 * one touches, wait for its completion. A notification's payload is taken when it is posted. All
 * arguments are checked before the first byte moves: RDT_ERR_INVALID, RDT_ERR_RANGE, RDT_ERR_ACCESS.
 * Where a transport needs registered memory (verbs), buffers in a region of this device move fastest;
 * others are copied if small, and registered for the operation if not (RDT_ERR_LIMIT when the machine
 * does not let this process pin so much). */
RDT_API rdt_status rdt_channel_post(rdt_channel *channel, const rdt_op *ops, size_t count,
                                    rdt_done_fn done, void *context);
/* Does the same as rdt_channel_post, with a waitable completion instead of a callback. *transfer
 * is NULL when the result is RDT_OK, else a handle for rdt_transfer_free. */
RDT_API rdt_status rdt_channel_submit(rdt_channel *channel, const rdt_op *ops, size_t count,
                                      rdt_transfer **transfer);
/* Waits for completion and returns its status; RDT_ERR_DEADLINE when `timeout_ms` passed first (the
 * transfer goes on), RDT_IN_PROGRESS at once when it is 0. */
RDT_API rdt_status rdt_transfer_wait(rdt_transfer *transfer, int timeout_ms);
/* Gives the handle up, complete or not. NULL is ignored. */
RDT_API void rdt_transfer_free(rdt_transfer *transfer);

/* ---- Queued notifications (devices opened without on_notify) -------------------------------------- */

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

/* ---- Planner: where every tensor of a dataflow graph will lie, before the first step --------------- */

/* How a tensor travels. */
typedef enum rdt_plan_class {
  RDT_PLAN_STATIC = 0,  /* size known: written into its place at the receiver */
  RDT_PLAN_BOUNDED = 1, /* largest size known: the same, with its shape beside it */
  RDT_PLAN_DYNAMIC = 2, /* described, then fetched */
  RDT_PLAN_RPC = 3      /* TensorFlow's own RecvTensor */
} rdt_plan_class;

/* Why it is not static. */
typedef enum rdt_plan_reason {
  RDT_PLAN_BECAUSE_NONE = 0,
  RDT_PLAN_BECAUSE_TYPE = 1,      /* element_size 0: strings, variants, resources */
  RDT_PLAN_BECAUSE_DEVICE = 2,    /* RDT_EDGE_DEVICE_MEMORY */
  RDT_PLAN_BECAUSE_RANK = 3,      /* the rank is unknown */
  RDT_PLAN_BECAUSE_DIMENSION = 4, /* a dimension is unknown, and nothing bounds it */
  RDT_PLAN_BECAUSE_BATCH = 5,     /* only the first dimension is unknown; the batch bounds it */
  RDT_PLAN_BECAUSE_BUDGET = 6,    /* its places would exceed the receiver's budget */
  RDT_PLAN_BECAUSE_SIZE = 7       /* its size exceeds 64 bits */
} rdt_plan_reason;

/* Returns a name, such as "static"; "" for a number outside the table. Static storage. */
RDT_API const char *rdt_plan_class_name(rdt_plan_class plan_class);
/* Returns one clause, such as "the rank is unknown"; "" if there is no reason. Static storage. */
RDT_API const char *rdt_plan_reason_text(rdt_plan_reason reason);

/* A node of the placed graph of all tasks. */
typedef enum rdt_node_flag {
  RDT_NODE_LOOP = 1,   /* runs more than once in a step */
  RDT_NODE_BLOCKS = 2, /* may wait for something that is not its input (queues, fed values) */
  RDT_NODE_FREE = 4,   /* takes no time: variable reads, constants, reshapes */
  RDT_NODE_ANY = 8,    /* runs when one of its inputs came (Merge), not all */
  RDT_NODE_BRANCH = 16 /* may leave what follows it without a value (Switch) */
} rdt_node_flag;

typedef struct rdt_plan_node {
  uint32_t task;
  uint32_t flags;
} rdt_plan_node;

/* `to` runs after `from`, by data or control. Leave out the arcs that close a loop. */
typedef struct rdt_plan_arc {
  uint32_t from, to;
} rdt_plan_arc;

/* One tensor that travels: made by one node, used by nodes of another task. */
typedef struct rdt_plan_use {
  uint32_t producer;
  const uint32_t *consumers;
  size_t consumer_count;
} rdt_plan_use;

typedef struct rdt_plan_order {
  int32_t ready; /* tensors of one link with the same value >= 0 become ready together, and none
                    needs another one's arrival; -1: not known */
  int32_t first; /* a tensor of the same link whose `first` is greater than this one's `last` is */
  int32_t last;  /* made only after all consumers of this one ran; INT32_MAX: never known */
  int32_t may_die; /* 1: it may have no value in a step, because it comes after a branch */
} rdt_plan_order;

/* What the graph proves about the order of `use_count` tensors; `orders` has as many entries. Nodes in
 * cycles count as loops. Deterministic; O(nodes + arcs) plus a bounded effort for lifetimes, which are
 * left unknown in graphs too large for it. RDT_ERR_INVALID for an index out of range,
 * RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_plan_find_order(const rdt_plan_node *nodes, size_t node_count,
                                       const rdt_plan_arc *arcs, size_t arc_count,
                                       const rdt_plan_use *uses, size_t use_count,
                                       rdt_plan_order *orders);

typedef enum rdt_edge_flag {
  RDT_EDGE_LOOP = 1,         /* sent more than once in a step */
  RDT_EDGE_DEVICE_MEMORY = 2 /* leaves or enters memory other than the host's */
} rdt_edge_flag;

typedef struct rdt_plan_edge {
  const char *name; /* unique within its link, the pair (source, destination) */
  uint32_t source, destination;
  uint32_t dtype;        /* compared, never interpreted */
  uint32_t element_size; /* bytes; 0: elements are no plain bytes */
  int32_t rank;          /* -1: unknown */
  uint32_t flags;        /* rdt_edge_flag bits */
  const int64_t *dims;   /* `rank` of them; -1: unknown */
  rdt_plan_order order;
} rdt_plan_edge;

typedef struct rdt_plan_options {
  size_t struct_size;        /* sizeof(rdt_plan_options) */
  uint32_t slots;            /* places of each tensor, 1..64 */
  uint32_t loop_slots;       /* places of a tensor sent inside a loop, 1..64 */
  uint64_t batch;            /* bound of an unknown first dimension; 0: none */
  uint64_t fuse_bytes;       /* largest tensor that travels in a group; 0: no groups */
  uint64_t fuse_group_bytes; /* largest group */
  const uint64_t *budgets;   /* bytes of places each task may hold; NULL: no limits */
} rdt_plan_options;

/* Places are rings of equal slots: tensors of one group lie in one slot side by side, tensors of
 * disjoint lifetimes take turns in the same ring. */
typedef struct rdt_plan_place {
  rdt_plan_class plan_class;
  rdt_plan_reason reason;
  uint64_t bytes;  /* size of the tensor, or its bound; 0 when unknown */
  int32_t ring;    /* number within its link; -1: none (not static or bounded, or empty) */
  int32_t group;   /* number within its link of the group it travels in; -1: alone */
  uint64_t offset; /* in the slot */
} rdt_plan_place;

typedef struct rdt_plan_ring {
  uint64_t offset; /* of the first slot in the link's memory, a multiple of 64 */
  uint64_t stride; /* from slot to slot, a multiple of 64 */
  uint32_t slots;
  uint32_t members; /* edges that use it */
} rdt_plan_ring;

typedef struct rdt_plan_link {
  uint32_t source, destination;
  uint64_t bytes; /* of the memory that the destination registers for it */
  uint32_t ring_count, group_count;
  uint64_t hash; /* of its edges and their places; does not depend on the numbers of tasks */
} rdt_plan_link;

typedef struct rdt_plan rdt_plan;

/* Plans `edge_count` edges between `task_count` tasks. Pure and deterministic: the order of the edges
 * and the numbers of tasks do not matter. Where a budget is exceeded, the edges that save most time per
 * byte stay. The caller owns *plan; nothing of the arguments is kept. RDT_ERR_INVALID (task out of range,
 * negative dimension other than -1, two edges of one name, no options), RDT_ERR_NO_MEMORY. Source: the
 * static placement of Xue et al., EuroSys'19, section 3.2. */
RDT_API rdt_status rdt_plan_make(const rdt_plan_edge *edges, size_t edge_count, size_t task_count,
                                 const rdt_plan_options *options, rdt_plan **plan);
/* NULL is ignored. */
RDT_API void rdt_plan_free(rdt_plan *plan);
/* Describes edge `index`, as given to rdt_plan_make. RDT_ERR_INVALID past the last. This and all
 * functions below may run on any thread. */
RDT_API rdt_status rdt_plan_get_place(const rdt_plan *plan, size_t index, rdt_plan_place *place);
/* Returns the number of links that have edges. They are ordered by source and destination. */
RDT_API size_t rdt_plan_link_count(const rdt_plan *plan);
RDT_API rdt_status rdt_plan_get_link(const rdt_plan *plan, size_t index, rdt_plan_link *link);
/* Describes ring `ring` of link `index`. RDT_ERR_INVALID past the last. */
RDT_API rdt_status rdt_plan_get_ring(const rdt_plan *plan, size_t index, uint32_t ring,
                                     rdt_plan_ring *out);
/* Why a tensor is sent by an operation of its own, and received by one. */
typedef enum rdt_plan_alone {
  RDT_PLAN_ALONE_NOT = 0,    /* it shares them */
  RDT_PLAN_ALONE_OFF = 1,    /* fuse_bytes is 0 */
  RDT_PLAN_ALONE_SIZE = 2,   /* its size is not known, or too large to wait for others */
  RDT_PLAN_ALONE_LOOP = 3,   /* RDT_EDGE_LOOP */
  RDT_PLAN_ALONE_BRANCH = 4, /* it may have no value, and such an operation sends all or nothing */
  RDT_PLAN_ALONE_WAITS = 5,  /* what makes it may wait for more than its inputs */
  RDT_PLAN_ALONE_LAST = 6    /* no other one becomes ready together with it */
} rdt_plan_alone;

/* One clause, such as "it is sent in a loop"; "" for none. Static storage. */
RDT_API const char *rdt_plan_alone_text(rdt_plan_alone alone);

typedef struct rdt_plan_fusion {
  int32_t operation; /* the number of the operation that sends it, from 0; -1: its own */
  rdt_plan_alone alone;
} rdt_plan_fusion;

/* Decides which edges share operations; `fusions` has as many entries as `edges`. `source` and
 * `destination` may be any numbers: an operation runs from one to one other. Its members have equal
 * `ready`, so that it waits for nothing that waits for it. Of `options`, only fuse_bytes counts. Pure and
 * deterministic. RDT_ERR_INVALID as rdt_plan_make, RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_plan_fuse(const rdt_plan_edge *edges, size_t edge_count,
                                 const rdt_plan_options *options, rdt_plan_fusion *fusions);
/* Returns a hash of what an edge is (name, dtype, shape, loop), not of its place. */
RDT_API uint64_t rdt_plan_edge_hash(const rdt_plan_edge *edge);

/* ---- Groups: collective operations among devices -------------------------------------------------- */

/* A group joins `size` devices, each with a rank, through a channel between every two of them. An
 * operation is started by every member with the same tag and the same kind, type, counts and algorithm;
 * operations of different tags run at the same time and may be started in any order. */
typedef struct rdt_group rdt_group;

typedef enum rdt_collective_kind {
  RDT_ALL_REDUCE = 1,     /* output = input[0] op input[1] op ..., everywhere the same bits */
  RDT_REDUCE_SCATTER = 2, /* member r has the r-th of `size` equal parts of that */
  RDT_ALL_GATHER = 3,     /* output = input[0], input[1], ... */
  RDT_BROADCAST = 4,      /* output = input of `root`; the others' input is not used */
  RDT_ALL_TO_ALL = 5,     /* the r-th part of output = this rank's part of input[r] */
  RDT_BARRIER = 6         /* complete when every member started it */
} rdt_collective_kind;

typedef enum rdt_dtype {
  RDT_FLOAT32 = 1,
  RDT_FLOAT64 = 2,
  RDT_FLOAT16 = 3,
  RDT_BFLOAT16 = 4,
  RDT_INT8 = 5,
  RDT_INT16 = 6,
  RDT_INT32 = 7,
  RDT_INT64 = 8,
  RDT_UINT8 = 9,
  RDT_UINT16 = 10,
  RDT_UINT32 = 11,
  RDT_UINT64 = 12
} rdt_dtype;

typedef enum rdt_reduction {
  RDT_SUM = 1,
  RDT_PRODUCT = 2,
  RDT_MIN = 3, /* NaN if any operand is */
  RDT_MAX = 4,
  RDT_MEAN = 5 /* the sum times 1 / size; floating point only */
} rdt_reduction;

typedef enum rdt_algorithm {
  RDT_ALGORITHM_AUTO = 0,    /* the cheapest by the group's measured costs, see GROUP_ALGORITHM */
  RDT_ALGORITHM_FLAT = 1,    /* everybody sends everything to all */
  RDT_ALGORITHM_HALVING = 2, /* recursive halving, then doubling */
  RDT_ALGORITHM_RING = 3,    /* pipelined ring */
  RDT_ALGORITHM_DIRECT = 4,  /* each member reduces one part, then hands it to all */
  RDT_ALGORITHM_HIERARCHICAL = 5, /* inside each host first, then one member of each host */
  RDT_ALGORITHM_TREES =
      6, /* along the trees of rdt_group_use_trees; without any for a kind and root, RING */
  RDT_ALGORITHM_COUNT = 7
} rdt_algorithm;

/* Returns a name, such as "flat"; "" for a number outside the table. Static storage. */
RDT_API const char *rdt_algorithm_name(rdt_algorithm algorithm);
/* Returns the bytes of one element; 0 for a number outside the table. */
RDT_API size_t rdt_dtype_size(rdt_dtype dtype);

typedef struct rdt_group_options {
  size_t struct_size;  /* sizeof(rdt_group_options) */
  const char *name;    /* the same for all members, 1..63 bytes; unique among their live groups */
  uint32_t rank, size; /* 0 <= rank < size <= 1024 */
  const char *root;    /* address of rank 0's device; ignored at rank 0 */
  int timeout_ms;
} rdt_group_options;

/* Joins the group: blocks until all members have, and every two of them are connected. Members meet at
 * rank 0, which measures what transfers and reductions cost and tells all. The handle is owned.
 * RDT_ERR_INVALID, RDT_ERR_DEADLINE (names the ranks that are missing), RDT_ERR_REFUSED (two members claim
 * one rank, or differ in size or settings), RDT_ERR_UNREACHABLE, RDT_ERR_CONNECTION_LOST. Not from a
 * handler. */
RDT_API rdt_status rdt_group_create(rdt_device *device, const rdt_group_options *options,
                                    rdt_group **group);
/* Fails what is under way with RDT_ERR_CANCELLED, here and at the other members, waits for its end, and
 * gives the handle up. Not from a handler or an operation's `done`. NULL is ignored. Before
 * rdt_device_close. */
RDT_API void rdt_group_close(rdt_group *group);

/* Whom an operation waited for: the member whose first message came last, and the time from the start here until
 * then; 0 and this rank if all were there before. Members that send nothing to this one do not count. */
typedef struct rdt_collective_report {
  int64_t waited_ns;
  uint32_t last;
} rdt_collective_report;

typedef struct rdt_collective {
  size_t struct_size; /* sizeof(rdt_collective) */
  rdt_collective_kind kind;
  rdt_dtype dtype;         /* not of BARRIER */
  rdt_reduction reduction; /* of ALL_REDUCE and REDUCE_SCATTER */
  rdt_algorithm algorithm;
  uint32_t root;     /* of BROADCAST */
  uint64_t tag[2];   /* names the operation: never used twice in a group. Both 0: the number of the
                              call, where all members make the same calls in the same order */
  const void *input; /* may be `output` (ALL_GATHER: this member's part of it) */
  void *output;      /* otherwise they must not overlap */
  uint64_t count;    /* elements of input: ALL_REDUCE, BROADCAST (any number); REDUCE_SCATTER,
                              ALL_TO_ALL (a multiple of size); ALL_GATHER (output has size times as many) */
  int timeout_ms;    /* RDT_ERR_DEADLINE after that */
  /* NULL, or asked by rdt_group_run on the calling thread about every 100 ms of waiting: not 0
   * cancels the operation. */
  int (*stop)(void *context);
  void *context;
  /* NULL, or a text that must be equal at all members, such as the shapes of tensors. Messages carry its hash.
   * A member that disagrees learns the first 127 bytes of another member's text. Copied. */
  const char *detail;
  rdt_collective_report *report; /* NULL, or filled until the end of the operation */
} rdt_collective;

/* Runs an operation on the calling thread, which polls for what it waits for. RDT_OK; else the operation
 * failed here and fails at the other members, and no member touches the buffers any more:
 * RDT_ERR_INVALID, RDT_ERR_DEADLINE, RDT_ERR_CANCELLED, RDT_ERR_CONNECTION_LOST (a member is gone),
 * RDT_ERR_PROTOCOL (members disagree about the operation: the text has both views), RDT_ERR_NO_MEMORY,
 * RDT_ERR_CORRUPTED (bytes changed on their way; with CHECKSUM, of when the group was created, at both members),
 * what a member gave rdt_group_abort. Buffers in regions of the device (READ and WRITE) move without a copy. Not
 * from a handler. */
RDT_API rdt_status rdt_group_run(rdt_group *group, const rdt_collective *collective);
/* Does the same without waiting. Returns RDT_IN_PROGRESS, and `done` runs once, on a thread of
 * the library; or returns an error, and nothing was started. */
RDT_API rdt_status rdt_group_start(rdt_group *group, const rdt_collective *collective,
                                   rdt_done_fn done, void *context);
/* Does the same, but drives a short operation on the calling thread until nothing has happened for `spin_us`. That
 * saves switches of threads if the other members are as far. RDT_OK: it is complete, and `done` does not run;
 * RDT_IN_PROGRESS: as rdt_group_start; an error: nothing was started, or it failed here and fails at the other
 * members. Not from a handler. */
RDT_API rdt_status rdt_group_try(rdt_group *group, const rdt_collective *collective, int spin_us,
                                 rdt_done_fn done, void *context);
/* Does the same as rdt_group_start with a waitable completion instead of a callback: a handle for
 * rdt_transfer_free. */
RDT_API rdt_status rdt_group_submit(rdt_group *group, const rdt_collective *collective,
                                    rdt_transfer **transfer);
/* Fails the operation with this tag, here and at the other members, with RDT_ERR_CANCELLED; also if it
 * starts later. NULL: all that are under way here. From any thread. */
RDT_API rdt_status rdt_group_cancel(rdt_group *group, const uint64_t tag[2]);
/* Ends the group at every member: what is under way, and what starts later, fails with `status`, an error, and
 * a text that holds the first 511 bytes of `text`. The first call of any member counts. The handle remains to be
 * closed. RDT_ERR_INVALID. From any thread. */
RDT_API rdt_status rdt_group_abort(rdt_group *group, rdt_status status, const char *text);

typedef struct rdt_group_info {
  const char *name; /* valid while the group is */
  uint32_t rank, size;
  uint32_t hosts; /* different machines among the members */
  double latency_ns[2],
      byte_ns[2];        /* of a message: inside a host, between hosts; 0: no such pair */
  double reduce_byte_ns; /* of a reduction, for each byte of one operand */
  uint64_t
      operations[RDT_ALGORITHM_COUNT]; /* completed, by algorithm; [0]: of a kind with only one */
  uint64_t bytes[RDT_ALGORITHM_COUNT]; /* sent by this member */
  uint64_t copies;                     /* bytes staged because a buffer lies in no region */
} rdt_group_info;

RDT_API rdt_status rdt_group_get_info(const rdt_group *group, rdt_group_info *info);
/* A spanning tree: for BROADCAST and ALL_GATHER from the root, for REDUCE_SCATTER to it, for ALL_REDUCE to it and
 * back. Trees of one kind share the data in proportion to `rate`; those of BROADCAST, ALL_GATHER and
 * REDUCE_SCATTER do so with trees of the same root. */
typedef struct rdt_group_tree {
  rdt_collective_kind kind; /* ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER or BROADCAST */
  uint32_t root;
  uint64_t rate;           /* bytes per second, above 0 */
  const uint32_t *parents; /* of each member; the root's is itself */
} rdt_group_tree;

/* Gives the group trees for RDT_ALGORITHM_TREES, in place of those that it had; 0 trees take them away. Every
 * member calls it with the same arguments and without other operations under way, and waits until all have. AUTO
 * then chooses trees where they are expected to be the fastest. `pair_ns` is NULL, or has size * size numbers:
 * nanoseconds per byte from each member to each other one, 0 where no link leads; AUTO then expects of the other
 * algorithms what these links permit. Copies all. RDT_ERR_INVALID (also at the other members:
 * RDT_ERR_PROTOCOL), RDT_ERR_NO_MEMORY, the errors of a barrier. After an error members may have different trees,
 * and operations on trees fail with RDT_ERR_PROTOCOL: call it again. Not from a handler. */
RDT_API rdt_status rdt_group_use_trees(rdt_group *group, const rdt_group_tree *trees, size_t count,
                                       const double *pair_ns, int timeout_ms);
/* Returns what AUTO would choose (for BROADCAST, with root 0), or the error of rdt_group_abort if nothing can run any more. */
RDT_API rdt_status rdt_group_choose(const rdt_group *group, rdt_collective_kind kind,
                                    uint64_t bytes, rdt_algorithm *algorithm);

/* ---- Stores: parameters that peers pull, and slots that they push into ----------------------------- */

/* A store publishes this member's parameters for others to read, and has a slot for what each other member
 * sends. Nobody waits for anybody: a pull reads memory, a push writes into the own slot if that is free. Every word
 * in that memory has one writer. Members need not be there at the same time: one that ends, or is lost, is
 * missed by the calls that concern it, and may come back. */
typedef struct rdt_store rdt_store;

typedef struct rdt_store_options {
  size_t struct_size;  /* sizeof(rdt_store_options) */
  const char *name;    /* the same at all members, 1..47 bytes; unique among a device's stores */
  uint32_t rank, size; /* 0 <= rank < size <= 1024 */
  uint64_t bytes;      /* of a version of the parameters; 0: nothing is published */
  uint64_t slot_bytes; /* that a member may push at once; 0: nothing is pushed */
  uint32_t buffers; /* versions that are kept, 2..16. With more, slower readers find theirs whole */
  /* Memory of rdt_memory_alloc with the sizes that rdt_store_sizes gives, which the caller frees after
   * rdt_store_close; both NULL: the store's own. */
  void *values, *slots;
} rdt_store_options;

/* Gives the bytes that a store shares: for readers, and for writers. RDT_ERR_INVALID. */
RDT_API rdt_status rdt_store_sizes(const rdt_store_options *options, uint64_t *values,
                                   uint64_t *slots);
/* Opens a store. Of the options, all but `rank` and the memory are the same at all members. The handle is owned.
 * RDT_ERR_INVALID, and what rdt_region_register returns. */
RDT_API rdt_status rdt_store_open(rdt_device *device, const rdt_store_options *options,
                                  rdt_store **store);
/* Ends calls under way with RDT_ERR_CLOSED and the connections of the store, and gives the handle up. Not
 * from a handler. NULL is ignored. Before rdt_device_close. */
RDT_API void rdt_store_close(rdt_store *store);

/* Connects to the store of that name at "host:port", waiting for it to be opened, or connects anew: an
 * earlier connection to the member ends. A member that this one shall push to, or tell clocks, needs no
 * connection of its own; each direction has one. RDT_ERR_INVALID (another rank, or other options), RDT_ERR_NO_REGION
 * (no such store is there at the deadline), and what rdt_device_connect returns. Not from a handler. */
RDT_API rdt_status rdt_store_connect(rdt_store *store, uint32_t rank, const char *address,
                                     int timeout_ms);

typedef struct rdt_store_member {
  int connected; /* 1 if calls for it can be made: rdt_store_connect, and the connection is up */
  int present;   /* 1 if it has connected to this store and is there */
  int gone;      /* 1 if it was there and is lost, or has closed its store */
  uint64_t generation; /* of its device, as it connected; 0: it has not */
  uint64_t clock;      /* the last one it told */
  char address[280];   /* of its device, as it connected, so that one can connect back; "" */
} rdt_store_member;

/* RDT_ERR_INVALID for this store's own rank, and past the last. */
RDT_API rdt_status rdt_store_get_member(rdt_store *store, uint32_t rank, rdt_store_member *member);

/* Gives the memory of the next version, `bytes` long, with old contents. Readers see it after
 * rdt_store_publish. RDT_ERR_INVALID if a version was begun already. */
RDT_API rdt_status rdt_store_begin(rdt_store *store, void **memory);
/* Publishes the version that was begun, with a number of the caller's, such as its step. *version (or NULL)
 * counts from 1. RDT_ERR_INVALID if none was begun. */
RDT_API rdt_status rdt_store_publish(rdt_store *store, uint64_t mark, uint64_t *version);

typedef struct rdt_store_pulled {
  uint64_t version, mark;
  uint64_t repeats; /* how often the member overwrote what was being read */
} rdt_store_pulled;

/* Reads `size` bytes at `offset` of a member's newest version, one-sidedly. Waits for its first version; reads again
 * when the version was overwritten meanwhile, so the bytes are always of one version. RDT_ERR_DEADLINE, also
 * if it never is whole: then the member publishes too often for this network, or has too few buffers.
 * RDT_ERR_RANGE, RDT_ERR_UNREACHABLE (not connected), RDT_ERR_CONNECTION_LOST, RDT_ERR_PROTOCOL. On an error, `into`
 * has any contents. A transfer still under way at the deadline ends with its connection. Not from a handler. */
RDT_API rdt_status rdt_store_pull(rdt_store *store, uint32_t rank, uint64_t offset, uint64_t size,
                                  void *into, int timeout_ms, rdt_store_pulled *pulled);

/* Writes into this member's slot at another one, and notifies it. *sent is 0 if the slot is not free,
 * because the member has not released what came before: then nothing happened, and a later push may bring
 * something newer. Returns when the local bytes may be used again. Errors as rdt_store_pull; after one, the
 * member may have got the bytes or not. Not from a handler. */
RDT_API rdt_status rdt_store_push(rdt_store *store, uint32_t rank, const void *data, uint64_t size,
                                  uint64_t mark, int timeout_ms, int *sent);

typedef struct rdt_store_arrival {
  uint32_t rank; /* who sent it */
  uint64_t mark, size;
  const void *data; /* in the slot; valid until rdt_store_release */
} rdt_store_arrival;

/* Gives the oldest push that nobody has taken yet. RDT_ERR_DEADLINE if none came, RDT_IN_PROGRESS at once if
 * none is there and `timeout_ms` is 0, RDT_ERR_CLOSED. */
RDT_API rdt_status rdt_store_take(rdt_store *store, int timeout_ms, rdt_store_arrival *arrival);
/* Frees the slot of an arrival that was taken. RDT_ERR_INVALID if it was not. */
RDT_API rdt_status rdt_store_release(rdt_store *store, uint32_t rank);

/* Writes this member's clock into the stores of all members that are connected. Clocks never go back.
 * UINT64_MAX says that nobody shall wait for this member. Does not wait. */
RDT_API rdt_status rdt_store_set_clock(rdt_store *store, uint64_t clock);
/* Waits until every other member has told `clock` or more. Members that are gone do not count.
 * RDT_ERR_DEADLINE names the slowest one, RDT_ERR_CLOSED. Not from a handler. */
RDT_API rdt_status rdt_store_wait_clocks(rdt_store *store, uint64_t clock, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
