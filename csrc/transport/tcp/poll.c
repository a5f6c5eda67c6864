/* SPDX-License-Identifier: Apache-2.0
 *
 * Polling of an endpoint: input of all streams, then the notifications that came, then output that
 * is due. One thread at a time runs it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/status.h"
#include "transport/tcp/line.h"
#include "transport/tcp/objects.h"

#define LOOK_EVERY 16   /* polls between looks at all streams, if only the first one is used */
#define FEW 8u          /* operations that a quiet stream may have under way */
#define FAREWELL_MS 500 /* for which the control connection may tell why a stream ended */

/* ---- input --------------------------------------------------------------------------------------------------- */

/* Returns the streams that have bytes here for which no event comes, unless they wait for a fence. */
static uint32_t held(const rdt_endpoint *endpoint) {
  uint32_t ready = 0;
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    if (rdt_tcp_line_holds(endpoint->streams[i].socket) && !endpoint->streams[i].in.paused)
      ready |= 1u << i;
  return ready;
}

/* Asking the first stream itself saves a system call where it is the only one in use. */
static uint32_t find_ready(rdt_endpoint *endpoint) {
  struct epoll_event events[RDT_TCP_MAX_STREAMS];
  bool others = endpoint->look_everywhere || endpoint->rounds++ % LOOK_EVERY == 0;
  uint32_t ready = held(endpoint) | endpoint->quiet;
  for (uint32_t i = 1; i < endpoint->stream_count && !others; i++)
    others = rdt_tcp_outstanding(&endpoint->streams[i]) > 0;
  if (!others) return ready | 1;
  endpoint->look_everywhere = false;
  int count = epoll_wait(endpoint->epoll_fd, events, RDT_TCP_MAX_STREAMS, 0);
  for (int i = 0; i < count; i++) {
    ready |= 1u << events[i].data.u32;
    endpoint->look_everywhere |= events[i].data.u32 > 0 || (events[i].events & EPOLLOUT);
  }
  return ready;
}

static int receive(rdt_endpoint *endpoint, const rdt_events *events) {
  int moved = 0;
  for (uint32_t ready = find_ready(endpoint), i = 0; ready >> i; i++)
    if (ready >> i & 1) moved += rdt_tcp_receive(endpoint, i, events);
  /* What is staged behind a fence has no event. */
  rdt_tcp_input *first = &endpoint->streams[0].in;
  if (first->fence) rdt_tcp_parse(endpoint, 0, events, &moved);
  if (first->paused && !first->fence) moved += rdt_tcp_receive(endpoint, 0, events);
  return moved;
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

/* ---- output -------------------------------------------------------------------------------------------------- */

static bool anything_to_send(const rdt_endpoint *endpoint) {
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    const rdt_tcp_stream *stream = &endpoint->streams[i];
    if (atomic_load(&stream->owed) != atomic_load(&stream->given) ||
        atomic_load(&stream->posted) != atomic_load(&stream->built))
      return true;
  }
  return false;
}

/* After a notification the user probably sends something, with which acknowledgements travel. They
 * wait for it no longer than until there is nothing to receive. */
static void send_due(rdt_endpoint *endpoint, bool credit, bool moved) {
  bool acknowledge = endpoint->ack_due && (endpoint->quick_ack || !moved);
  if (!credit && !acknowledge && !endpoint->look_everywhere && !anything_to_send(endpoint)) return;
  if (acknowledge) endpoint->ack_due = false;
  rdt_tcp_flush(endpoint);
}

/* ---- poll, arm ----------------------------------------------------------------------------------------------- */

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
    rdt_tcp_complete_until(endpoint, stream, atomic_load(&stream->posted), RDT_ERR_CONNECTION_LOST,
                           events);
  }
}

int rdt_tcp_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  if (atomic_load(&endpoint->stopped)) {
    complete_all(endpoint, events);
    endpoint->drained = true;
    return 0;
  }
  int moved = receive(endpoint, events);
  int taken = deliver(endpoint, budget, events);
  send_due(endpoint, offer_credit(endpoint), moved > 0);
  if (atomic_load_explicit(&endpoint->ended_ms, memory_order_relaxed) ||
      atomic_load_explicit(&endpoint->send_error, memory_order_relaxed))
    note_end(endpoint);
  if (!endpoint->failed || endpoint->reported) return taken + moved;
  endpoint->reported = true;
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
  rdt_tcp_line_quiet(endpoint->streams[0].socket, quiet);
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
  if (endpoint->ack_due || anything_to_send(endpoint)) rdt_tcp_flush(endpoint);
  endpoint->ack_due = false;
  set_quiet(endpoint, false);
  set_armed(endpoint, true);
  if (!endpoint->failed && held(endpoint)) return false;
  return !(may_take && endpoint->receive.seen != endpoint->receive.position);
}

void rdt_tcp_disarm(rdt_endpoint *endpoint) { endpoint->look_everywhere = true; }

/* A quiet socket costs less than one whose events nobody asks for: its packets look for no waiter. */
void rdt_tcp_silence(rdt_endpoint *endpoint) {
  if (endpoint->may_be_quiet && expects_little(endpoint))
    set_quiet(endpoint, true);
  else
    set_armed(endpoint, false);
}

int rdt_tcp_event_fd(const rdt_endpoint *endpoint) { return endpoint->event_fd; }
