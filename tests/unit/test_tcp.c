/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP transport against a peer that is played here, frame by frame: what it must serve, what it must hold
 * back, and what it must refuse.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "transport/tcp/carriers.h"
#include "transport/tcp/objects.h"
#include "unit.h"

enum { STREAMS = 2, SIZE = 300000, BOTH = RDT_ACCESS_READ | RDT_ACCESS_WRITE };

static rdt_domain *domain;
static rdt_endpoint *end;
static int peer[STREAMS];
static uint8_t memory[SIZE];
static uint64_t last_notification;
static int notifications, completions, successes;
static rdt_status last_status;

static void notified(void *context, uint64_t immediate, const void *data, size_t size) {
  (void)context, (void)data, (void)size;
  last_notification = immediate;
  notifications++;
}

static void completed(void *context, rdt_request *request, rdt_status status) {
  (void)context;
  atomic_fetch_sub(&request->holds, 1);
  last_status = status;
  completions++;
  successes += status == RDT_OK;
}

static const rdt_events events = {NULL, notified, completed};

static int poll_end(void) { return rdt_tcp_poll(end, 64, &events); }

static void pair_in_host(int ends[2]) { EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); }

static void pair_over_tcp(int ends[2]) {
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

static void connect_over(void (*pair)(int ends[2]), uint32_t carriers) {
  rdt_bundle offer;
  notifications = completions = successes = 0;
  last_status = RDT_OK;
  EXPECT_STATUS(RDT_OK, rdt_tcp_domain_open(&domain));
  domain->carrier_limit = carriers;
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_create(domain, &end, &offer));
  EXPECT_STATUS(RDT_OK, rdt_tcp_endpoint_connect(end, "peer", &offer));
  EXPECT(rdt_tcp_line_count(end) == STREAMS);
  for (uint32_t i = 0; i < STREAMS; i++) {
    int ends[2];
    pair(ends);
    EXPECT_STATUS(RDT_OK, rdt_tcp_line_add(end, i, rdt_socket_of(ends[0])));
    peer[i] = ends[1];
  }
}

static void connect_end(void) { connect_over(pair_in_host, 0); }

static void disconnect_end(void) {
  rdt_tcp_endpoint_stop(end);
  poll_end();
  EXPECT(rdt_tcp_endpoint_idle(end));
  rdt_tcp_endpoint_destroy(end);
  rdt_tcp_carriers_stop(domain);
  rdt_tcp_domain_close(domain);
  for (uint32_t i = 0; i < STREAMS; i++) close(peer[i]);
}

static rdt_registration *open_region(uint32_t access, bool one_peer) {
  rdt_registration *made;
  rdt_region_memory region = {memory, SIZE, access, one_peer};
  EXPECT_STATUS(RDT_OK, rdt_tcp_region_register(domain, &region, &made));
  return made;
}

/* ---- the peer ----------------------------------------------------------------------------------------- */

static void say(int stream, const void *bytes, size_t size) {
  EXPECT(send(peer[stream], bytes, size, 0) == (ssize_t)size);
}

static void say_frame(int stream, rdt_tcp_frame frame) {
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame_put(&frame, header);
  say(stream, header, sizeof(header));
}

static rdt_tcp_frame to(const rdt_registration *region, rdt_tcp_kind kind, uint32_t size,
                        uint64_t offset) {
  return (rdt_tcp_frame){kind, size, region->index, region->key, offset};
}

static void hear_bytes(int stream, void *bytes, size_t size) {
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

static rdt_tcp_frame hear_frame(int stream) {
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame frame;
  hear_bytes(stream, header, sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  return frame;
}

static void expect_word(int stream, rdt_tcp_kind kind, uint64_t value) {
  rdt_tcp_frame frame = hear_frame(stream);
  EXPECT(frame.kind == kind && frame.value == value);
}

/* ---- frames -------------------------------------------------------------------------------------------- */

static void test_frames(void) {
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame frame = {RDT_TCP_WRITE, 4096, 7, 0x0123456789abcdefu, 1ull << 40}, again;
  rdt_tcp_frame_put(&frame, header);
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, 4096, &again));
  EXPECT(again.kind == frame.kind && again.size == frame.size && again.index == frame.index &&
         again.key == frame.key && again.value == frame.value);
  EXPECT(header[0] == RDT_TCP_WRITE && header[16] == 0xef && header[29] == 1);
  const rdt_tcp_frame bad[] = {{.kind = 0},
                               {.kind = RDT_TCP_CREDIT + 1},
                               {.kind = RDT_TCP_WRITE},
                               {.kind = RDT_TCP_READ, .size = RDT_TCP_PIECE_BYTES + 1},
                               {.kind = RDT_TCP_NOTIFY, .size = 4097},
                               {.kind = RDT_TCP_ACK, .size = 1}};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    rdt_tcp_frame_put(&bad[i], header);
    EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_tcp_frame_get(header, 4096, &again));
  }
  rdt_tcp_frame_put(&frame, header);
  header[12] = 1;
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_tcp_frame_get(header, 4096, &again));
}

/* ---- the target ---------------------------------------------------------------------------------------- */

static void test_serves(void) {
  static uint8_t bytes[SIZE], read[SIZE];
  connect_end();
  rdt_registration *region = open_region(BOTH, false);
  for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 13 >> 2);
  say_frame(0, to(region, RDT_TCP_WRITE, 100000, 1000));
  for (size_t at = 0; at < 100000; at += 20000) { /* in parts */
    say(0, bytes + at, 20000);
    EXPECT(poll_end() >= 0);
  }
  expect_word(0, RDT_TCP_ACK, 1);
  EXPECT(memcmp(memory + 1000, bytes, 100000) == 0);
  say_frame(0, to(region, RDT_TCP_READ, 100000, 1000));
  say_frame(0, to(region, RDT_TCP_READ, 5, 1001));
  rdt_tcp_frame data = hear_frame(0);
  EXPECT(data.kind == RDT_TCP_DATA && data.size == 100000);
  hear_bytes(0, read, 100000);
  EXPECT(memcmp(read, bytes, 100000) == 0);
  data = hear_frame(0);
  EXPECT(data.kind == RDT_TCP_DATA && data.size == 5);
  hear_bytes(0, read, 5);
  EXPECT(memcmp(read, bytes + 1, 5) == 0);
  expect_word(0, RDT_TCP_ACK, 3);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* Outside of a region, against its access, with a wrong key, for another peer. */
static void test_refuses(void) {
  uint8_t byte = 9;
  uint64_t operations = 0;
  connect_end();
  rdt_registration *readable = open_region(RDT_ACCESS_READ, false);
  rdt_registration *open = open_region(BOTH, false), *single = open_region(BOTH, true);
  rdt_tcp_frame wrong_key = to(open, RDT_TCP_WRITE, 1, 0);
  wrong_key.key++;
  memset(memory, 0, SIZE);
  const rdt_tcp_frame bad[] = {to(readable, RDT_TCP_WRITE, 1, 0), to(open, RDT_TCP_WRITE, 1, SIZE),
                               to(open, RDT_TCP_WRITE, 1, UINT64_MAX), wrong_key,
                               to(single, RDT_TCP_WRITE, 1, 0)};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++, operations++) {
    say_frame(0, bad[i]);
    say(0, &byte, 1);
    expect_word(0, RDT_TCP_REFUSE, operations);
  }
  say_frame(0, to(open, RDT_TCP_READ, 2, SIZE - 1));
  expect_word(0, RDT_TCP_REFUSE, operations++);
  for (size_t i = 0; i < SIZE; i++) EXPECT(memory[i] == 0);
  /* It was granted now, and whoever asks properly is still served. */
  EXPECT_STATUS(RDT_OK, rdt_tcp_region_grant(end, single, NULL));
  say_frame(0, to(single, RDT_TCP_WRITE, 1, 3));
  say(0, &byte, 1);
  expect_word(0, RDT_TCP_ACK, operations + 1);
  EXPECT(memory[3] == 9);
  rdt_registration *all[] = {readable, open, single};
  for (int i = 0; i < 3; i++) rdt_tcp_region_deregister(all[i]);
  disconnect_end();
}

/* The rest of a write, and of what is read, does not touch a region that was closed meanwhile. */
static void test_closes_in_the_middle(void) {
  static uint8_t bytes[SIZE];
  connect_end();
  rdt_registration *region = open_region(BOTH, false);
  memset(bytes, 7, SIZE);
  memset(memory, 1, SIZE);
  say_frame(0, to(region, RDT_TCP_WRITE, 100000, 0));
  say(0, bytes, 50000);
  for (int i = 0; i < 10; i++) EXPECT(poll_end() >= 0);
  EXPECT(memory[49999] == 7);
  rdt_tcp_region_deregister(region);
  say(0, bytes, 50000);
  expect_word(0, RDT_TCP_REFUSE, 0);
  EXPECT(memory[50000] == 1);
  /* More than the socket holds, so that the end of it is read later. */
  region = open_region(BOTH, false);
  for (int i = 0; i < 6; i++) say_frame(0, to(region, RDT_TCP_READ, SIZE, 0));
  for (int i = 0; i < 10; i++) EXPECT(poll_end() >= 0);
  rdt_tcp_region_deregister(region);
  memset(memory, 99, SIZE);
  bool refused = false;
  for (int i = 0; i < 6 && !refused; i++) {
    rdt_tcp_frame frame = hear_frame(0);
    if (frame.kind == RDT_TCP_ACK) frame = hear_frame(0);
    refused = frame.kind == RDT_TCP_REFUSE;
    EXPECT(refused || frame.kind == RDT_TCP_DATA);
    if (!refused) hear_bytes(0, bytes, SIZE);
    for (int k = 0; k < SIZE && !refused; k++) EXPECT(bytes[k] != 99);
  }
  EXPECT(refused);
  disconnect_end();
}

static void say_notification(uint64_t immediate) {
  rdt_record_header record = {.size = 0, .kind = RDT_RECORD_MESSAGE, .immediate = immediate};
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_NOTIFY, .size = sizeof(record)});
  say(0, &record, sizeof(record));
}

static void test_fence_holds_notifications_back(void) {
  uint8_t bytes[100] = {0};
  connect_end();
  rdt_registration *region = open_region(BOTH, false);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = 2});
  say_notification(5);
  say_frame(1, to(region, RDT_TCP_WRITE, 100, 0));
  say(1, bytes, 100);
  say_frame(1, to(region, RDT_TCP_WRITE, 100, 100));
  say(1, bytes, 99);
  for (int i = 0; i < 50; i++) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 0);
  say(1, bytes, 1);
  for (int i = 0; i < 50 && notifications == 0; i++) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 1 && last_notification == 5);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* ---- the source ----------------------------------------------------------------------------------------- */

static void post(bool reads, uint64_t size, rdt_request *request) {
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.local = memory, .size = size};
  EXPECT_STATUS(RDT_IN_PROGRESS,
                (reads ? rdt_tcp_read : rdt_tcp_write)(end, &mapping, &op, request));
  rdt_tcp_doorbell(end);
}

/* Buffers must not be given back on the word of a peer that cannot have what is in them. */
static void test_acknowledgements_are_checked(void) {
  const rdt_tcp_frame lies[] = {
      {.kind = RDT_TCP_ACK, .value = 2},          {.kind = RDT_TCP_ACK, .value = UINT64_MAX},
      {.kind = RDT_TCP_REFUSE, .value = 1},       {.kind = RDT_TCP_DATA, .size = 10},
      {.kind = RDT_TCP_NOTIFY, .size = 1u << 20}, {.kind = RDT_TCP_FENCE, .index = 7}};
  for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
    rdt_request request = {.holds = 0};
    connect_end();
    post(false, 100, &request);
    if (lies[i].kind == RDT_TCP_NOTIFY)
      say_frame(1, lies[i]);
    else
      say_frame(0, lies[i]);
    rdt_status status = RDT_OK;
    for (int k = 0; k < 50 && status == RDT_OK; k++) {
      int polled = poll_end();
      if (polled < 0) status = (rdt_status)polled;
    }
    EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, status);
    EXPECT(completions == 0);
    disconnect_end();
    EXPECT(completions == 1 && last_status == RDT_ERR_CONNECTION_LOST);
  }
}

/* An acknowledgement of a read, without its data. */
static void test_read_needs_data(void) {
  rdt_request request = {.holds = 0};
  connect_end();
  post(true, 100, &request);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 1});
  int polled = 0;
  for (int k = 0; k < 50 && polled >= 0; k++) polled = poll_end();
  EXPECT(polled == RDT_ERR_CONNECTION_LOST && completions == 0);
  disconnect_end();
}

static void test_refusal_fails_the_operation(void) {
  rdt_request requests[2] = {{.holds = 0}, {.holds = 0}};
  connect_end();
  post(false, 100, &requests[0]);
  post(true, 100, &requests[1]);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_REFUSE, .value = 1});
  int polled = 0;
  for (int k = 0; k < 50 && polled >= 0; k++) polled = poll_end();
  EXPECT(polled == RDT_ERR_CONNECTION_LOST && completions == 2 && last_status == RDT_ERR_ACCESS);
  disconnect_end();
}

/* ---- events --------------------------------------------------------------------------------------------- */

static bool has_event(int patience_ms) {
  struct pollfd event = {.fd = rdt_tcp_event_fd(end), .events = POLLIN};
  return poll(&event, 1, patience_ms) == 1;
}

static void await_bytes(void) {
  for (int here = 0; here == 0; usleep(100))
    EXPECT(ioctl(end->streams[0].socket.fd, FIONREAD, &here) == 0);
}

static void test_little_is_no_event_until_armed(void) {
  connect_over(pair_over_tcp, 0);
  for (int i = 0; i < 3; i++) {
    EXPECT(rdt_tcp_arm(end, true, true) && !has_event(0));
    rdt_tcp_silence(end);
    say_notification(5);
    await_bytes();
    EXPECT(!has_event(0));
    rdt_tcp_arm(end, true, true);
    EXPECT(has_event(20000));
    while (notifications <= i) EXPECT(poll_end() >= 0);
    hear_frame(0); /* the acknowledgement */
  }
  disconnect_end();
}

static void test_much_is_an_event(void) {
  static const uint8_t bytes[100000];
  connect_over(pair_over_tcp, 0);
  rdt_registration *region = open_region(BOTH, false);
  EXPECT(rdt_tcp_arm(end, true, true));
  rdt_tcp_silence(end);
  say_frame(0, to(region, RDT_TCP_WRITE, sizeof(bytes), 0));
  say(0, bytes, sizeof(bytes));
  EXPECT(has_event(20000));
  expect_word(0, RDT_TCP_ACK, 1);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* Operations on the other streams, which epoll looks for, do not hide what comes on the first. */
static void test_first_stream_is_heard_beside_others(void) {
  rdt_request requests[2] = {{.holds = 0}, {.holds = 0}};
  connect_over(pair_over_tcp, 0);
  rdt_tcp_arm(end, true, true);
  post(false, 8, &requests[0]);
  rdt_tcp_silence(end);
  post(false, SIZE, &requests[1]);
  EXPECT(rdt_tcp_outstanding(&end->streams[1]) > 0);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 1});
  await_bytes();
  for (int i = 0; i < 50 && completions == 0; i++) EXPECT(poll_end() >= 0);
  EXPECT(completions == 1 && last_status == RDT_OK);
  disconnect_end();
}

/* ---- carriers ------------------------------------------------------------------------------------------- */

enum { LARGE = 20 << 20 };

static void connect_carried(void) {
  connect_over(pair_over_tcp, 1);
  EXPECT(atomic_load(&end->streams[1].carried) && !atomic_load(&end->streams[0].carried));
}

/* Waits for an event, as the device's thread does, before it looks. */
static void sleep_until(const int *count, int wanted) {
  while (*count < wanted) {
    if (rdt_tcp_arm(end, true, true)) EXPECT(has_event(20000));
    rdt_tcp_disarm(end);
    EXPECT(poll_end() >= 0);
  }
}

/* Nobody polls, and the bytes arrive and are acknowledged. */
static void test_carrier_serves_writes(void) {
  static const uint8_t bytes[100000] = {1, 2, 3};
  rdt_tcp_frame frame;
  uint8_t header[RDT_TCP_HEADER_SIZE];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  memset(memory, 0, SIZE);
  say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 7));
  say(1, bytes, sizeof(bytes));
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  EXPECT(frame.kind == RDT_TCP_ACK && frame.value == 1);
  EXPECT(memcmp(memory + 7, bytes, sizeof(bytes)) == 0);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* A notification that is staged behind a fence makes an event when the carrier passes the fence. */
static void test_carrier_passes_fences(void) {
  static const uint8_t bytes[100000];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  for (int i = 0; i < 100; i++) {
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = (uint64_t)i + 1});
    /* Sometimes the fence is there first, sometimes what it waits for. */
    if (i % 2) sleep_until(&notifications, i);
    say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 0));
    say(1, bytes, sizeof(bytes));
    say_notification((uint64_t)i);
    sleep_until(&notifications, i + 1);
    EXPECT(last_notification == (uint64_t)i);
    for (uint64_t value = 0; value < 2 * (uint64_t)i + 2;) value = hear_frame(0).value;
  }
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* Writes pass a fence, notifications and acknowledgements do not. There may be as many as operations. */
static void test_writes_pass_fences(void) {
  static const uint8_t bytes[100000] = {5};
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  const uint64_t fences = end->depth;
  memset(memory, 0, SIZE);
  for (uint64_t i = 0; i < fences; i++) {
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = i + 1});
    say_notification(i);
  }
  say_frame(0, to(region, RDT_TCP_WRITE, 1, 200000));
  say(0, bytes, 1);
  while (memory[200000] != 5) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 0);
  for (uint64_t i = 0; i < fences; i++) {
    say_frame(1, to(region, RDT_TCP_WRITE, 1000, 0));
    say(1, bytes, 1000);
    sleep_until(&notifications, (int)i + 1);
    EXPECT(notifications == (int)i + 1 && last_notification == i);
    uint64_t acknowledged = 2 * i + 2 + (i + 1 == fences);
    for (uint64_t value = 0; value < acknowledged;) {
      value = hear_frame(0).value;
      EXPECT(value <= acknowledged);
    }
  }
  /* One more than agreed. */
  for (uint64_t i = 0; i <= fences; i++)
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = fences + 1});
  int polled = 0;
  while ((polled = poll_end()) >= 0) usleep(1000);
  EXPECT(polled == RDT_ERR_CONNECTION_LOST);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* More notifications than staging holds wait behind the fence. */
static void test_fence_before_more_than_staging_holds(void) {
  enum { COUNT = 4000 };
  static const uint8_t bytes[100000];
  connect_carried();
  rdt_registration *region = open_region(BOTH, false);
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_FENCE, .index = 1, .value = 1});
  for (int i = 0; i < COUNT; i++) say_notification((uint64_t)i);
  while (atomic_load(&end->streams[0].served) <= COUNT) EXPECT(poll_end() >= 0);
  EXPECT(notifications == 0);
  say_frame(1, to(region, RDT_TCP_WRITE, sizeof(bytes), 0));
  say(1, bytes, sizeof(bytes));
  sleep_until(&notifications, COUNT);
  EXPECT(notifications == COUNT && last_notification == COUNT - 1);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* What the peer acknowledges on a carried stream wakes whoever sleeps, once the request may be complete. */
static void test_carrier_notes_acknowledgements(void) {
  static uint8_t large[LARGE], got[RDT_TCP_PIECE_BYTES];
  rdt_request request = {.holds = 0};
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.local = large, .size = LARGE};
  uint64_t pieces = 0, bytes = 0;
  connect_carried();
  for (size_t i = 0; i < LARGE; i++) large[i] = (uint8_t)(i * 31 >> 3);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
  rdt_tcp_doorbell(end);
  uint64_t posted[STREAMS] = {atomic_load(&end->streams[0].posted),
                              atomic_load(&end->streams[1].posted)};
  for (; pieces < posted[1]; pieces++) { /* nobody polls here */
    uint8_t header[RDT_TCP_HEADER_SIZE];
    rdt_tcp_frame frame;
    EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
    EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
    EXPECT(recv(peer[1], got, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
    EXPECT(memcmp(got, large + frame.value, frame.size) == 0);
    say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = pieces + 1});
    bytes += frame.size;
  }
  sleep_until(&completions, (int)posted[1]);
  for (pieces = 0; pieces < posted[0]; pieces++) {
    rdt_tcp_frame frame = hear_frame(0);
    hear_bytes(0, got, frame.size);
    bytes += frame.size;
  }
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = pieces});
  sleep_until(&completions, (int)(posted[0] + posted[1]));
  EXPECT(bytes == LARGE && last_status == RDT_OK && atomic_load(&request.holds) == 0);
  disconnect_end();
}

/* What is acknowledged counts, also if nobody has polled since; the rest fails with the channel. */
static void test_stop_settles_what_was_acknowledged(void) {
  static uint8_t large[LARGE];
  rdt_request request = {.holds = 0};
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.local = large, .size = LARGE};
  uint8_t header[RDT_TCP_HEADER_SIZE];
  rdt_tcp_frame frame;
  connect_carried();
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
  rdt_tcp_doorbell(end);
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT_STATUS(RDT_OK, rdt_tcp_frame_get(header, UINT32_MAX, &frame));
  EXPECT(recv(peer[1], large, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
  say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 1});
  while (atomic_load(&end->streams[1].acknowledged) == 0) usleep(100);
  EXPECT(completions == 0);
  rdt_tcp_carry_no_more(end); /* no carrier comes to the next one */
  EXPECT(recv(peer[1], header, sizeof(header), MSG_WAITALL) == sizeof(header));
  EXPECT(recv(peer[1], large, frame.size, MSG_WAITALL) == (ssize_t)frame.size);
  say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 2});
  disconnect_end();
  EXPECT(completions == LARGE / (int)RDT_TCP_PIECE_BYTES && successes == 2);
  EXPECT(atomic_load(&request.holds) == 0);
}

/* A lie, and the end of the socket, on a carried stream wake whoever sleeps. */
static void test_failure_on_a_carried_stream(void) {
  for (int ends = 0; ends < 2; ends++) {
    connect_carried();
    EXPECT(rdt_tcp_arm(end, true, true));
    if (ends)
      shutdown(peer[1], SHUT_WR);
    else
      say_frame(1, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 9});
    EXPECT(has_event(20000));
    int polled = 0;
    while ((polled = poll_end()) >= 0) usleep(1000);
    EXPECT(polled == RDT_ERR_CONNECTION_LOST);
    disconnect_end();
  }
}

/* ---- the end, beside threads that move bytes ---------------------------------------------------------- */

enum { GIVEN_BACK = 99 }; /* in no frame and no body here */

static void *drain(void *stream) {
  static _Thread_local uint8_t got[1 << 16];
  uintptr_t found = 0;
  for (ssize_t size; (size = recv(peer[*(int *)stream], got, sizeof(got), 0)) > 0;)
    found |= memchr(got, GIVEN_BACK, (size_t)size) != NULL;
  return (void *)found;
}

static void *poll_until_drained(void *buffer) {
  while (!end->drained) poll_end();
  memset(buffer, GIVEN_BACK, LARGE);
  return NULL;
}

/* A buffer whose write has failed belongs to the user, so nothing of what he writes there leaves. */
static void test_stop_beside_senders(void) {
  static uint8_t large[LARGE];
  for (int round = 0; round < 40; round++) {
    rdt_request request = {.holds = 0};
    rdt_mapping mapping = {.key = 1};
    rdt_op op = {.local = large, .size = LARGE};
    pthread_t drains[STREAMS], poller;
    int numbers[STREAMS] = {0, 1};
    memset(large, 0, LARGE);
    connect_carried();
    for (int i = 0; i < STREAMS; i++)
      EXPECT(pthread_create(&drains[i], NULL, drain, &numbers[i]) == 0);
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_write(end, &mapping, &op, &request));
    EXPECT(pthread_create(&poller, NULL, poll_until_drained, large) == 0);
    rdt_tcp_doorbell(end);
    rdt_tcp_endpoint_stop(end);
    pthread_join(poller, NULL);
    EXPECT(atomic_load(&request.holds) == 0);
    for (int i = 0; i < STREAMS; i++) {
      void *found;
      pthread_join(drains[i], &found);
      EXPECT(!found);
    }
    disconnect_end();
  }
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("QUEUE_PAIRS", "2"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("STRIPE_BYTES", "131072"));
  test_frames();
  test_serves();
  test_refuses();
  test_closes_in_the_middle();
  test_fence_holds_notifications_back();
  test_acknowledgements_are_checked();
  test_read_needs_data();
  test_refusal_fails_the_operation();
  test_little_is_no_event_until_armed();
  test_much_is_an_event();
  test_first_stream_is_heard_beside_others();
  test_carrier_serves_writes();
  test_carrier_passes_fences();
  test_writes_pass_fences();
  test_fence_before_more_than_staging_holds();
  test_carrier_notes_acknowledgements();
  test_stop_settles_what_was_acknowledged();
  test_failure_on_a_carried_stream();
  test_stop_beside_senders();
  return 0;
}
