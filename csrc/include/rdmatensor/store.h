/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores: parameters that peers pull, and slots that they push into. rdmatensor.h includes this file, and says what
 * holds for all functions.
 */
#ifndef RDMATENSOR_STORE_H
#define RDMATENSOR_STORE_H

#include "rdmatensor/device.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* Ends the connections of the store and the calls under way, and does not wait for these. They and later ones return
 * RDT_ERR_CLOSED, or what the end of their connection means. The handle stays valid until rdt_store_close, so a caller
 * can make sure that no thread is on its way into a call. NULL is ignored. Idempotent. Not from a handler. */
RDT_API void rdt_store_stop(rdt_store *store);
/* Ends calls under way with RDT_ERR_CLOSED and the connections of the store, and gives the handle up. Not
 * from a handler. NULL is ignored. Before rdt_device_close. */
RDT_API void rdt_store_close(rdt_store *store);

/* Connects to the store of that name at "host:port", waiting for it to be opened, or connects anew: an
 * earlier connection to the member ends first, so nothing arrives over it any more. A member that this one
 * shall push to, or tell clocks, needs no connection of its own; each direction has one. RDT_ERR_INVALID
 * (another rank, or other options), RDT_ERR_NO_REGION (no such store is there at the deadline), and what
 * rdt_device_connect returns. Not from a handler. */
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
