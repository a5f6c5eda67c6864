/* SPDX-License-Identifier: Apache-2.0
 *
 * An endpoint of the TCP transport, and its peer, which tests play frame by frame. One test at a time.
 */
#ifndef RDT_TESTS_UNIT_TCP_PEER_H
#define RDT_TESTS_UNIT_TCP_PEER_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "transport/tcp/io_threads.h"
#include "transport/tcp/objects.h"
#include "unit.h"

enum { STREAMS = 2, SIZE = 300000, BOTH = RDT_ACCESS_READ | RDT_ACCESS_WRITE };

static rdt_domain *domain;
static rdt_endpoint *end;
static int peer[STREAMS];
static _Alignas(8) uint8_t memory[SIZE];
static uint64_t last_notification;
static int notifications, completions, successes;
static rdt_status last_status;

static inline void notified(void *context, uint64_t immediate, const void *data, size_t size) {
  (void)context, (void)data, (void)size;
  last_notification = immediate;
  notifications++;
}

static inline void completed(void *context, rdt_request *request, rdt_status status) {
  (void)context;
  atomic_fetch_sub(&request->holds, 1);
  last_status = status;
  completions++;
  successes += status == RDT_OK;
}

static const rdt_events events = {NULL, notified, completed};

static inline int poll_end(void) { return rdt_tcp_poll(end, 64, &events); }

static inline void pair_in_host(int ends[2]) {
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
}

static inline void pair_over_tcp(int ends[2]) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof(at);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0);
  EXPECT(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT(connect(ends[0], (struct sockaddr *)&at, size) == 0);
  ends[1] = accept(listener, NULL, NULL);
  EXPECT(ends[1] >= 0);
  close(listener);
}

static inline void connect_over(void (*pair)(int ends[2]), uint32_t io_threads) {
  rdt_bundle offer;
  notifications = completions = successes = 0;
  last_status = RDT_OK;
  EXPECT_STATUS(RDT_OK, rdt_tcp_domain_open(&domain));
  domain->io_thread_limit = io_threads;
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_create(domain, &end, &offer));
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_connect(end, "peer", &offer));
  EXPECT(rdt_tcp_socket_count(end) == STREAMS);
  for (uint32_t i = 0; i < STREAMS; i++) {
    int ends[2];
    pair(ends);
    EXPECT_STATUS(RDT_OK, rdt_tcp_socket_add(end, i, rdt_socket_of(ends[0])));
    peer[i] = ends[1];
  }
}

static inline void connect_end(void) { connect_over(pair_in_host, 0); }

static inline void disconnect_end(void) {
  rdt_tcp_endpoint_stop(end);
  poll_end();
  EXPECT(rdt_tcp_endpoint_idle(end));
  rdt_tcp_endpoint_destroy(end);
  rdt_tcp_io_threads_stop(domain);
  rdt_tcp_domain_close(domain);
  for (uint32_t i = 0; i < STREAMS; i++) close(peer[i]);
}

static inline rdt_registration *open_region(uint32_t access, bool one_peer) {
  rdt_registration *made;
  rdt_region_memory region = {memory, SIZE, access, RDT_MEMORY_HOST, one_peer};
  EXPECT_STATUS(RDT_OK, rdt_tcp_region_register(domain, &region, &made));
  return made;
}

/* ---- the peer ----------------------------------------------------------------------------------------- */

static inline void say(int stream, const void *bytes, size_t size) {
  EXPECT(send(peer[stream], bytes, size, 0) == (ssize_t)size);
}

static inline void say_frame(int stream, rdt_tcp_frame frame) {
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame_put(&frame, header);
  say(stream, header, sizeof(header));
}

static inline rdt_tcp_frame to(const rdt_registration *region, rdt_tcp_kind kind, uint32_t size,
                               uint64_t offset) {
  return (rdt_tcp_frame){kind, size, region->index, region->key, offset};
}

static inline void hear_bytes(int stream, void *bytes, size_t size) {
  for (size_t have = 0; have < size;) {
    ssize_t more = recv(peer[stream], (uint8_t *)bytes + have, size - have, MSG_DONTWAIT);
    if (more < 0 && errno == EAGAIN) {
      EXPECT(poll_end() >= 0);
      usleep(100);
      continue;
    }
    EXPECT(more > 0);
    have += (size_t)more;
  }
}

static inline rdt_tcp_frame hear_frame(int stream) {
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame frame;
  hear_bytes(stream, header, sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  return frame;
}

static inline void expect_word(int stream, rdt_tcp_kind kind, uint64_t value) {
  rdt_tcp_frame frame = hear_frame(stream);
  EXPECT(frame.kind == kind && frame.value == value);
}

static inline void say_notification(uint64_t immediate) {
  rdt_record_header record = {.size = 0, .kind = RDT_RECORD_MESSAGE, .immediate = immediate};
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_NOTIFY, .size = sizeof(record)});
  say(0, &record, sizeof(record));
}

/* ---- events --------------------------------------------------------------------------------------------- */

static inline bool has_event(int patience_ms) {
  struct pollfd event = {.fd = rdt_tcp_event_fd(end), .events = POLLIN};
  return poll(&event, 1, patience_ms) == 1;
}

#endif
