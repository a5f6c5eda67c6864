/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores from opening to closing, and publishing.
 */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define LINE 64u

static uint64_t whole_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static rdt_status check_options(const rdt_store_options *options) {
  if (!options) return rdt_fail(RDT_ERR_INVALID, "options must not be NULL");
  if (options->struct_size != sizeof(*options))
    return rdt_fail(RDT_ERR_INVALID,
                    "rdt_store_options has %zu bytes: set struct_size, and use the header this "
                    "library was built with",
                    options->struct_size);
  if (!options->name || !options->name[0] || strlen(options->name) >= RDT_STORE_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a store's name has 1 to %d bytes", RDT_STORE_NAME_SIZE - 1);
  if (options->size == 0 || options->size > RDT_STORE_MAX_SIZE || options->rank >= options->size)
    return rdt_fail(RDT_ERR_INVALID,
                    "rank %u of %u is out of range: a store has at most %d members", options->rank,
                    options->size, RDT_STORE_MAX_SIZE);
  if (options->buffers < 2 || options->buffers > RDT_STORE_BUFFERS)
    return rdt_fail(RDT_ERR_INVALID, "%u buffers: a store has 2 to %d", options->buffers,
                    RDT_STORE_BUFFERS);
  if (options->bytes > SIZE_MAX / 64 || options->slot_bytes > SIZE_MAX / 4096)
    return rdt_fail(RDT_ERR_INVALID, "a store cannot hold %llu and %llu bytes",
                    (unsigned long long)options->bytes, (unsigned long long)options->slot_bytes);
  return RDT_OK;
}

rdt_status rdt_store_sizes(const rdt_store_options *options, uint64_t *values, uint64_t *slots) {
  rdt_status status = check_options(options);
  if (status != RDT_OK) return status;
  if (!values || !slots) return rdt_fail(RDT_ERR_INVALID, "values and slots must not be NULL");
  *values = RDT_STORE_HEAD_BYTES + options->buffers * whole_lines(options->bytes);
  *slots = options->size * (sizeof(rdt_store_slot) + whole_lines(options->slot_bytes));
  return RDT_OK;
}

void rdt_store_region_name(const rdt_store *store, const char *which, char *name) {
  snprintf(name, RDT_REGION_NAME_SIZE, "store %s %s", store->name, which);
}

static rdt_status find_memory(rdt_store *store, size_t which, void *given, uint64_t size,
                              void **address) {
  rdt_status status = given ? RDT_OK : rdt_memory_alloc(size, &store->owned[which]);
  *address = given ? given : store->owned[which];
  return status;
}

/* The memory may have been another store's; nobody can open it yet. */
static void write_heads(rdt_store *store, void *values, void *slots) {
  store->head = values;
  store->slots = slots;
  memset(values, 0, sizeof(*store->head));
  store->head->magic = RDT_STORE_MAGIC;
  store->head->generation = store->device->generation;
  store->head->rank = store->options.rank;
  store->head->size = store->options.size;
  store->head->buffers = store->options.buffers;
  store->head->bytes = store->options.bytes;
  store->head->slot_bytes = store->options.slot_bytes;
  for (uint32_t i = 0; i < store->options.size; i++)
    memset(rdt_store_slot_of(store, i), 0, sizeof(rdt_store_slot));
}

/* The slots first: whoever finds the values finds them too. */
static rdt_status share(rdt_store *store, uint64_t values, uint64_t slots) {
  char name[RDT_REGION_NAME_SIZE];
  rdt_store_region_name(store, "slots", name);
  rdt_status status =
      rdt_region_register(store->device, store->slots, slots, RDT_ACCESS_READ | RDT_ACCESS_WRITE,
                          name, &store->regions[1]);
  if (status != RDT_OK) return status;
  rdt_store_region_name(store, "values", name);
  return rdt_region_register(store->device, store->head, values, RDT_ACCESS_READ, name,
                             &store->regions[0]);
}

static void store_free(rdt_store *store) {
  for (size_t i = 0; i < 2; i++) {
    rdt_region_close(store->regions[i]);
    if (store->owned[i]) rdt_memory_free(store->owned[i]);
  }
  for (uint32_t i = 0; store->peers && i < store->options.size; i++) {
    pthread_mutex_destroy(&store->peers[i].push_lock);
    pthread_mutex_destroy(&store->peers[i].clock_lock);
  }
  free(store->peers);
  rdt_device_unref(store->device);
  free(store);
}

static rdt_status enlist(rdt_store *store) {
  rdt_stores *stores = store->stores;
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&stores->lock);
  for (const rdt_store *each = stores->list; each; each = each->next)
    if (strcmp(each->name, store->name) == 0)
      status = rdt_fail(RDT_ERR_INVALID, "device %s has a store named \"%s\" already",
                        store->device->name, store->name);
  if (stores->stopping)
    status = rdt_fail(RDT_ERR_CLOSED, "device %s is closing", store->device->name);
  if (status == RDT_OK) {
    store->next = stores->list;
    stores->list = store;
  }
  pthread_mutex_unlock(&stores->lock);
  return status;
}

static rdt_store *store_new(rdt_device *device, const rdt_store_options *options) {
  rdt_store *store = calloc(1, sizeof(*store));
  rdt_store_peer *peers = calloc(options->size, sizeof(*peers));
  if (!store || !peers) {
    free(store);
    free(peers);
    return NULL;
  }
  store->device = device;
  rdt_device_ref(device);
  store->stores = rdt_stores_of(device);
  store->options = *options;
  snprintf(store->name, sizeof(store->name), "%s", options->name);
  store->options.name = store->name;
  store->stride = whole_lines(options->bytes);
  store->slot_stride = sizeof(rdt_store_slot) + whole_lines(options->slot_bytes);
  store->peers = peers;
  for (uint32_t i = 0; i < options->size; i++) {
    peers[i].store = store;
    peers[i].rank = i;
    pthread_mutex_init(&peers[i].push_lock, NULL);
    pthread_mutex_init(&peers[i].clock_lock, NULL);
  }
  return store;
}

rdt_status rdt_store_open(rdt_device *device, const rdt_store_options *options, rdt_store **out) {
  uint64_t values, slots;
  if (!device || !out) return rdt_fail(RDT_ERR_INVALID, "device and store must not be NULL");
  rdt_status status = rdt_store_sizes(options, &values, &slots);
  if (status == RDT_OK) status = rdt_device_check(device);
  if (status == RDT_OK && !options->values != !options->slots)
    status = rdt_fail(RDT_ERR_INVALID, "give memory for both, values and slots, or for none");
  if (status != RDT_OK) return status;
  rdt_store *store = store_new(device, options);
  if (!store) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  void *memory[2];
  status = find_memory(store, 0, options->values, values, &memory[0]);
  if (status == RDT_OK) status = find_memory(store, 1, options->slots, slots, &memory[1]);
  if (status == RDT_OK) {
    write_heads(store, memory[0], memory[1]);
    status = enlist(store); /* before peers can find its regions */
  }
  if (status == RDT_OK) status = share(store, values, slots);
  if (status == RDT_OK)
    *out = store;
  else
    rdt_store_close(store);
  return status;
}

rdt_status rdt_store_enter(rdt_store *store) {
  if (!store) return rdt_fail(RDT_ERR_INVALID, "store must not be NULL");
  if (rdt_on_progress_thread())
    return rdt_fail(RDT_ERR_INVALID, "a store's calls wait: not from a handler");
  rdt_status status = rdt_device_check(store->device);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&store->stores->lock);
  if (store->closing)
    status = rdt_fail(RDT_ERR_CLOSED, "store \"%s\" is closed", store->name);
  else
    store->users++;
  pthread_mutex_unlock(&store->stores->lock);
  return status;
}

void rdt_store_leave(rdt_store *store) {
  pthread_mutex_lock(&store->stores->lock);
  if (--store->users == 0 && store->closing) pthread_cond_broadcast(&store->stores->changed);
  pthread_mutex_unlock(&store->stores->lock);
}

/* Ends both connections to a member, so that it learns that this store is gone. */
static void part_from(rdt_store_peer *peer) {
  rdt_stores *stores = peer->store->stores;
  pthread_mutex_lock(&stores->lock);
  rdt_store_link out = peer->out;
  rdt_channel *in[] = {peer->in, peer->next};
  peer->out = (rdt_store_link){0};
  peer->in = peer->next = NULL;
  for (size_t i = 0; i < 2; i++)
    if (in[i]) rdt_channel_set_context(in[i], NULL);
  pthread_mutex_unlock(&stores->lock);
  rdt_channel_close(out.channel);
  rdt_store_link_drop(&out);
  for (size_t i = 0; i < 2; i++) {
    rdt_channel_close(in[i]);
    rdt_channel_unref(in[i]);
  }
}

void rdt_store_stop(rdt_store *store) {
  if (!store) return;
  rdt_stores *stores = store->stores;
  pthread_mutex_lock(&stores->lock);
  store->closing = true;
  pthread_cond_broadcast(&stores->changed);
  rdt_store **link = &stores->list;
  while (*link && *link != store) link = &(*link)->next;
  if (*link) *link = store->next;
  pthread_mutex_unlock(&stores->lock);
  for (uint32_t i = 0; i < store->options.size; i++) part_from(&store->peers[i]);
}

void rdt_store_close(rdt_store *store) {
  if (!store) return;
  rdt_stores *stores = store->stores;
  rdt_store_stop(store);
  pthread_mutex_lock(&stores->lock);
  while (store->users > 0) pthread_cond_wait(&stores->changed, &stores->lock);
  pthread_mutex_unlock(&stores->lock);
  /* A call that was connecting may have added one. */
  for (uint32_t i = 0; i < store->options.size; i++) part_from(&store->peers[i]);
  store_free(store);
}

rdt_status rdt_store_begin(rdt_store *store, void **memory) {
  if (!store || !memory) return rdt_fail(RDT_ERR_INVALID, "store and memory must not be NULL");
  if (store->options.bytes == 0)
    return rdt_fail(RDT_ERR_INVALID, "store \"%s\" publishes nothing: its bytes are 0",
                    store->name);
  pthread_mutex_lock(&store->stores->lock);
  bool begun = store->begun;
  store->begun = true;
  pthread_mutex_unlock(&store->stores->lock);
  if (begun)
    return rdt_fail(RDT_ERR_INVALID, "a version of store \"%s\" was begun already", store->name);
  rdt_store_head *head = store->head;
  uint64_t next = atomic_load_explicit(&head->published, memory_order_relaxed) + 1;
  atomic_store_explicit(&head->started, next, memory_order_relaxed);
  /* Readers see that it was begun before they see any of it, also if it is written past the cache. */
  atomic_thread_fence(memory_order_seq_cst);
  *memory = (uint8_t *)head + RDT_STORE_HEAD_BYTES + next % store->options.buffers * store->stride;
  return RDT_OK;
}

rdt_status rdt_store_publish(rdt_store *store, uint64_t mark, uint64_t *version) {
  if (!store) return rdt_fail(RDT_ERR_INVALID, "store must not be NULL");
  pthread_mutex_lock(&store->stores->lock);
  bool begun = store->begun;
  store->begun = false;
  pthread_mutex_unlock(&store->stores->lock);
  if (!begun) return rdt_fail(RDT_ERR_INVALID, "no version of store \"%s\" was begun", store->name);
  rdt_store_head *head = store->head;
  uint64_t next = atomic_load_explicit(&head->started, memory_order_relaxed);
  head->marks[next % store->options.buffers] = mark;
  atomic_thread_fence(memory_order_seq_cst);
  atomic_store_explicit(&head->published, next, memory_order_release);
  if (version) *version = next;
  return RDT_OK;
}
