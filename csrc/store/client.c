/* SPDX-License-Identifier: Apache-2.0
 *
 * The client of stores' channels: who connects, what is pushed, and who is gone.
 */
#include "core/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/post/channel.h"
#include "store/store.h"

static void malformed(rdt_channel *channel, const char *what) {
  rdt_fail(RDT_ERR_PROTOCOL, "%s sent a malformed message of a store: %s", channel->peer_name,
           what);
  rdt_channel_break(channel);
}

static rdt_store *find(rdt_stores *stores, const char *name) {
  rdt_store *store = stores->list;
  while (store && strcmp(store->name, name) != 0) store = store->next;
  return store;
}

/* The channel that has greeted brings this member's pushes from now on, which the member may send when it has
 * read `welcomed`. Call it under stores->lock, while there is no other. */
static void welcome(rdt_store_peer *peer) {
  rdt_channel *channel = peer->next;
  peer->next = NULL;
  peer->in = channel;
  peer->gone = false;
  peer->generation = channel->peer_generation;
  snprintf(peer->address, sizeof(peer->address), "%s", channel->peer_address);
  atomic_store_explicit(&rdt_store_slot_of(peer->store, peer->rank)->welcomed, peer->greeting,
                        memory_order_release);
  pthread_cond_broadcast(&peer->store->stores->changed);
}

/* An earlier channel may still bring what was under way over it, into a slot that the member writes anew. So
 * the channel is welcome when that one is down. Returns that one, held, for the caller to break. */
static rdt_channel *admit(rdt_store_peer *peer, rdt_channel *channel, uint64_t greeting) {
  rdt_channel *unused = peer->next;
  if (unused) rdt_channel_set_context(unused, NULL);
  rdt_channel_ref(channel);
  rdt_channel_set_context(channel, peer);
  peer->next = channel;
  peer->greeting = greeting;
  if (!peer->in) {
    welcome(peer);
  } else if (!unused) {
    rdt_channel_ref(peer->in);
    return peer->in;
  }
  return unused;
}

static void take_hello(rdt_stores *stores, rdt_channel *channel, const void *data, size_t size) {
  char name[RDT_STORE_NAME_SIZE];
  rdt_wire wire;
  rdt_wire_load(&wire, data, size);
  rdt_wire_get_text(&wire, name, sizeof(name));
  uint32_t rank = rdt_wire_get_u32(&wire), count = rdt_wire_get_u32(&wire);
  uint64_t greeting = rdt_wire_get_u64(&wire);
  if (rdt_wire_close(&wire) != RDT_OK) {
    malformed(channel, "a greeting");
    return;
  }
  rdt_channel *earlier = NULL;
  pthread_mutex_lock(&stores->lock);
  rdt_store *store = find(stores, name); /* closed by now: the channel will end */
  bool fits = !store || (count == store->options.size && rank < count &&
                         rank != store->options.rank && !rdt_channel_context(channel));
  if (store && fits) earlier = admit(&store->peers[rank], channel, greeting);
  pthread_mutex_unlock(&stores->lock);
  if (earlier) {
    rdt_fail(RDT_ERR_CONNECTION_LOST, "%s has connected to store \"%s\" anew", channel->peer_name,
             name);
    rdt_channel_break(earlier);
    rdt_channel_unref(earlier);
  }
  if (!fits) malformed(channel, "its rank is another member's");
}

/* Call it under stores->lock. Returns what is wrong, or NULL. */
static const char *take_push(rdt_store_peer *peer) {
  rdt_store *store = peer->store;
  rdt_store_slot *slot = rdt_store_slot_of(store, peer->rank);
  uint64_t arrived = atomic_load_explicit(&slot->arrived, memory_order_relaxed);
  uint64_t released = atomic_load_explicit(&slot->released, memory_order_relaxed);
  const rdt_store_slot said = {.number = slot->number, .bytes = slot->bytes, .mark = slot->mark};
  if (arrived != released) return "a push into a slot that is not free";
  if (said.number != arrived + 1) return "a push with a wrong number";
  if (said.bytes > store->options.slot_bytes) return "a push that is larger than its slot";
  peer->size = said.bytes;
  peer->mark = said.mark;
  peer->turn = ++store->turns;
  atomic_store_explicit(&slot->arrived, said.number, memory_order_release);
  return NULL;
}

static void take(rdt_channel *channel, uint64_t immediate, const void *data, size_t size) {
  rdt_stores *stores = rdt_stores_of(channel->device);
  rdt_store_message kind = (rdt_store_message)(immediate >> 56);
  if (kind == RDT_STORE_HELLO) {
    take_hello(stores, channel, data, size);
    return;
  }
  const char *wrong = kind == RDT_STORE_PUSHED || kind == RDT_STORE_CLOCK ? NULL : "its kind";
  pthread_mutex_lock(&stores->lock);
  rdt_store_peer *peer = rdt_channel_context(channel); /* NULL: the store is closed, or another
                                                          channel took over */
  if (peer && peer->in != channel)
    wrong = "it comes before its welcome";
  else if (peer && kind == RDT_STORE_PUSHED)
    wrong = take_push(peer);
  if (peer) pthread_cond_broadcast(&stores->changed);
  pthread_mutex_unlock(&stores->lock);
  if (wrong) malformed(channel, wrong);
}

static void connected(rdt_channel *channel) { (void)channel; }

/* Nothing of what the member sent over the channel can come any more. */
static void part(rdt_channel *channel) {
  rdt_stores *stores = rdt_stores_of(channel->device);
  pthread_mutex_lock(&stores->lock);
  rdt_store_peer *peer = rdt_channel_context(channel);
  if (peer && peer->in == channel) {
    peer->in = NULL;
    if (peer->next) welcome(peer);
  } else if (peer) {
    peer->next = NULL;
  }
  rdt_channel_set_context(channel, NULL);
  pthread_mutex_unlock(&stores->lock);
  if (peer) rdt_channel_unref(channel);
}

/* On this host, what a member has written is there before its channel goes down. A network may still deliver it until
 * the channel is released. */
static void down(rdt_channel *channel) {
  rdt_stores *stores = rdt_stores_of(channel->device);
  pthread_mutex_lock(&stores->lock);
  rdt_store_peer *peer = rdt_channel_context(channel);
  const bool brought = peer && peer->in == channel;
  if (brought) {
    peer->gone = true;
    pthread_cond_broadcast(&stores->changed);
  }
  pthread_mutex_unlock(&stores->lock);
  if (!brought || channel->transport->local) part(channel);
}

static rdt_status open_stores(rdt_device *device, void **state) {
  rdt_stores *stores = calloc(1, sizeof(*stores));
  if (!stores) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  stores->device = device;
  pthread_mutex_init(&stores->lock, NULL);
  rdt_cond_init(&stores->changed);
  *state = stores;
  return RDT_OK;
}

static void free_stores(void *state) {
  rdt_stores *stores = state;
  pthread_cond_destroy(&stores->changed);
  pthread_mutex_destroy(&stores->lock);
  free(stores);
}

static void interrupt(rdt_device *device) {
  rdt_stores *stores = rdt_stores_of(device);
  pthread_mutex_lock(&stores->lock);
  stores->stopping = true;
  for (rdt_store *each = stores->list; each; each = each->next) each->closing = true;
  pthread_cond_broadcast(&stores->changed);
  pthread_mutex_unlock(&stores->lock);
}

__attribute__((constructor)) static void register_stores(void) {
  static const rdt_client stores = {.open = open_stores,
                                    .free = free_stores,
                                    .interrupt = interrupt,
                                    .stop = interrupt,
                                    .connected = connected,
                                    .down = down,
                                    .released = part,
                                    .take = take};
  rdt_client_register(RDT_PURPOSE_STORES, &stores);
}
