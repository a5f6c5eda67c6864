/* SPDX-License-Identifier: Apache-2.0
 *
 * Pulling from a member, and pushing to one.
 */
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/config.h"
#include "base/status.h"
#include "core/post/channel.h"
#include "store/store.h"

#define PAUSE_US 200

/* A member that closes its store withdraws its regions while we may be using them. */
static rdt_status as_lost(const rdt_channel *channel, rdt_status status) {
  if (status != RDT_ERR_NO_REGION && status != RDT_ERR_ACCESS) return status;
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s has closed its store", channel->peer_name);
}

/* What begins just before the deadline may end: giving it up costs the connection. */
enum { GRACE_MS = 1000 };

/* An operation that is complete needs no channel; others end with theirs. Not inlined: where it is, GCC warns of the
 * fence when it builds for the thread sanitizer. */
__attribute__((noinline)) rdt_status rdt_store_run(rdt_channel *channel, const rdt_op *ops,
                                                   size_t count, rdt_deadline deadline) {
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_channel_submit(channel, ops, count, &transfer);
  if (status != RDT_IN_PROGRESS) {
    /* The reads that follow must not be moved before this one. */
    atomic_thread_fence(memory_order_seq_cst);
    return as_lost(channel, status);
  }
  status = rdt_transfer_wait(transfer, rdt_deadline_left_plus(deadline, GRACE_MS));
  if (status == RDT_ERR_DEADLINE) {
    rdt_channel_close(channel);
    while (rdt_transfer_wait(transfer, RDT_TIMEOUT_DEFAULT) == RDT_ERR_DEADLINE) continue;
    status = rdt_fail(RDT_ERR_DEADLINE,
                      "a transfer of a store with %s took longer than its deadline; the connection "
                      "was closed",
                      channel->peer_name);
  }
  rdt_transfer_free(transfer);
  atomic_thread_fence(memory_order_seq_cst);
  return as_lost(channel, status);
}

rdt_status rdt_store_read(rdt_channel *channel, rdt_remote_region *region, uint64_t offset,
                          uint64_t size, void *into, rdt_deadline deadline) {
  rdt_op op = {
      .kind = RDT_OP_READ, .local = into, .size = size, .remote = region, .remote_offset = offset};
  return rdt_store_run(channel, &op, 1, deadline);
}

/* Closing the store ends the connections of calls under way: that is why they fail then. */
static rdt_status unless_closed(const rdt_store *store, rdt_status status) {
  if (status == RDT_OK || !store->closing) return status;
  return rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", store->name);
}

void rdt_store_pause(void) {
  const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
  nanosleep(&pause, NULL);
}

typedef struct {
  rdt_store *store;
  const rdt_store_link *link;
  uint64_t offset, size;
  void *into;
  rdt_deadline deadline;
} pull;

static rdt_status read_head(const pull *p, rdt_store_head *head) {
  return rdt_store_read(p->link->channel, p->link->values, 0, sizeof(*head), head, p->deadline);
}

static rdt_status first_version(const pull *p, rdt_store_head *head) {
  rdt_status status;
  while ((status = read_head(p, head)) == RDT_OK && atomic_load(&head->published) == 0) {
    if (rdt_deadline_left(p->deadline) == 0)
      return rdt_fail(RDT_ERR_DEADLINE, "%s has published nothing in store \"%s\"",
                      p->link->channel->peer_name, p->store->name);
    if (p->store->closing)
      return rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", p->store->name);
    rdt_store_pause();
  }
  return status;
}

/* Reads what was the newest version before, and its mark. *whole tells whether it was still there afterwards: what
 * one read brings may be of different times, so `started` comes with a later one. */
static rdt_status read_version(const pull *p, rdt_store_head *head, bool *whole,
                               rdt_store_pulled *pulled) {
  const uint64_t version = atomic_load(&head->published);
  const uint64_t buffers = p->store->options.buffers, place = version % buffers;
  const rdt_op ops[] = {
      {.kind = RDT_OP_READ,
       .local = &pulled->mark,
       .size = sizeof(pulled->mark),
       .remote = p->link->values,
       .remote_offset = offsetof(rdt_store_head, marks) + place * sizeof(pulled->mark)},
      {.kind = RDT_OP_READ,
       .local = p->into,
       .size = p->size,
       .remote = p->link->values,
       .remote_offset = RDT_STORE_HEAD_BYTES + place * p->store->stride + p->offset}};
  rdt_status status = rdt_store_run(p->link->channel, ops, p->size > 0 ? 2 : 1, p->deadline);
  if (status == RDT_OK) status = read_head(p, head);
  if (status != RDT_OK) return status;
  const uint64_t started = atomic_load(&head->started);
  *whole = started >= version && started < version + buffers;
  pulled->version = version;
  return RDT_OK;
}

static rdt_status run_pull(const pull *p, rdt_store_pulled *pulled) {
  rdt_store_head head;
  bool whole = false;
  rdt_status status = first_version(p, &head);
  for (; status == RDT_OK && !whole; pulled->repeats += !whole) {
    if (pulled->repeats > 0 && rdt_deadline_left(p->deadline) == 0)
      return rdt_fail(RDT_ERR_DEADLINE,
                      "%s overwrote %llu versions of store \"%s\" while they were read: let it "
                      "publish less often, or give the store more buffers",
                      p->link->channel->peer_name, (unsigned long long)pulled->repeats,
                      p->store->name);
    status = read_version(p, &head, &whole, pulled);
  }
  return status;
}

rdt_status rdt_store_pull(rdt_store *store, uint32_t rank, uint64_t offset, uint64_t size,
                          void *into, int timeout_ms, rdt_store_pulled *out) {
  rdt_store_link link = {0};
  rdt_store_pulled pulled = {0};
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  const uint64_t bytes = store->options.bytes;
  if (bytes == 0 || offset > bytes || size > bytes - offset)
    status =
        rdt_fail(RDT_ERR_RANGE, "%llu bytes at %llu are outside of a version's %llu",
                 (unsigned long long)size, (unsigned long long)offset, (unsigned long long)bytes);
  else if (!into && size > 0)
    status = rdt_fail(RDT_ERR_INVALID, "into must not be NULL");
  if (status == RDT_OK) status = rdt_store_link_take(store, rank, &link);
  if (status == RDT_OK) {
    const pull p = {store, &link, offset, size, into, rdt_deadline_after(timeout_ms)};
    status = run_pull(&p, &pulled);
    rdt_store_link_drop(&link);
  }
  if (status == RDT_OK && out) *out = pulled;
  status = unless_closed(store, status);
  rdt_store_leave(store);
  return status;
}

typedef struct {
  uint64_t number, bytes, mark;
} push_head;

/* Writes the push into our slot there. */
static rdt_status write_slot(const rdt_store *store, const rdt_store_link *link,
                             const push_head *head, const void *data, rdt_deadline deadline) {
  const uint64_t slot = store->options.rank * store->slot_stride;
  const rdt_op ops[] = {
      {.kind = RDT_OP_WRITE,
       .local = (void *)head,
       .size = sizeof(*head),
       .remote = link->slots,
       .remote_offset = slot + offsetof(rdt_store_slot, number)},
      {.kind = RDT_OP_WRITE,
       .local = (void *)data,
       .size = head->bytes,
       .remote = link->slots,
       .remote_offset = slot + sizeof(rdt_store_slot)},
      {.kind = RDT_OP_NOTIFY, .immediate = RDT_STORE_IMMEDIATE(RDT_STORE_PUSHED)}};
  if (head->bytes > 0) return rdt_store_run(link->channel, ops, 3, deadline);
  const rdt_op few[] = {ops[0], ops[2]};
  return rdt_store_run(link->channel, few, 2, deadline);
}

/* Under the peer's push_lock. */
static rdt_status push_if_free(rdt_store_peer *peer, const rdt_store_link *link, const void *data,
                               push_head *head, rdt_deadline deadline, int *sent) {
  const rdt_store *store = peer->store;
  uint64_t words[2]; /* arrived, released */
  rdt_status status =
      rdt_store_read(link->channel, link->slots, store->options.rank * store->slot_stride,
                     sizeof(words), words, deadline);
  if (status != RDT_OK || words[0] != words[1] || words[0] < peer->sent) return status;
  head->number = words[0] + 1;
  status = write_slot(store, link, head, data, deadline);
  if (status != RDT_OK) return status;
  peer->sent = head->number;
  *sent = 1;
  return RDT_OK;
}

rdt_status rdt_store_push(rdt_store *store, uint32_t rank, const void *data, uint64_t size,
                          uint64_t mark, int timeout_ms, int *sent) {
  rdt_store_link link = {0};
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  if (!sent || (!data && size > 0))
    status = rdt_fail(RDT_ERR_INVALID, "data and sent must not be NULL");
  else if (size > store->options.slot_bytes)
    status = rdt_fail(RDT_ERR_RANGE, "%llu bytes do not fit into a slot of %llu",
                      (unsigned long long)size, (unsigned long long)store->options.slot_bytes);
  if (status == RDT_OK) status = rdt_store_check_rank(store, rank);
  if (status == RDT_OK) {
    rdt_store_peer *peer = &store->peers[rank];
    push_head head = {.bytes = size, .mark = mark};
    *sent = 0;
    pthread_mutex_lock(&peer->push_lock); /* from here on, the link is not replaced */
    status = rdt_store_link_take(store, rank, &link);
    if (status == RDT_OK)
      status = push_if_free(peer, &link, data, &head, rdt_deadline_after(timeout_ms), sent);
    pthread_mutex_unlock(&peer->push_lock);
    rdt_store_link_drop(&link);
  }
  status = unless_closed(store, status);
  rdt_store_leave(store);
  return status;
}
