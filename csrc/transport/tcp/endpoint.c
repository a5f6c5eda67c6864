/* SPDX-License-Identifier: Apache-2.0
 *
 * An endpoint from its creation to its end: its queues, its streams, and the order of freeing them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/config.h"
#include "base/status.h"
#include "transport/tcp/io_threads.h"
#include "transport/tcp/objects.h"
#include "transport/tcp/socket_io.h"

#define LEAST_DEPTH 64u
#define MOST_DEPTH 8192u
#define MAX_MIRROR (64u << 20) /* bytes, unless our own ring is larger */

/* Takes its pages from the machine when they are first used. */
static rdt_status create_ring(rdt_records *records, uint64_t capacity) {
  void *start = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    return rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a ring of %llu bytes",
                    (unsigned long long)capacity);
  rdt_records_init(records, start, capacity);
  return RDT_OK;
}

static void destroy_ring(rdt_records *records) {
  if (records->data) munmap(records->data, records->capacity);
}

static rdt_status describe(const rdt_endpoint *endpoint, rdt_bundle *offer) {
  rdt_wire wire;
  rdt_wire_begin(&wire, 0, 0);
  rdt_wire_put_u32(&wire, endpoint->stream_count);
  rdt_wire_put_u32(&wire, endpoint->depth);
  rdt_wire_put_u64(&wire, endpoint->receive.capacity);
  return rdt_wire_unload(&wire, offer->bytes, sizeof(offer->bytes), &offer->size);
}

static rdt_status create(rdt_endpoint *endpoint, rdt_bundle *offer) {
  static _Atomic uint64_t endpoints;
  endpoint->number = atomic_fetch_add(&endpoints, 1) + 1;
  endpoint->stream_count = (uint32_t)rdt_config_number(RDT_CONFIG_QUEUE_PAIRS);
  endpoint->may_be_quiet = rdt_tcp_socket_can_be_quiet();
  endpoint->stripe = rdt_config_number(RDT_CONFIG_STRIPE_BYTES);
  if (endpoint->stripe > RDT_TCP_PIECE_BYTES) endpoint->stripe = RDT_TCP_PIECE_BYTES;
  endpoint->depth = LEAST_DEPTH;
  while (endpoint->depth * 2 <= rdt_config_number(RDT_CONFIG_QUEUE_DEPTH)) endpoint->depth *= 2;
  rdt_status status = create_ring(&endpoint->receive, rdt_records_configured_capacity());
  if (status != RDT_OK) return status;
  endpoint->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  endpoint->event_fd = endpoint->epoll_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
  endpoint->nudge_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event none = {.events = 0}, nudge = {.events = EPOLLIN, .data.ptr = NULL};
  if (endpoint->event_fd < 0 || endpoint->nudge_fd < 0 ||
      epoll_ctl(endpoint->event_fd, EPOLL_CTL_ADD, endpoint->epoll_fd, &none) != 0 ||
      epoll_ctl(endpoint->epoll_fd, EPOLL_CTL_ADD, endpoint->nudge_fd, &nudge) != 0)
    return rdt_fail_errno(errno, "cannot create an epoll instance");
  return describe(endpoint, offer);
}

rdt_status rdt_tcp_endpoint_create(rdt_domain *domain, rdt_endpoint **endpoint_out,
                                   rdt_bundle *offer) {
  offer->fds.count = 0;
  rdt_endpoint *endpoint = calloc(1, sizeof(*endpoint));
  if (!endpoint) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  endpoint->domain = domain;
  endpoint->epoll_fd = endpoint->event_fd = endpoint->nudge_fd = -1;
  atomic_flag_clear(&endpoint->failing);
  atomic_init(&endpoint->fenced_from, UINT64_MAX);
  rdt_status status = create(endpoint, offer);
  if (status == RDT_OK)
    *endpoint_out = endpoint;
  else
    rdt_tcp_endpoint_destroy(endpoint);
  return status;
}

static uint32_t lower(uint32_t a, uint32_t b) { return a < b ? a : b; }

static rdt_status read_offer(const rdt_bundle *offer, uint32_t *streams, uint32_t *depth,
                             uint64_t *ring) {
  rdt_wire wire;
  rdt_wire_load(&wire, offer->bytes, offer->size);
  *streams = rdt_wire_get_u32(&wire);
  *depth = rdt_wire_get_u32(&wire);
  *ring = rdt_wire_get_u64(&wire);
  rdt_status status = rdt_wire_close(&wire);
  if (status != RDT_OK) return status;
  if (*streams > 0 && *streams <= RDT_TCP_MAX_STREAMS && *depth >= LEAST_DEPTH &&
      *depth <= MOST_DEPTH && (*depth & (*depth - 1)) == 0 && rdt_records_valid_capacity(*ring))
    return RDT_OK;
  return rdt_fail(RDT_ERR_PROTOCOL, "the peer's tcp offer has impossible values");
}

static rdt_status create_streams(rdt_endpoint *endpoint) {
  endpoint->streams = calloc(endpoint->stream_count, sizeof(*endpoint->streams));
  if (!endpoint->streams) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    stream->endpoint = endpoint;
    stream->socket = RDT_NO_SOCKET;
    stream->epoll_fd = endpoint->epoll_fd;
    pthread_mutex_init(&stream->out_lock, NULL);
  }
  for (uint32_t i = 0; i < endpoint->stream_count; i++) {
    rdt_tcp_stream *stream = &endpoint->streams[i];
    stream->pieces = calloc(endpoint->depth, sizeof(*stream->pieces));
    stream->answers = calloc(endpoint->depth, sizeof(*stream->answers));
    if (!stream->pieces || !stream->answers) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  }
  endpoint->fences = calloc(endpoint->depth, sizeof(*endpoint->fences));
  return endpoint->fences ? RDT_OK : rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
}

rdt_status rdt_tcp_endpoint_connect(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer) {
  uint32_t streams, depth;
  uint64_t ring;
  snprintf(endpoint->peer, sizeof(endpoint->peer), "%s", peer);
  rdt_status status = read_offer(offer, &streams, &depth, &ring);
  if (status != RDT_OK) return status;
  if (ring > MAX_MIRROR && ring > endpoint->receive.capacity)
    return rdt_fail(RDT_ERR_PROTOCOL,
                    "the peer has a ring of %llu bytes, as much memory would be used here: use "
                    "the same version of rdmatensor",
                    (unsigned long long)ring);
  endpoint->stream_count = lower(endpoint->stream_count, streams);
  endpoint->depth = lower(endpoint->depth, depth);
  status = create_ring(&endpoint->mirror, ring);
  return status == RDT_OK ? create_streams(endpoint) : status;
}

uint32_t rdt_tcp_socket_count(const rdt_endpoint *endpoint) { return endpoint->stream_count; }

rdt_status rdt_tcp_socket_add(rdt_endpoint *endpoint, uint32_t index, rdt_socket socket) {
  rdt_tcp_stream *stream = &endpoint->streams[index];
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
  rdt_status status = rdt_tcp_socket_open(socket.fd);
  if (status != RDT_OK) return status;
  if (epoll_ctl(endpoint->epoll_fd, EPOLL_CTL_ADD, socket.fd, &event) != 0)
    return rdt_fail_errno(errno, "a data connection cannot be watched for events");
  stream->socket = socket;
  if (index > 0) rdt_tcp_io_attach(stream);
  return RDT_OK;
}

uint64_t rdt_tcp_max_notify(const rdt_endpoint *endpoint) {
  return rdt_records_max_payload(&endpoint->mirror);
}

void rdt_tcp_endpoint_still(rdt_endpoint *endpoint) {
  rdt_tcp_io_detach(endpoint);
  for (uint32_t i = 0; i < endpoint->stream_count && endpoint->streams; i++) {
    pthread_mutex_lock(&endpoint->streams[i].out_lock);
    pthread_mutex_unlock(&endpoint->streams[i].out_lock);
  }
}

/* Nobody sends any more when this returns; a poll that runs may still receive one batch. */
void rdt_tcp_endpoint_stop(rdt_endpoint *endpoint) {
  bool stopped = atomic_exchange(&endpoint->stopped, true);
  rdt_tcp_endpoint_still(endpoint);
  for (uint32_t i = 0; i < endpoint->stream_count && endpoint->streams && !stopped; i++)
    if (endpoint->streams[i].socket.fd >= 0) shutdown(endpoint->streams[i].socket.fd, SHUT_RDWR);
}

static bool all_complete(const rdt_endpoint *endpoint) {
  for (uint32_t i = 0; i < endpoint->stream_count; i++)
    if (rdt_tcp_outstanding(&endpoint->streams[i]) > 0) return false;
  return true;
}

bool rdt_tcp_endpoint_idle(const rdt_endpoint *endpoint) {
  if (!all_complete(endpoint)) return false;
  if (atomic_load(&endpoint->stopped)) return endpoint->drained;
  return !atomic_load(&endpoint->stalled) && rdt_tcp_is_flushed(endpoint);
}

void rdt_tcp_endpoint_abort(rdt_endpoint *endpoint, const rdt_events *events) {
  rdt_tcp_endpoint_stop(endpoint);
  rdt_tcp_poll(endpoint, 0, events);
}

static void free_stream(rdt_endpoint *endpoint, rdt_tcp_stream *stream) {
  rdt_socket_close(&stream->socket);
  rdt_tcp_registration_unref(stream->in.registration);
  for (int i = 0; i < RDT_TCP_PARTS; i++) rdt_tcp_registration_unref(stream->out.held[i]);
  for (uint64_t at = stream->given; stream->answers && at < stream->owed; at++)
    rdt_tcp_registration_unref(stream->answers[at & (endpoint->depth - 1)].registration);
  free(stream->in.gathered);
  free(stream->pieces);
  free(stream->answers);
  pthread_mutex_destroy(&stream->out_lock);
}

void rdt_tcp_endpoint_destroy(rdt_endpoint *endpoint) {
  rdt_tcp_io_detach(endpoint);
  for (uint32_t i = 0; i < endpoint->stream_count && endpoint->streams; i++)
    free_stream(endpoint, &endpoint->streams[i]);
  if (endpoint->event_fd >= 0) close(endpoint->event_fd);
  if (endpoint->epoll_fd >= 0) close(endpoint->epoll_fd);
  if (endpoint->nudge_fd >= 0) close(endpoint->nudge_fd);
  destroy_ring(&endpoint->receive);
  destroy_ring(&endpoint->mirror);
  free(endpoint->streams);
  free(endpoint->fences);
  free(endpoint);
}
