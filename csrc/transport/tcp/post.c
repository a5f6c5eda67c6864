/* SPDX-License-Identifier: Apache-2.0
 *
 * The send side of an endpoint, which runs under the channel's send lock. Operations up to the stripe size
 * and notifications go over the first stream, which keeps them in order. Longer ones go to the stream with
 * fewest bytes under way, and beyond two stripes each piece does; a fence hides a notification until
 * those before it are done.
 */
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "transport/tcp/objects.h"
#include "transport/tcp/socket_io.h"

#define RESERVE 16u  /* of a queue, kept free of data for fences, notifications and probes */
#define WHOLE 2u     /* stripes: to wake threads for parts of fewer takes longer than it saves */
#define GATHERED 16u /* operations that wait for no more */
#define GATHERED_BYTES 32768u
#define PROMPT_US 500      /* who waits for a slower peer would lose more than it saves */
#define SILENT_PROBES 2    /* a third of the deadline apart */
#define MUCH_UNSENT 65536u /* bytes: what their host confirms of these is progress too */

static bool has_room(const rdt_endpoint *endpoint, const rdt_tcp_stream *stream, uint32_t reserve) {
  return rdt_tcp_outstanding(stream) + reserve < endpoint->depth;
}

static void append(rdt_endpoint *endpoint, rdt_tcp_stream *stream, rdt_tcp_piece piece) {
  uint64_t posted = atomic_load(&stream->posted);
  stream->pieces[posted & (endpoint->depth - 1)] = piece;
  stream->bytes += piece.frame.size;
  atomic_store(&stream->posted, posted + 1);
}

static uint64_t bytes_under_way(const rdt_tcp_stream *stream) {
  return stream->bytes - atomic_load(&stream->done_bytes);
}

/* Returns the stream that has fewest bytes under way, or NULL if its queue is full. */
static rdt_tcp_stream *least_busy(rdt_endpoint *endpoint) {
  rdt_tcp_stream *best = &endpoint->streams[0];
  for (uint32_t i = 1; i < endpoint->stream_count; i++)
    if (bytes_under_way(&endpoint->streams[i]) < bytes_under_way(best))
      best = &endpoint->streams[i];
  return has_room(endpoint, best, RESERVE) ? best : NULL;
}

static rdt_status post(rdt_endpoint *endpoint, rdt_tcp_kind kind, const rdt_mapping *mapping,
                       rdt_op *op, rdt_request *request) {
  if (op->size == 0) return RDT_OK;
  const bool spread = op->size > endpoint->stripe, split = op->size > WHOLE * endpoint->stripe;
  rdt_tcp_stream *stream = spread ? least_busy(endpoint) : &endpoint->streams[0];
  for (; op->size > 0; stream = split ? least_busy(endpoint) : stream) {
    if (!stream || !has_room(endpoint, stream, RESERVE)) {
      atomic_store(&endpoint->starved, true);
      return RDT_NO_CREDIT;
    }
    uint32_t size = op->size < RDT_TCP_PIECE_BYTES ? (uint32_t)op->size : RDT_TCP_PIECE_BYTES;
    rdt_tcp_frame frame = {kind, size, mapping->index, mapping->key, op->remote_offset};
    rdt_request_hold(request);
    append(endpoint, stream,
           (rdt_tcp_piece){.request = request, .local = op->local, .frame = frame});
    if (kind == RDT_TCP_WRITE) stream->fenced = true;
    op->local = (uint8_t *)op->local + size;
    op->remote_offset += size;
    op->size -= size;
  }
  return RDT_IN_PROGRESS;
}

rdt_status rdt_tcp_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                         rdt_request *request) {
  return post(endpoint, RDT_TCP_WRITE, mapping, op, request);
}

rdt_status rdt_tcp_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                        rdt_request *request) {
  return post(endpoint, RDT_TCP_READ, mapping, op, request);
}

rdt_status rdt_tcp_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                          rdt_request *request) {
  rdt_tcp_stream *stream = &endpoint->streams[0];
  if (!has_room(endpoint, stream, RESERVE)) {
    atomic_store(&endpoint->starved, true);
    return RDT_NO_CREDIT;
  }
  rdt_tcp_kind kind = op->kind == RDT_OP_FETCH_ADD ? RDT_TCP_FETCH_ADD : RDT_TCP_COMPARE_SWAP;
  rdt_tcp_piece piece = {
      .request = request,
      .local = op->local,
      .operands = {op->operand, op->expected},
      .frame = {kind, RDT_TCP_OPERANDS_BYTES, mapping->index, mapping->key, op->remote_offset}};
  rdt_request_hold(request);
  append(endpoint, stream, piece);
  return RDT_IN_PROGRESS;
}

rdt_status rdt_tcp_region_grant(rdt_endpoint *endpoint, rdt_registration *registration,
                                rdt_request *request) {
  (void)request;
  if (registration->one_peer) atomic_store(&registration->grantee, endpoint->number);
  return RDT_OK;
}

rdt_status rdt_tcp_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                          uint64_t size) {
  rdt_records *mirror = &endpoint->mirror;
  if (!rdt_records_producer_learn(mirror, atomic_load(&endpoint->consumed)))
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer returned credit that it did not have");
  return rdt_records_put(mirror, immediate, data, (uint32_t)size) == RDT_RECORDS_OK ? RDT_OK
                                                                                    : RDT_NO_CREDIT;
}

static void post_fences(rdt_endpoint *endpoint) {
  for (uint32_t i = 1; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    if (!stream->fenced) continue;
    stream->fenced = false;
    rdt_tcp_frame frame = {
        .kind = RDT_TCP_FENCE, .index = i, .value = atomic_load(&stream->posted)};
    append(endpoint, &endpoint->streams[0], (rdt_tcp_piece){.frame = frame});
  }
}

/* Posts the records that gathered in the mirror, in two parts if they wrap around the ring's end. Returns whether
 * there were any. */
static bool publish(rdt_endpoint *endpoint) {
  const rdt_records *mirror = &endpoint->mirror;
  rdt_tcp_stream *stream = &endpoint->streams[0];
  if (endpoint->published == mirror->position) return false;
  bool room = has_room(endpoint, stream, endpoint->stream_count + 2);
  atomic_store(&endpoint->stalled, !room);
  if (!room) return false;
  post_fences(endpoint);
  while (endpoint->published < mirror->position) {
    uint64_t at = endpoint->published & (mirror->capacity - 1);
    uint64_t size = mirror->position - endpoint->published, to_end = mirror->capacity - at;
    if (size > to_end) size = to_end;
    rdt_tcp_frame frame = {.kind = RDT_TCP_NOTIFY, .size = (uint32_t)size};
    atomic_fetch_add(&endpoint->notifying, 1);
    append(endpoint, stream, (rdt_tcp_piece){.local = mirror->data + at, .frame = frame});
    endpoint->published += size;
  }
  return true;
}

bool rdt_tcp_wants_doorbell(const rdt_endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->stalled, memory_order_relaxed);
}

bool rdt_tcp_delivering(const rdt_endpoint *endpoint) {
  return atomic_load(&endpoint->notifying) > 0;
}

static bool anything_outstanding(const rdt_endpoint *endpoint) {
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    if (rdt_tcp_outstanding(&endpoint->streams[i]) > 0) return true;
  return false;
}

/* Reports whether the peer acknowledges soon, by the time that one operation at a time takes. */
static bool peer_is_prompt(rdt_endpoint *endpoint) {
  rdt_tcp_stream *first = &endpoint->streams[0];
  const int64_t now = rdt_now_us();
  if (atomic_load(&first->acknowledged) > endpoint->timed) {
    endpoint->prompt = now - endpoint->timed_us < PROMPT_US;
    endpoint->timed = atomic_load(&first->posted) - 1;
    endpoint->timed_us = now;
  }
  return endpoint->prompt && now - endpoint->timed_us < PROMPT_US;
}

/* Short operations behind others wait for more, so that they share a system call and an acknowledgement, until
 * acknowledgements leave fewer of those others under way. The poll that reads these sends what waited. */
static bool may_gather(rdt_endpoint *endpoint) {
  const rdt_tcp_stream *first = &endpoint->streams[0];
  const uint64_t posted = atomic_load(&first->posted), built = atomic_load(&first->built);
  uint64_t bytes = 0;
  if (!rdt_tcp_is_ahead(first) || posted - built > GATHERED) return false;
  for (uint64_t at = built; at < posted; at++)
    bytes += first->pieces[at & (endpoint->depth - 1)].frame.size;
  return bytes < GATHERED_BYTES && peer_is_prompt(endpoint);
}

/* The peer may wait for a notification; nothing tells it of writes alone. */
int rdt_tcp_doorbell(rdt_endpoint *endpoint) {
  if (atomic_load(&endpoint->stopped)) return 0;
  bool gathers = !publish(endpoint) && may_gather(endpoint);
  atomic_store(&endpoint->gathers, gathers);
  return rdt_tcp_flush(endpoint, gathers ? 1 : 0);
}

/* A number that changes while the peer, or with much to send its host, takes or gives anything. */
static uint64_t movement(const rdt_endpoint *endpoint) {
  uint64_t moved = atomic_load(&endpoint->received);
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    uint64_t unconfirmed = rdt_tcp_socket_unconfirmed(endpoint->streams[i].socket.fd);
    if (unconfirmed >= MUCH_UNSENT)
      moved += atomic_load(&endpoint->streams[i].sent_bytes) - unconfirmed;
  }
  return moved;
}

/* Unlike a card, the peer's process answers, so this finds one that stands still, too. */
rdt_status rdt_tcp_probe(rdt_endpoint *endpoint) {
  int64_t ended = atomic_load(&endpoint->ended_ms);
  uint64_t moved = movement(endpoint);
  bool waiting = anything_outstanding(endpoint);
  endpoint->silent = waiting && moved == endpoint->moved ? endpoint->silent + 1 : 0;
  endpoint->moved = moved;
  if (ended && rdt_now_ms() > ended)
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s closed a data connection", endpoint->peer);
  if (endpoint->silent >= SILENT_PROBES)
    return rdt_fail(
        RDT_ERR_CONNECTION_LOST,
        "the process of %s did not answer for %llu ms, two thirds of %sDEADLINE_MS: it is "
        "stopped, or its host or the network is gone",
        endpoint->peer, (unsigned long long)rdt_config_number(RDT_CONFIG_DEADLINE_MS) * 2 / 3,
        RDT_ENV_PREFIX);
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    if (rdt_tcp_outstanding(&endpoint->streams[i]) == 0)
      append(endpoint, &endpoint->streams[i], (rdt_tcp_piece){.frame = {.kind = RDT_TCP_PROBE}});
  return RDT_OK;
}
