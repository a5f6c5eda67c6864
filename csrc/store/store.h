/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores: what their memory holds, and what a process knows about the members.
 *
 * A member shares two regions. Of the one with values it is the only writer; others read it. The one with
 * slots has a part for each other member, in which each word is written by that member or by the owner.
 */
#ifndef RDT_STORE_STORE_H
#define RDT_STORE_STORE_H

#include "base/clock.h"
#include "core/client.h"

#define RDT_STORE_NAME_SIZE 48
#define RDT_STORE_MAX_SIZE 1024
#define RDT_STORE_BUFFERS 16
#define RDT_STORE_MAGIC 0x3245524f54534452u /* "RDSTORE2", in the byte order of both ends */

/* The beginning of the values; the buffers follow. Version v lies in buffer v % buffers. While v is being written,
 * `started` is v and `published` is v - 1, so v - 1, v - 2, ... v - buffers + 1 are whole. */
typedef struct rdt_store_head {
  uint64_t magic, generation;
  uint32_t rank, size, buffers, zero;
  uint64_t bytes, slot_bytes;
  uint64_t fill[2];
  _Atomic uint64_t started, published; /* a cache line of their own */
  uint64_t more_fill[6];
  uint64_t marks[RDT_STORE_BUFFERS]; /* of the version in each buffer */
} rdt_store_head;
#define RDT_STORE_HEAD_BYTES 4096u /* the buffers begin on a page */

/* The beginning of a slot. What its sender writes and what its owner writes are in different lines. */
typedef struct rdt_store_slot {
  _Atomic uint64_t arrived,
      released;              /* owner: the number of the last push that came, and that is done */
  _Atomic uint64_t welcomed; /* owner: the number of the greeting whose channel may write now */
  uint64_t fill[5];
  uint64_t number, bytes, mark; /* sender */
  uint64_t more_fill[5];
  _Atomic uint64_t clock; /* sender */
  uint64_t last_fill[7];
} rdt_store_slot;
_Static_assert(sizeof(rdt_store_slot) == 192, "the wire's layout");
_Static_assert(sizeof(rdt_store_head) == 256, "the wire's layout");

/* What a notification says, in the highest byte of its immediate. */
typedef enum rdt_store_message {
  RDT_STORE_HELLO = 1, /* payload: which store, who connects to it, and the greeting's number */
  RDT_STORE_PUSHED = 2,
  RDT_STORE_CLOCK = 3
} rdt_store_message;
#define RDT_STORE_IMMEDIATE(kind) ((uint64_t)(kind) << 56)

/* A connection to a member's store. */
typedef struct rdt_store_link {
  rdt_channel *channel; /* held, as the regions are; NULL: there is none */
  rdt_remote_region *values, *slots;
} rdt_store_link;

typedef struct rdt_store_peer {
  rdt_store *store;
  uint32_t rank;
  /* Under stores->lock. */
  rdt_store_link out;
  rdt_channel *in; /* held; what brings its pushes. Its context is this peer */
  /* Likewise: takes the place of `in` once that can write nothing any more. */
  rdt_channel *next;
  uint64_t greeting; /* that `next` brought */
  bool gone, taken;
  uint64_t generation, turn; /* `turn` orders arrivals */
  uint64_t size, mark;       /* of the arrival */
  char address[RDT_ADDRESS_SIZE];
  /* One push at a time, and one clock at a time. Take these before stores->lock. */
  pthread_mutex_t push_lock, clock_lock;
  uint64_t sent; /* the number of the last push over this connection, or of one that had arrived */
} rdt_store_peer;

typedef struct rdt_stores rdt_stores;

struct rdt_store {
  rdt_store *next;
  rdt_stores *stores;
  rdt_device *device;
  rdt_store_options options; /* its name is `name` */
  char name[RDT_STORE_NAME_SIZE];
  uint64_t stride, slot_stride;
  rdt_store_head *head;
  uint8_t *slots;
  rdt_region *regions[2];
  void *owned[2];
  /* Under stores->lock. */
  rdt_store_peer *peers; /* options.size of them */
  bool begun;
  atomic_bool closing; /* set under the lock */
  int users;
  uint64_t turns, clock;
};

/* All stores of a device. */
struct rdt_stores {
  rdt_device *device;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  rdt_store *list;
  bool stopping;
};

static inline rdt_stores *rdt_stores_of(const rdt_device *device) {
  return rdt_client_state(device, RDT_PURPOSE_STORES);
}
static inline rdt_store_slot *rdt_store_slot_of(const rdt_store *store, uint32_t sender) {
  return (rdt_store_slot *)(void *)(store->slots + sender * store->slot_stride);
}
/* The names of the two regions. */
void rdt_store_region_name(const rdt_store *store, const char *which, char *name);

/* Begins a call that may wait: fails with RDT_ERR_INVALID on the progress thread, and with RDT_ERR_CLOSED
 * once the store is closing. Until the call leaves, the store exists. */
rdt_status rdt_store_enter(rdt_store *store);
void rdt_store_leave(rdt_store *store);

/* RDT_ERR_INVALID unless it is another member's. */
rdt_status rdt_store_check_rank(const rdt_store *store, uint32_t rank);
/* Takes references to the connection to a member; rdt_store_link_drop gives them up. */
rdt_status rdt_store_link_take(rdt_store *store, uint32_t rank, rdt_store_link *link);
void rdt_store_link_drop(rdt_store_link *link);

/* Between two looks at what no event announces. */
void rdt_store_pause(void);

/* Writes this member's clock there, if there is a connection. Does not wait. Threads that tell it at the same time
 * do so in turn, each the clock of its turn. */
rdt_status rdt_store_tell_clock(rdt_store_peer *peer);

/* Posts and waits. At the deadline the connection ends, and with it the use of local memory. */
rdt_status rdt_store_run(rdt_channel *channel, const rdt_op *ops, size_t count,
                         rdt_deadline deadline);
/* Reads from the region into `into`. */
rdt_status rdt_store_read(rdt_channel *channel, rdt_remote_region *region, uint64_t offset,
                          uint64_t size, void *into, rdt_deadline deadline);

#endif
