/* SPDX-License-Identifier: Apache-2.0
 *
 * Polling of an endpoint: input of all streams, then the notifications that came, then output that
 * is due. One thread at a time runs it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp/objects.h"
#include "transport/tcp/socket_io.h"

#define LOOK_EVERY 16   /* polls between looks at all streams, if only the first one is used */
#define FEW 8u          /* operations that a quiet stream may have under way */
#define FAREWELL_MS 500 /* for which the control connection may tell why a stream ended */

static bool is_attached(const rdt_endpoint *endpoint, uint32_t index) {
  return atomic_load_explicit(&endpoint->streams[index].carried, memory_order_relaxed);
}

/* Returns the streams that have bytes here for which no event comes. */
static uint32_t held(const rdt_endpoint *endpoint) {
  uint32_t ready = 0;
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    if (!is_attached(endpoint, i) && rdt_tcp_socket_holds(endpoint->streams[i].socket))
      ready |= 1u << i;
  return ready;
}

void rdt_tcp_nudge(rdt_endpoint *endpoint) {
  if (!atomic_exchange(&endpoint->nudged, true)) eventfd_write(endpoint->nudge_fd, 1);
}

/* An I/O thread that notes something after this nudges again. Poll handles everything noted before. */
static void take_nudge(rdt_endpoint *endpoint) {
  eventfd_t ignored;
  eventfd_read(endpoint->nudge_fd, &ignored);
  atomic_store(&endpoint->nudged, false);
}

/* Asking the first stream itself saves a system call where it is the only one in use. */
static uint32_t find_ready(rdt_endpoint *endpoint) {
  struct epoll_event events[RDT_TCP_MAX_STREAMS + 1];
  bool others = endpoint->look_everywhere || endpoint->rounds++ % LOOK_EVERY == 0;
  uint32_t ready = held(endpoint) | endpoint->quiet;
  for (uint32_t i = 1; i < endpoint->stream_count && !others; i++)
    others = !is_attached(endpoint, i) && rdt_tcp_outstanding(&endpoint->streams[i]) > 0;
  if (!others) return ready | 1;
  endpoint->look_everywhere = false;
  int count = epoll_wait(endpoint->epoll_fd, events, RDT_TCP_MAX_STREAMS + 1, 0);
  for (int i = 0; i < count; i++) {
    const rdt_tcp_stream *stream = events[i].data.ptr;
    if (!stream) {
      take_nudge(endpoint);
      continue;
    }
    ready |= 1u << (stream - endpoint->streams);
    endpoint->look_everywhere |= stream != endpoint->streams || (events[i].events & EPOLLOUT);
  }
  return ready;
}

static int receive(rdt_endpoint *endpoint) {
  int moved = 0;
  for (uint32_t ready = find_ready(endpoint), i = 0; ready >> i; i++)
    if (ready >> i & 1) moved += rdt_tcp_receive(endpoint, i);
  return moved;
}

/* Shows the notifications that no fence hides any more. Returns how many fences that took. */
static int pass_fences(rdt_endpoint *endpoint) {
  uint64_t before = endpoint->fences_passed, visible = endpoint->landed;
  for (; endpoint->fences_passed != endpoint->fences_set; endpoint->fences_passed++) {
    const rdt_tcp_fence *oldest =
        &endpoint->fences[endpoint->fences_passed & (endpoint->depth - 1)];
    atomic_store(&endpoint->fenced_from, oldest->operation);
    atomic_store(&endpoint->fence_of, oldest->stream);
    atomic_store(&endpoint->fence, oldest->value);
    visible = oldest->position;
    if (atomic_load(&endpoint->streams[oldest->stream].served) < oldest->value) break;
    visible = endpoint->landed;
  }
  if (visible != endpoint->receive.seen)
    rdt_records_consumer_learn(&endpoint->receive, visible); /* begin_notify checked it */
  if (before == endpoint->fences_passed) return 0;
  endpoint->streams[0].in.ack_due = true;
  if (endpoint->fences_passed == endpoint->fences_set) {
    atomic_store(&endpoint->fence, 0);
    atomic_store(&endpoint->fenced_from, UINT64_MAX);
  }
  return (int)(endpoint->fences_passed - before);
}

/* Completes the stream's pieces before `end`, oldest first. Returns how many. */
static int complete_until(rdt_endpoint *endpoint, rdt_tcp_stream *stream, uint64_t end,
                          rdt_status status, const rdt_events *events) {
  int count = 0;
  for (uint64_t at; (at = atomic_load(&stream->completed)) < end; count++) {
    rdt_tcp_piece piece = stream->pieces[at & (endpoint->depth - 1)];
    atomic_store(&stream->completed, at + 1); /* from here on its place may be reused */
    atomic_fetch_add(&stream->done_bytes, piece.frame.size);
    if (piece.frame.kind == RDT_TCP_NOTIFY) atomic_fetch_sub(&endpoint->notifying, 1);
    if (piece.request) events->completed(events->context, piece.request, status);
  }
  return count;
}

/* Completes what was acknowledged, and what was refused. */
static int settle(rdt_endpoint *endpoint, const rdt_events *events) {
  int count = 0;
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    uint64_t refused = atomic_load(&stream->refused);
    count += complete_until(endpoint, stream, atomic_load(&stream->acknowledged), RDT_OK, events);
    if (!refused || !atomic_load(&endpoint->failed)) continue;
    rdt_fail(RDT_ERR_ACCESS, "%s", endpoint->failure);
    count += complete_until(endpoint, stream, refused, RDT_ERR_ACCESS, events);
  }
  return count;
}

static int deliver(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  rdt_records *ring = &endpoint->receive;
  int delivered = 0;
  while (delivered < budget) {
    uint64_t immediate;
    const void *data;
    uint32_t size;
    rdt_records_result result = rdt_records_peek(ring, &immediate, &data, &size);
    if (result == RDT_RECORDS_CORRUPT)
      rdt_tcp_fail(endpoint, "the peer wrote a malformed notification");
    if (result != RDT_RECORDS_OK) break;
    events->notified(events->context, immediate, data, size);
    rdt_records_pass(ring, size);
    delivered++;
  }
  return delivered;
}

/* The peer learns of every quarter that was freed, so it can always send what fits into a quarter. */
static bool offer_credit(rdt_endpoint *endpoint) {
  uint64_t consumed = endpoint->receive.position;
  if (consumed - endpoint->told_consumed < endpoint->receive.capacity / 4) return false;
  endpoint->told_consumed = consumed;
  atomic_store(&endpoint->credit_due, consumed);
  return true;
}

static bool anything_to_send(const rdt_endpoint *endpoint) {
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    const rdt_tcp_stream *stream = &endpoint->streams[i];
    if (is_attached(endpoint, i)) continue;
    bool holds = i == 0 && atomic_load(&endpoint->gathers) && rdt_tcp_is_ahead(stream);
    if (atomic_load(&stream->owed) != atomic_load(&stream->given) ||
        (atomic_load(&stream->posted) != atomic_load(&stream->built) && !holds))
      return true;
  }
  return false;
}

/* Reports whether an acknowledgement must leave; `all` are those that need not be quick, too. */
static bool acknowledges(rdt_endpoint *endpoint, bool all) {
  bool any = false;
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_input *in = &endpoint->streams[i].in;
    if (is_attached(endpoint, i) || !in->ack_due || (!in->quick_ack && !all)) continue;
    in->ack_due = false;
    any = true;
  }
  return any;
}

/* After a notification the user probably sends something, with which acknowledgements travel. They
 * wait for it no longer than until there is nothing to receive. */
static void send_due(rdt_endpoint *endpoint, bool credit, bool moved) {
  if (!credit && !acknowledges(endpoint, !moved) && !endpoint->look_everywhere &&
      !anything_to_send(endpoint))
    return;
  rdt_tcp_flush(endpoint, 0);
}

static void note_end(rdt_endpoint *endpoint) {
  int error = atomic_load(&endpoint->send_error);
  int64_t ended = atomic_load(&endpoint->ended_ms);
  char text[128];
  if (error == 0 && (!ended || rdt_now_ms() < ended + FAREWELL_MS)) return;
  snprintf(text, sizeof(text), "%s closed a data connection", endpoint->peer);
  rdt_tcp_fail(endpoint, text);
}

static void complete_all(rdt_endpoint *endpoint, const rdt_events *events) {
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    complete_until(endpoint, stream, atomic_load(&stream->posted), RDT_ERR_CONNECTION_LOST, events);
  }
}

/* The peer may have acknowledged operations before it left, and the I/O thread may not have read that yet. */
static void receive_last(rdt_endpoint *endpoint) {
  for (uint32_t i = 1; i < endpoint->stream_count && !endpoint->drained; i++)
    rdt_tcp_receive(endpoint, i);
}

int rdt_tcp_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  if (atomic_load(&endpoint->stopped)) {
    rdt_tcp_endpoint_still(endpoint); /* stop may be at it on another thread */
    receive_last(endpoint);
    settle(endpoint, events);
    complete_all(endpoint, events);
    endpoint->drained = true;
    return 0;
  }
  atomic_store(&endpoint->starved, false);
  int moved = receive(endpoint);
  moved += settle(endpoint, events) + pass_fences(endpoint);
  int taken = deliver(endpoint, budget, events);
  send_due(endpoint, offer_credit(endpoint), moved > 0);
  if (atomic_load_explicit(&endpoint->ended_ms, memory_order_relaxed) ||
      atomic_load_explicit(&endpoint->send_error, memory_order_relaxed))
    note_end(endpoint);
  if (!atomic_load(&endpoint->failed) || endpoint->reported) return taken + moved;
  endpoint->reported = true;
  settle(endpoint, events);
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s", endpoint->failure);
}

static void set_armed(rdt_endpoint *endpoint, bool armed) {
  struct epoll_event event = {.events = armed ? EPOLLIN : 0};
  if (endpoint->armed == armed) return;
  endpoint->armed = armed;
  epoll_ctl(endpoint->event_fd, EPOLL_CTL_MOD, endpoint->epoll_fd, &event);
}

static void set_quiet(rdt_endpoint *endpoint, bool quiet) {
  if (endpoint->quiet == quiet) return;
  endpoint->quiet = quiet;
  rdt_tcp_socket_quiet(endpoint->streams[0].socket, quiet);
}

/* Reports whether all that is under way are short operations of the first stream. */
static bool expects_little(const rdt_endpoint *endpoint) {
  const rdt_tcp_stream *first = &endpoint->streams[0];
  const uint64_t done = atomic_load(&first->completed), posted = atomic_load(&first->posted);
  uint64_t bytes = 0;
  for (uint32_t i = 1; i < endpoint->stream_count; i++)
    if (rdt_tcp_outstanding(&endpoint->streams[i]) > 0) return false;
  if (posted - done > FEW) return false;
  for (uint64_t at = done; at < posted; at++)
    bytes += first->pieces[at & (endpoint->depth - 1)].frame.size;
  return bytes <= RDT_TCP_QUIET_BYTES / 2;
}

/* What the sockets have is an event, also if they have it already. */
bool rdt_tcp_arm(rdt_endpoint *endpoint, bool may_take, bool completions) {
  (void)completions; /* they come the way that everything else comes */
  if (atomic_load(&endpoint->stopped)) return true;
  endpoint->look_everywhere = true;
  if (acknowledges(endpoint, true) || anything_to_send(endpoint)) rdt_tcp_flush(endpoint, 0);
  set_quiet(endpoint, false);
  set_armed(endpoint, true);
  if (!atomic_load(&endpoint->failed) && held(endpoint)) return false;
  return !(may_take && endpoint->receive.seen != endpoint->receive.position);
}

void rdt_tcp_disarm(rdt_endpoint *endpoint) { endpoint->look_everywhere = true; }

/* Reports whether operations have gone over further streams since the last call. */
static bool spreads(rdt_endpoint *endpoint) {
  uint64_t posted = 0;
  for (uint32_t i = 1; i < endpoint->stream_count; i++)
    posted += atomic_load(&endpoint->streams[i].posted);
  bool more = posted != endpoint->spread;
  endpoint->spread = posted;
  return more;
}

/* A quiet socket costs less than one whose events nobody asks for: its packets look for no waiter. I/O threads make
 * events all the same. */
uint64_t rdt_tcp_silence(rdt_endpoint *endpoint) {
  uint64_t seen = 0;
  const bool little = endpoint->may_be_quiet && expects_little(endpoint);
  if (little) set_quiet(endpoint, true);
  if (spreads(endpoint) || !little) set_armed(endpoint, false);
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    seen += atomic_load(&endpoint->streams[i].served) - atomic_load(&endpoint->streams[i].probed);
  return seen;
}

int rdt_tcp_event_fd(const rdt_endpoint *endpoint) { return endpoint->event_fd; }
