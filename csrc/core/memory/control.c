/* SPDX-License-Identifier: Apache-2.0
 *
 * Control messages of a live channel: requests for the peer's regions, answers to its requests,
 * regions given back, and goodbye.
 */
#include "core/memory/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/config.h"
#include "base/status.h"
#include "core/memory/region.h"
#include "core/post/channel.h"
#include "core/workers.h"

#define UNSENT_LIMIT (64u * 1024) /* bytes for a peer that does not read */
#define ALLOCATING_LIMIT 16       /* requests of one peer under way at once */

/* The socket got a part of a message and gets no more of it, so the peer cannot read what would follow. Nothing does. */
static void cut(rdt_channel *channel) {
  char why[384];
  snprintf(why, sizeof(why), "%s", rdt_last_error());
  rdt_fail(RDT_ERR_CONNECTION_LOST, "a control message to %s was cut: %s", channel->peer_name, why);
  rdt_channel_note_cause(channel); /* before the peer, which then closes its end, can be it */
  shutdown(channel->control.fd, SHUT_WR);
  rdt_channel_break(channel);
}

/* Sends as much of [data, data + size) as the socket takes at once. Call it under control_lock. */
static rdt_status send_some(rdt_channel *channel, const uint8_t *data, size_t size, size_t *sent) {
  rdt_status status = RDT_OK;
  for (*sent = 0; *sent < size && status == RDT_OK;) {
    size_t more = 0;
    status = rdt_net_send_part(channel->control, data + *sent, size - *sent, NULL, &more);
    *sent += more;
  }
  return status == RDT_IN_PROGRESS ? RDT_OK : status;
}

static rdt_status takes_nothing(const rdt_channel *channel) {
  return rdt_fail(RDT_ERR_DEADLINE, "%s does not take control messages", channel->peer_name);
}

static rdt_status keep_unsent(rdt_channel *channel, const uint8_t *data, size_t size) {
  size_t kept = channel->unsent_size;
  if (size == 0) return RDT_OK;
  if (kept + size > UNSENT_LIMIT) return takes_nothing(channel);
  uint8_t *grown = realloc(channel->unsent, kept + size);
  if (!grown) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  memcpy(grown + kept, data, size);
  channel->unsent = grown;
  channel->unsent_size = kept + size;
  atomic_store(&channel->has_unsent, true);
  rdt_device_wake(channel->device);
  return RDT_OK;
}

static void flush_unsent(rdt_channel *channel) {
  size_t sent;
  if (channel->unsent_size == 0) return;
  rdt_status status = send_some(channel, channel->unsent, channel->unsent_size, &sent);
  channel->unsent_size = status == RDT_OK ? channel->unsent_size - sent : 0;
  memmove(channel->unsent, channel->unsent + sent, channel->unsent_size);
  if (status != RDT_OK) cut(channel);
}

/* Packets are sent whole or not at all. On a stream several senders share the order of bytes and
 * none may wait for the peer, so the progress thread sends what does not fit. */
static rdt_status send_in_order(rdt_channel *channel, const rdt_wire *wire) {
  size_t sent = 0;
  rdt_status status = RDT_OK;
  const bool began = channel->unsent_size == 0;
  if (began) status = send_some(channel, wire->data, wire->size, &sent);
  if (status == RDT_OK) status = keep_unsent(channel, wire->data + sent, wire->size - sent);
  /* TLS may have encrypted some of it without telling. */
  if (status != RDT_OK && (sent > 0 || (began && channel->control.tls))) cut(channel);
  return status;
}

static rdt_status send_control(rdt_channel *channel, const rdt_wire *wire, const rdt_fds *fds,
                               rdt_deadline deadline) {
  if (rdt_net_has_packets(channel->control))
    return rdt_net_send(channel->control, wire, fds, deadline);
  pthread_mutex_lock(&channel->control_lock);
  rdt_status status = send_in_order(channel, wire);
  pthread_mutex_unlock(&channel->control_lock);
  return status;
}

/* Returns false if the socket takes nothing now. Under control_lock, like the function below. */
static bool send_free(rdt_channel *channel, uint64_t key) {
  rdt_wire wire;
  size_t sent = 0;
  rdt_wire_begin(&wire, RDT_MESSAGE_FREE, 0);
  rdt_wire_put_u64(&wire, key);
  rdt_wire_end(&wire);
  rdt_status status = rdt_net_has_packets(channel->control)
                          ? rdt_net_send_part(channel->control, wire.data, wire.size, NULL, &sent)
                          : send_in_order(channel, &wire);
  return status != RDT_IN_PROGRESS && status != RDT_ERR_DEADLINE && status != RDT_ERR_NO_MEMORY;
}

static void send_unfreed(rdt_channel *channel) {
  while (channel->unfreed && send_free(channel, channel->unfreed->info.key)) {
    rdt_remote_region *sent = channel->unfreed;
    channel->unfreed = sent->next;
    free(sent);
  }
}

void rdt_control_give_back(rdt_channel *channel, rdt_remote_region *region) {
  pthread_mutex_lock(&channel->control_lock);
  const bool first = !channel->unfreed;
  region->next = channel->unfreed;
  channel->unfreed = region;
  if (first) send_unfreed(channel);
  const bool waits = first && channel->unfreed;
  if (channel->unfreed) atomic_store(&channel->has_unsent, true);
  pthread_mutex_unlock(&channel->control_lock);
  if (waits) rdt_device_wake(channel->device);
}

void rdt_control_give_back_key(rdt_channel *channel, uint64_t key) {
  rdt_remote_region *region = calloc(1, sizeof(*region));
  if (!region) return; /* the peer frees it with the channel */
  region->info.key = key;
  rdt_control_give_back(channel, region);
}

void rdt_control_flush(rdt_channel *channel) {
  if (!atomic_load_explicit(&channel->has_unsent, memory_order_relaxed)) return;
  pthread_mutex_lock(&channel->control_lock);
  flush_unsent(channel);
  send_unfreed(channel);
  atomic_store(&channel->has_unsent, channel->unsent_size > 0 || channel->unfreed);
  pthread_mutex_unlock(&channel->control_lock);
}

static void add_call(rdt_channel *channel, rdt_call *call) {
  pthread_mutex_lock(&channel->lock);
  call->sequence = ++channel->next_sequence;
  call->next = channel->calls;
  channel->calls = call;
  pthread_mutex_unlock(&channel->lock);
}

static void await(rdt_channel *channel, rdt_call *call, rdt_deadline deadline) {
  pthread_mutex_lock(&channel->lock);
  while (!call->answered && call->failed == RDT_OK && rdt_deadline_left(deadline) > 0)
    rdt_cond_wait(&channel->answered, &channel->lock, deadline);
  rdt_call **link = &channel->calls;
  while (*link && *link != call) link = &(*link)->next;
  if (*link) *link = call->next;
  pthread_mutex_unlock(&channel->lock);
}

/* Reads the REGION or REFUSAL that answered the call. */
static rdt_status read_answer(rdt_channel *channel, rdt_call *call, rdt_region_info *info,
                              rdt_region_atomics *atomics, rdt_bundle *bundle) {
  rdt_wire *wire = &call->answer;
  if (wire->type == RDT_MESSAGE_REFUSAL) return rdt_wire_get_refusal(wire, channel->peer_name);
  info->address = NULL;
  info->key = rdt_wire_get_u64(wire);
  info->size = rdt_wire_get_u64(wire);
  info->access = rdt_wire_get_u32(wire);
  *atomics = (rdt_region_atomics)rdt_wire_get_u32(wire);
  bundle->size = rdt_wire_get_bytes(wire, bundle->bytes, sizeof(bundle->bytes));
  return rdt_wire_close(wire);
}

rdt_status rdt_control_ask(rdt_channel *channel, const rdt_region_request *request, int timeout_ms,
                           rdt_region_info *info, rdt_region_atomics *atomics, rdt_bundle *bundle) {
  rdt_call call = {.failed = RDT_OK};
  rdt_wire wire;
  rdt_deadline deadline = rdt_deadline_after(timeout_ms);
  add_call(channel, &call);
  rdt_wire_begin(&wire, request->type, call.sequence);
  if (request->type == RDT_MESSAGE_FIND) {
    rdt_wire_put_u64(&wire, request->key);
    rdt_wire_put_text(&wire, request->name);
  } else {
    rdt_wire_put_u64(&wire, request->size);
    rdt_wire_put_u32(&wire, request->access);
  }
  rdt_status status = rdt_wire_end(&wire);
  if (status == RDT_OK && atomic_load(&channel->down))
    status = rdt_fail(RDT_ERR_CONNECTION_LOST, "the connection to %s is lost", channel->peer_name);
  if (status == RDT_OK) status = send_control(channel, &wire, NULL, deadline);
  await(channel, &call, status == RDT_OK ? deadline : 0);
  if (status != RDT_OK) {
    rdt_fds_close(&call.fds);
    return status;
  }
  if (!call.answered && call.failed != RDT_OK)
    return rdt_fail(call.failed, "the connection to %s was lost before it answered: %s",
                    channel->peer_name, channel->cause);
  if (!call.answered)
    return rdt_fail(RDT_ERR_DEADLINE, "%s did not answer within the deadline", channel->peer_name);
  status = read_answer(channel, &call, info, atomics, bundle);
  bundle->fds = call.fds;
  if (status != RDT_OK) rdt_fds_close(&bundle->fds);
  return status;
}

/* Runs on the progress thread, which a peer that does not read its answers must not hold up. */
static rdt_status reply(rdt_channel *channel, rdt_wire *wire, const rdt_fds *fds) {
  rdt_status status = rdt_wire_end(wire);
  if (status == RDT_OK) status = send_control(channel, wire, fds, 0);
  return status == RDT_ERR_DEADLINE ? takes_nothing(channel) : status;
}

static rdt_status reply_refusal(rdt_channel *channel, uint32_t sequence, rdt_status why) {
  rdt_wire wire;
  char text[512];
  snprintf(text, sizeof(text), "%s", rdt_last_error());
  rdt_wire_begin(&wire, RDT_MESSAGE_REFUSAL, sequence);
  rdt_wire_put_u32(&wire, (uint32_t)why);
  rdt_wire_put_text(&wire, text);
  return reply(channel, &wire, NULL);
}

static rdt_status reply_region(rdt_channel *channel, uint32_t sequence, uint64_t key,
                               const char *name) {
  rdt_wire wire;
  rdt_region_info info;
  rdt_region_atomics atomics;
  rdt_bundle bundle = {.size = 0};
  rdt_status status = rdt_region_export(channel, key, name, &info, &atomics, &bundle);
  if (status != RDT_OK) return status;
  rdt_wire_begin(&wire, RDT_MESSAGE_REGION, sequence);
  rdt_wire_put_u64(&wire, info.key);
  rdt_wire_put_u64(&wire, info.size);
  rdt_wire_put_u32(&wire, info.access);
  rdt_wire_put_u32(&wire, atomics);
  rdt_wire_put_bytes(&wire, bundle.bytes, bundle.size);
  status = reply(channel, &wire, &bundle.fds);
  rdt_fds_close(&bundle.fds);
  return status;
}

static rdt_status reserve_in_channel(rdt_channel *channel, uint64_t size) {
  uint64_t limit = rdt_config_number(RDT_CONFIG_REMOTE_ALLOC_LIMIT);
  uint64_t most = rdt_config_number(RDT_CONFIG_REMOTE_REGIONS);
  pthread_mutex_lock(&channel->lock);
  bool few = channel->tenant_count < most;
  bool room = few && size <= limit && channel->tenant_bytes <= limit - size;
  if (room) {
    channel->tenant_bytes += size;
    channel->tenant_count++;
  }
  pthread_mutex_unlock(&channel->lock);
  if (room) return RDT_OK;
  if (!few)
    return rdt_fail(RDT_ERR_LIMIT, "each peer may have %llu regions allocated on %s: free some",
                    (unsigned long long)most, channel->device->name);
  return rdt_fail(
      RDT_ERR_LIMIT,
      "%llu bytes more would exceed the %llu that each peer may allocate here: free some, "
      "or raise %sREMOTE_ALLOC_LIMIT on %s",
      (unsigned long long)size, (unsigned long long)limit, RDT_ENV_PREFIX, channel->device->name);
}

static void return_to_channel(rdt_channel *channel, uint64_t size) {
  pthread_mutex_lock(&channel->lock);
  channel->tenant_bytes -= size;
  channel->tenant_count--;
  pthread_mutex_unlock(&channel->lock);
}

/* Memory that the peer freed before it asked for more does not count against its limit. */
static void await_releases(rdt_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  while (channel->freeing > 0) pthread_cond_wait(&channel->answered, &channel->lock);
  pthread_mutex_unlock(&channel->lock);
}

static rdt_status reserve_for_peer(rdt_channel *channel, uint64_t size) {
  await_releases(channel);
  rdt_status status = reserve_in_channel(channel, size);
  if (status != RDT_OK) return status;
  status = rdt_admission_reserve(&channel->device->admission, size);
  if (status != RDT_OK) return_to_channel(channel, size);
  return status;
}

static rdt_status allocate_for_peer(rdt_channel *channel, uint64_t size, uint32_t access,
                                    uint64_t *key) {
  if (size == 0 || access == RDT_ACCESS_NONE ||
      (access & ~(uint32_t)(RDT_ACCESS_READ | RDT_ACCESS_WRITE)))
    return rdt_fail(RDT_ERR_INVALID, "a region of %llu bytes with access %u is not valid",
                    (unsigned long long)size, access);
  rdt_status status = reserve_for_peer(channel, size);
  if (status != RDT_OK) return status;
  status = rdt_region_create_for_tenant(channel, size, access, key);
  if (status == RDT_OK) return RDT_OK;
  rdt_admission_release(&channel->device->admission, size);
  return_to_channel(channel, size);
  return status;
}

static rdt_status answer_find(rdt_channel *channel, rdt_wire *wire) {
  char name[RDT_REGION_NAME_SIZE];
  uint64_t key = rdt_wire_get_u64(wire);
  rdt_wire_get_text(wire, name, sizeof(name));
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  status = reply_region(channel, wire->sequence, key, name);
  return status == RDT_OK ? RDT_OK : reply_refusal(channel, wire->sequence, status);
}

typedef struct allocation {
  rdt_channel *channel; /* held */
  uint32_t sequence, access;
  uint64_t size;
} allocation;

static bool begin_allocation(rdt_channel *channel) {
  pthread_mutex_lock(&channel->lock);
  bool room = channel->allocating < ALLOCATING_LIMIT;
  channel->allocating += room;
  pthread_mutex_unlock(&channel->lock);
  return room;
}

static void end_allocation(allocation *asked) {
  rdt_channel *channel = asked->channel;
  free(asked);
  pthread_mutex_lock(&channel->lock);
  channel->allocating--;
  pthread_mutex_unlock(&channel->lock);
  rdt_channel_unref(channel);
}

/* Runs on a worker, because registering may take long. */
static void run_allocation(void *argument) {
  allocation *asked = argument;
  uint64_t key;
  rdt_status status = allocate_for_peer(asked->channel, asked->size, asked->access, &key);
  if (status == RDT_OK) status = reply_region(asked->channel, asked->sequence, key, "");
  if (status != RDT_OK) status = reply_refusal(asked->channel, asked->sequence, status);
  if (status != RDT_OK) rdt_channel_break(asked->channel); /* the peer waits for the answer */
  end_allocation(asked);
}

static rdt_status answer_alloc(rdt_channel *channel, rdt_wire *wire) {
  uint64_t size = rdt_wire_get_u64(wire);
  uint32_t access = rdt_wire_get_u32(wire);
  rdt_status status = rdt_wire_close(wire);
  if (status != RDT_OK) return status;
  allocation *asked = begin_allocation(channel) ? malloc(sizeof(*asked)) : NULL;
  if (asked) {
    *asked = (allocation){channel, wire->sequence, access, size};
    rdt_channel_ref(channel);
    if (rdt_worker_start(channel->device, RDT_TASK_ALLOCATION, run_allocation, asked))
      return RDT_OK;
    end_allocation(asked);
  }
  status =
      rdt_fail(RDT_ERR_LIMIT, "%s is busy with other requests: try again", channel->device->name);
  return reply_refusal(channel, wire->sequence, status);
}

typedef struct release {
  rdt_channel *channel; /* held */
  rdt_region *region;
} release;

static void free_for_peer(rdt_channel *channel, rdt_region *region) {
  rdt_region_info info;
  rdt_region_get_info(region, &info);
  rdt_region_free_detached(region);
  return_to_channel(channel, info.size);
  pthread_mutex_lock(&channel->lock);
  channel->freeing--;
  pthread_cond_broadcast(&channel->answered);
  pthread_mutex_unlock(&channel->lock);
}

/* Runs on a worker, because deregistering may take long. */
static void run_release(void *argument) {
  release *asked = argument;
  free_for_peer(asked->channel, asked->region);
  rdt_channel_unref(asked->channel);
  free(asked);
}

/* A key that is not of such a region is ignored: the peer may give up what this end has freed meanwhile. */
static rdt_status answer_free(rdt_channel *channel, rdt_wire *wire) {
  uint64_t key = rdt_wire_get_u64(wire);
  rdt_status status = rdt_wire_close(wire);
  rdt_region *region = status == RDT_OK ? rdt_region_detach_tenants(channel, key) : NULL;
  if (!region) return status;
  pthread_mutex_lock(&channel->lock);
  channel->freeing++;
  pthread_mutex_unlock(&channel->lock);
  release *asked = malloc(sizeof(*asked));
  if (asked) {
    *asked = (release){channel, region};
    rdt_channel_ref(channel);
    if (rdt_worker_start(channel->device, RDT_TASK_ENDING, run_release, asked)) return RDT_OK;
    rdt_channel_unref(channel);
    free(asked);
  }
  free_for_peer(channel, region);
  return RDT_OK;
}

static rdt_call *find_call(rdt_channel *channel, uint32_t sequence) {
  rdt_call *call = channel->calls;
  while (call && (call->sequence != sequence || call->answered)) call = call->next;
  return call;
}

static bool is_open(const rdt_channel *channel, uint64_t key) {
  const rdt_remote_region *each = channel->remote_regions;
  while (each && each->info.key != key) each = each->next;
  return each != NULL;
}

/* An answer that nobody waits for any more is dropped, and a region that it may have allocated given back. */
static void deliver_answer(rdt_channel *channel, const rdt_wire *wire, rdt_fds *fds) {
  rdt_wire orphan = *wire;
  uint64_t key = 0;
  pthread_mutex_lock(&channel->lock);
  rdt_call *call = find_call(channel, wire->sequence);
  if (call) {
    call->answer = *wire;
    call->fds = *fds;
    call->answered = true;
    fds->count = 0;
    pthread_cond_broadcast(&channel->answered);
  } else if (wire->type == RDT_MESSAGE_REGION) {
    key = rdt_wire_get_u64(&orphan);
    if (is_open(channel, key)) key = 0;
  }
  pthread_mutex_unlock(&channel->lock);
  if (key) rdt_control_give_back_key(channel, key);
}

static rdt_status handle(rdt_channel *channel, rdt_wire *wire, rdt_fds *fds) {
  switch (wire->type) {
    case RDT_MESSAGE_FIND:
      return answer_find(channel, wire);
    case RDT_MESSAGE_ALLOC:
      return answer_alloc(channel, wire);
    case RDT_MESSAGE_FREE:
      return answer_free(channel, wire);
    case RDT_MESSAGE_REGION:
    case RDT_MESSAGE_REFUSAL:
      deliver_answer(channel, wire, fds);
      return RDT_OK;
    case RDT_MESSAGE_GOODBYE:
      return rdt_fail(RDT_ERR_CANCELLED, "%s closed the channel", channel->peer_name);
    default:
      return rdt_fail(RDT_ERR_PROTOCOL, "%s sent an unexpected message %u", channel->peer_name,
                      wire->type);
  }
}

rdt_status rdt_control_receive(rdt_channel *channel) {
  rdt_fds fds = {.count = 0};
  bool down = atomic_load(&channel->down);
  rdt_status status =
      rdt_net_receive_part(channel->control, &channel->incoming, &channel->incoming_size, &fds);
  if (status == RDT_ERR_CONNECTION_LOST)
    channel->peer_gone = true;
  else if (down && status < 0)
    status = RDT_OK;
  else if (!down && status == RDT_OK)
    status = handle(channel, &channel->incoming, &fds);
  rdt_fds_close(&fds);
  return status;
}

void rdt_control_say_goodbye(rdt_channel *channel) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_GOODBYE, 0);
  if (rdt_wire_end(&wire) == RDT_OK) send_control(channel, &wire, NULL, 0);
}

void rdt_control_fail_calls(rdt_channel *channel, rdt_status why) {
  pthread_mutex_lock(&channel->lock);
  for (rdt_call *call = channel->calls; call; call = call->next)
    if (!call->answered) call->failed = why;
  pthread_cond_broadcast(&channel->answered);
  pthread_mutex_unlock(&channel->lock);
}
