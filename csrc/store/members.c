/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections to the stores of other members.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "base/status.h"
#include "core/meet/connect.h"
#include "core/post/channel.h"
#include "store/store.h"

#define PAUSE_US 10000 /* between two looks for a store that is not open yet */

rdt_status rdt_store_check_rank(const rdt_store *store, uint32_t rank) {
  if (rank < store->options.size && rank != store->options.rank) return RDT_OK;
  return rdt_fail(RDT_ERR_INVALID,
                  "rank %u is no other member of store \"%s\": it has %u, and "
                  "this is rank %u",
                  rank, store->name, store->options.size, store->options.rank);
}

void rdt_store_link_drop(rdt_store_link *link) {
  rdt_remote_region_unref(link->values);
  rdt_remote_region_unref(link->slots);
  rdt_channel_unref(link->channel);
  *link = (rdt_store_link){0};
}

rdt_status rdt_store_link_take(rdt_store *store, uint32_t rank, rdt_store_link *link) {
  rdt_status status = rdt_store_check_rank(store, rank);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&store->stores->lock);
  *link = store->peers[rank].out;
  if (link->channel) {
    rdt_channel_ref(link->channel);
    rdt_remote_region_ref(link->values);
    rdt_remote_region_ref(link->slots);
  }
  pthread_mutex_unlock(&store->stores->lock);
  if (!link->channel)
    return rdt_fail(RDT_ERR_UNREACHABLE,
                    "store \"%s\" is not connected to rank %u: connect it first", store->name,
                    rank);
  if (!atomic_load(&link->channel->down)) return RDT_OK;
  status = rdt_channel_fail_down(link->channel);
  rdt_store_link_drop(link);
  return status;
}

/* Waits for the peer to open it. */
static rdt_status find(const rdt_store *store, rdt_channel *channel, const char *which,
                       uint64_t size, rdt_deadline deadline, rdt_remote_region **region) {
  char name[RDT_REGION_NAME_SIZE];
  rdt_region_info info;
  rdt_store_region_name(store, which, name);
  rdt_status status;
  for (bool missing = false;; missing = true) {
    status = rdt_remote_region_find(channel, name, rdt_deadline_left_plus(deadline, 1), region);
    if (status == RDT_ERR_DEADLINE && missing) /* the last question had no time for its answer */
      status = rdt_fail(RDT_ERR_NO_REGION, "%s has not opened store \"%s\"", channel->peer_name,
                        store->name);
    if (status != RDT_ERR_NO_REGION || rdt_deadline_left(deadline) <= 0 || store->closing) break;
    usleep(PAUSE_US);
  }
  if (status == RDT_OK) status = rdt_remote_region_get_info(*region, &info);
  if (status == RDT_OK && info.size != size)
    status = rdt_fail(RDT_ERR_INVALID,
                      "store \"%s\" of %s has %" PRIu64 " bytes of %s, and here it has %" PRIu64
                      ": open it with the same options everywhere",
                      store->name, channel->peer_name, info.size, which, size);
  return status;
}

static rdt_status check_head(const rdt_store *store, uint32_t rank, const rdt_channel *channel,
                             const rdt_store_head *head) {
  const rdt_store_options *own = &store->options;
  if (head->magic != RDT_STORE_MAGIC)
    return rdt_fail(RDT_ERR_PROTOCOL, "what %s calls store \"%s\" is none", channel->peer_name,
                    store->name);
  if (head->rank != rank || head->size != own->size || head->buffers != own->buffers ||
      head->bytes != own->bytes || head->slot_bytes != own->slot_bytes)
    return rdt_fail(RDT_ERR_INVALID,
                    "store \"%s\" of %s is rank %u of %u, with %u buffers of %" PRIu64
                    " bytes and slots of %" PRIu64
                    "; expected is rank %u of %u, with %u of %" PRIu64 " and %" PRIu64,
                    store->name, channel->peer_name, head->rank, head->size, head->buffers,
                    head->bytes, head->slot_bytes, rank, own->size, own->buffers, own->bytes,
                    own->slot_bytes);
  return RDT_OK;
}

static rdt_status greet(const rdt_store *store, rdt_channel *channel, uint64_t number,
                        rdt_deadline deadline) {
  uint8_t bytes[RDT_STORE_NAME_SIZE + 64];
  rdt_wire wire;
  rdt_op op = {
      .kind = RDT_OP_NOTIFY, .local = bytes, .immediate = RDT_STORE_IMMEDIATE(RDT_STORE_HELLO)};
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_text(&wire, store->name);
  rdt_wire_put_u32(&wire, store->options.rank);
  rdt_wire_put_u32(&wire, store->options.size);
  rdt_wire_put_u64(&wire, number);
  rdt_status status = rdt_wire_unload(&wire, bytes, sizeof(bytes), &op.size);
  return status == RDT_OK ? rdt_store_run(channel, &op, 1, deadline) : status;
}

/* Waits until the other end has ended an earlier channel of this member, of which late bytes might still come
 * into the slot. *sent is the number of the last push that came. */
static rdt_status await_welcome(const rdt_store *store, const rdt_store_link *link, uint64_t number,
                                uint64_t *sent, rdt_deadline deadline) {
  rdt_store_slot slot;
  for (;; rdt_store_pause()) {
    rdt_status status =
        rdt_store_read(link->channel, link->slots, store->options.rank * store->slot_stride,
                       offsetof(rdt_store_slot, fill), &slot, deadline);
    if (status != RDT_OK) return status;
    *sent = atomic_load(&slot.arrived);
    if (atomic_load(&slot.welcomed) == number) return RDT_OK;
    if (store->closing) return rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", store->name);
    if (rdt_deadline_left(deadline) == 0)
      return rdt_fail(RDT_ERR_DEADLINE,
                      "%s did not welcome this member to store \"%s\" within the deadline",
                      link->channel->peer_name, store->name);
  }
}

/* Opens what is at the other end, and tells it who connects. */
static rdt_status open_link(const rdt_store *store, uint32_t rank, rdt_store_link *link,
                            uint64_t *sent, rdt_deadline deadline) {
  rdt_store_head head;
  uint64_t values, slots, number;
  rdt_status status = rdt_store_sizes(&store->options, &values, &slots);
  if (status == RDT_OK)
    status = find(store, link->channel, "values", values, deadline, &link->values);
  if (status == RDT_OK) status = find(store, link->channel, "slots", slots, deadline, &link->slots);
  if (status == RDT_OK)
    status = rdt_store_read(link->channel, link->values, 0, sizeof(head), &head, deadline);
  if (status == RDT_OK) status = check_head(store, rank, link->channel, &head);
  if (status == RDT_OK) status = rdt_random_id(&number);
  if (status == RDT_OK) status = greet(store, link->channel, number, deadline);
  if (status == RDT_OK) status = await_welcome(store, link, number, sent, deadline);
  return status;
}

/* Puts the connection into the place of an earlier one, which it returns. */
static rdt_store_link replace(rdt_store_peer *peer, const rdt_store_link *link, uint64_t sent) {
  pthread_mutex_lock(&peer->push_lock);
  pthread_mutex_lock(&peer->store->stores->lock);
  rdt_store_link earlier = peer->out;
  peer->out = *link;
  peer->sent = sent;
  pthread_mutex_unlock(&peer->store->stores->lock);
  pthread_mutex_unlock(&peer->push_lock);
  return earlier;
}

static rdt_status connect_to(rdt_store *store, uint32_t rank, const char *address,
                             rdt_deadline deadline) {
  rdt_store_link link = {0};
  uint64_t sent = 0;
  rdt_status status = rdt_connect_for(store->device, address, (rdt_expected){0}, RDT_PURPOSE_STORES,
                                      rdt_deadline_left(deadline), &link.channel);
  if (status == RDT_OK) status = open_link(store, rank, &link, &sent, deadline);
  if (status == RDT_OK) link = replace(&store->peers[rank], &link, sent);
  if (link.channel) rdt_channel_close(link.channel);
  rdt_store_link_drop(&link);
  if (status == RDT_OK) status = rdt_store_tell_clock(&store->peers[rank]);
  return status < 0 ? status : RDT_OK;
}

rdt_status rdt_store_connect(rdt_store *store, uint32_t rank, const char *address, int timeout_ms) {
  rdt_status status = rdt_store_enter(store);
  if (status != RDT_OK) return status;
  status = rdt_store_check_rank(store, rank);
  if (status == RDT_OK && !address) status = rdt_fail(RDT_ERR_INVALID, "address must not be NULL");
  if (status == RDT_OK) status = connect_to(store, rank, address, rdt_deadline_after(timeout_ms));
  rdt_store_leave(store);
  return status;
}

rdt_status rdt_store_get_member(rdt_store *store, uint32_t rank, rdt_store_member *member) {
  if (!store || !member) return rdt_fail(RDT_ERR_INVALID, "store and member must not be NULL");
  rdt_status status = rdt_store_check_rank(store, rank);
  if (status != RDT_OK) return status;
  const rdt_store_peer *peer = &store->peers[rank];
  pthread_mutex_lock(&store->stores->lock);
  *member =
      (rdt_store_member){.connected = peer->out.channel && !atomic_load(&peer->out.channel->down),
                         .present = peer->in && !peer->gone,
                         .gone = peer->gone,
                         .generation = peer->generation,
                         .clock = atomic_load(&rdt_store_slot_of(store, rank)->clock)};
  _Static_assert(sizeof(member->address) == RDT_ADDRESS_SIZE, "as in the core");
  memcpy(member->address, peer->address, sizeof(member->address));
  pthread_mutex_unlock(&store->stores->lock);
  return RDT_OK;
}
