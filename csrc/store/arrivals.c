/* SPDX-License-Identifier: Apache-2.0
 *
 * What other members have brought: pushes, and their clocks.
 */
#include <stddef.h>
#include <stdlib.h>

#include "base/status.h"
#include "store/store.h"

static bool waits(const rdt_store *store, uint32_t rank) {
  const rdt_store_slot *slot = rdt_store_slot_of(store, rank);
  return !store->peers[rank].taken &&
         atomic_load_explicit(&slot->arrived, memory_order_acquire) != atomic_load(&slot->released);
}

/* The oldest arrival that nobody has taken. Call it under stores->lock. */
static rdt_store_peer *oldest(rdt_store *store) {
  rdt_store_peer *found = NULL;
  for (uint32_t i = 0; i < store->options.size; i++)
    if (waits(store, i) && (!found || store->peers[i].turn < found->turn)) found = &store->peers[i];
  return found;
}

rdt_status rdt_store_take(rdt_store *store, int timeout_ms, rdt_store_arrival *arrival) {
  if (!arrival) return rdt_fail(RDT_ERR_INVALID, "arrival must not be NULL");
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  rdt_deadline deadline = rdt_deadline_after(timeout_ms);
  rdt_stores *stores = store->stores;
  pthread_mutex_lock(&stores->lock);
  rdt_store_peer *peer;
  while (!(peer = oldest(store)) && !store->closing && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&stores->changed, &stores->lock, deadline);
  if (store->closing)
    status = rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", store->name);
  else if (!peer && timeout_ms == 0)
    status = RDT_IN_PROGRESS;
  else if (!peer)
    status = rdt_fail(RDT_ERR_DEADLINE, "nobody pushed into store \"%s\" within the deadline",
                      store->name);
  if (status == RDT_OK) {
    peer->taken = true;
    *arrival = (rdt_store_arrival){.rank = peer->rank,
                                   .mark = peer->mark,
                                   .size = peer->size,
                                   .data = rdt_store_slot_of(store, peer->rank) + 1};
  }
  pthread_mutex_unlock(&stores->lock);
  rdt_store_leave(store);
  return status;
}

rdt_status rdt_store_release(rdt_store *store, uint32_t rank) {
  if (!store) return rdt_fail(RDT_ERR_INVALID, "store must not be NULL");
  bool taken = false;
  pthread_mutex_lock(&store->stores->lock);
  if (rank < store->options.size) {
    rdt_store_slot *slot = rdt_store_slot_of(store, rank);
    taken = store->peers[rank].taken;
    store->peers[rank].taken = false;
    if (taken)
      atomic_store_explicit(&slot->released, atomic_load(&slot->arrived), memory_order_release);
  }
  pthread_mutex_unlock(&store->stores->lock);
  if (taken) return RDT_OK;
  return rdt_fail(RDT_ERR_INVALID, "nothing of rank %u was taken from store \"%s\"", rank,
                  store->name);
}

static void free_sent(void *context, rdt_status status) {
  (void)status; /* a member that is lost needs no clock */
  free(context);
}

static rdt_status post_clock(const rdt_store *store, const rdt_store_link *link, uint64_t clock) {
  uint64_t *word = malloc(sizeof(*word));
  if (!word) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *word = clock;
  const rdt_op op = {
      .kind = RDT_OP_WRITE_NOTIFY,
      .local = word,
      .size = sizeof(*word),
      .remote = link->slots,
      .remote_offset = store->options.rank * store->slot_stride + offsetof(rdt_store_slot, clock),
      .immediate = RDT_STORE_IMMEDIATE(RDT_STORE_CLOCK)};
  rdt_status status = rdt_channel_post(link->channel, &op, 1, free_sent, word);
  if (status != RDT_IN_PROGRESS) free(word);
  return status;
}

rdt_status rdt_store_tell_clock(rdt_store_peer *peer) {
  rdt_store *store = peer->store;
  rdt_store_link link;
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&peer->clock_lock);
  if (rdt_store_link_take(store, peer->rank, &link) == RDT_OK) {
    pthread_mutex_lock(&store->stores->lock);
    const uint64_t clock = store->clock;
    pthread_mutex_unlock(&store->stores->lock);
    if (clock > 0) status = post_clock(store, &link, clock);
    rdt_store_link_drop(&link);
  }
  pthread_mutex_unlock(&peer->clock_lock);
  return status;
}

rdt_status rdt_store_set_clock(rdt_store *store, uint64_t clock) {
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&store->stores->lock);
  if (clock < store->clock)
    status =
        rdt_fail(RDT_ERR_INVALID, "the clock of store \"%s\" is %llu: it cannot go back to %llu",
                 store->name, (unsigned long long)store->clock, (unsigned long long)clock);
  else
    store->clock = clock;
  pthread_mutex_unlock(&store->stores->lock);
  for (uint32_t i = 0; status == RDT_OK && i < store->options.size; i++)
    if (i != store->options.rank && rdt_store_tell_clock(&store->peers[i]) == RDT_ERR_NO_MEMORY)
      status = RDT_ERR_NO_MEMORY;
  rdt_store_leave(store);
  return status;
}

/* The slowest member that counts, or NULL if all have come to `clock`. Call it under stores->lock. */
static const rdt_store_peer *behind(const rdt_store *store, uint64_t clock, uint64_t *its) {
  const rdt_store_peer *found = NULL;
  *its = clock;
  for (uint32_t i = 0; i < store->options.size; i++) {
    if (i == store->options.rank || store->peers[i].gone) continue;
    uint64_t told = atomic_load_explicit(&rdt_store_slot_of(store, i)->clock, memory_order_acquire);
    if (told >= *its) continue;
    *its = told;
    found = &store->peers[i];
  }
  return found;
}

rdt_status rdt_store_wait_clocks(rdt_store *store, uint64_t clock, int timeout_ms) {
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  rdt_deadline deadline = rdt_deadline_after(timeout_ms);
  rdt_stores *stores = store->stores;
  const rdt_store_peer *slowest;
  uint64_t its;
  pthread_mutex_lock(&stores->lock);
  while ((slowest = behind(store, clock, &its)) && !store->closing &&
         rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&stores->changed, &stores->lock, deadline);
  if (store->closing)
    status = rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", store->name);
  else if (slowest)
    status =
        rdt_fail(RDT_ERR_DEADLINE,
                 "rank %u of store \"%s\" is at clock %llu and did not come to %llu within the "
                 "deadline",
                 slowest->rank, store->name, (unsigned long long)its, (unsigned long long)clock);
  pthread_mutex_unlock(&stores->lock);
  rdt_store_leave(store);
  return status;
}
