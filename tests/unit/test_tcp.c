/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP transport against a peer that is played here, frame by frame: what it must serve, what it must hold
 * back, and what it must refuse.
 */
#include <string.h>
#include <sys/ioctl.h>

#include "tcp_peer.h"

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
                               {.kind = RDT_TCP_COMPARE_SWAP + 1},
                               {.kind = RDT_TCP_FETCH_ADD, .size = 8},
                               {.kind = RDT_TCP_COMPARE_SWAP, .size = 17},
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

static void say_atomic(int stream, rdt_registration *region, rdt_tcp_kind kind, uint64_t offset,
                       uint64_t operand, uint64_t expected) {
  const uint64_t operands[] = {operand, expected};
  say_frame(stream, to(region, kind, sizeof(operands), offset));
  say(stream, operands, sizeof(operands));
}

static void expect_old(int stream, uint64_t wanted) {
  uint64_t old;
  rdt_tcp_frame data = hear_frame(stream);
  EXPECT(data.kind == RDT_TCP_DATA && data.size == sizeof(old));
  hear_bytes(stream, &old, sizeof(old));
  EXPECT(old == wanted);
}

/* On any stream, between operations of other kinds, and in parts. */
static void test_serves_atomics(void) {
  const uint64_t operands[] = {9, 8};
  uint64_t *word = (uint64_t *)(memory + 16);
  connect_end();
  rdt_registration *region = open_region(BOTH, false);
  *word = UINT64_MAX;
  say_atomic(0, region, RDT_TCP_FETCH_ADD, 16, 6, 0);
  expect_old(0, UINT64_MAX);
  expect_word(0, RDT_TCP_ACK, 1);
  say_atomic(1, region, RDT_TCP_COMPARE_SWAP, 16, 7, 4);
  expect_old(1, 5);
  expect_word(1, RDT_TCP_ACK, 1);
  EXPECT(*word == 5);
  say_atomic(0, region, RDT_TCP_COMPARE_SWAP, 16, 8, 5);
  say_frame(0, to(region, RDT_TCP_READ, 8, 16));
  expect_old(0, 5);
  expect_old(0, 8); /* that is what the read got */
  expect_word(0, RDT_TCP_ACK, 3);
  say_frame(0, to(region, RDT_TCP_COMPARE_SWAP, 16, 16));
  say(0, operands, 9);
  for (int i = 0; i < 10; i++) EXPECT(poll_end() >= 0);
  EXPECT(*word == 8);
  say(0, (const uint8_t *)operands + 9, 7);
  expect_old(0, 8);
  EXPECT(*word == 9);
  rdt_tcp_region_deregister(region);
  disconnect_end();
}

/* Against its access, outside of it, between its words, once it is closed: nothing changes, and the rest goes on. */
static void test_refuses_atomics(void) {
  uint64_t operations = 0;
  connect_end();
  rdt_registration *readable = open_region(RDT_ACCESS_READ, false);
  rdt_registration *writable = open_region(RDT_ACCESS_WRITE, false);
  rdt_registration *open = open_region(BOTH, false), *single = open_region(BOTH, true);
  const struct {
    rdt_registration *region;
    uint64_t offset;
  } bad[] = {{readable, 0},    {writable, 0}, {single, 0},           {open, 4},
             {open, SIZE - 4}, {open, SIZE},  {open, UINT64_MAX - 7}};
  memset(memory, 0, SIZE);
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    say_atomic(0, bad[i].region, RDT_TCP_FETCH_ADD, bad[i].offset, 1, 0);
    expect_word(0, RDT_TCP_REFUSE, operations++);
  }
  rdt_registration closed = *readable; /* its index and key */
  rdt_tcp_region_deregister(readable);
  say_atomic(0, &closed, RDT_TCP_COMPARE_SWAP, 0, 1, 0);
  expect_word(0, RDT_TCP_REFUSE, operations++);
  for (size_t i = 0; i < SIZE; i++) EXPECT(memory[i] == 0);
  say_atomic(0, open, RDT_TCP_FETCH_ADD, SIZE - 8, 1, 0);
  expect_old(0, 0);
  rdt_registration *all[] = {writable, open, single};
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

/* The answer of an atomic operation has eight bytes, and comes before the acknowledgement. */
static void test_atomics_need_data(void) {
  const uint64_t four[] = {4, 4};
  for (uint32_t size = 0; size <= 16; size += 8) {
    rdt_request request = {.holds = 0};
    uint64_t old[2] = {0, 77};
    rdt_mapping mapping = {.key = 1};
    rdt_op op = {.kind = RDT_OP_FETCH_ADD, .local = old, .size = 8, .operand = 1};
    connect_end();
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_tcp_atomic(end, &mapping, &op, &request));
    rdt_tcp_doorbell(end);
    if (size > 0) {
      say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_DATA, .size = size});
      say(0, four, size);
    }
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = 1});
    int polled = 0;
    for (int k = 0; k < 50 && polled >= 0 && completions == 0; k++) polled = poll_end();
    EXPECT(size == 8 ? successes == 1 && old[0] == 4 : polled == RDT_ERR_CONNECTION_LOST);
    EXPECT(old[1] == 77);
    disconnect_end();
  }
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

/* ---- gathering ------------------------------------------------------------------------------------------ */

static uint64_t waiting(int stream) {
  return atomic_load(&end->streams[stream].posted) - atomic_load(&end->streams[stream].built);
}

/* Posts up to `most` short writes, until one waits for more. The peer acknowledges them eight at a time, after a pause.
 * Returns whether one waits. */
static bool one_waits(rdt_request *request, int most, useconds_t pause_us) {
  uint64_t bytes;
  for (int posted = 1; posted <= most; posted++) {
    post(false, 8, request);
    if (waiting(0) > 0) return true;
    if (posted % 8) continue;
    if (pause_us) usleep(pause_us);
    for (int i = 0; i < 8; i++) {
      EXPECT(hear_frame(0).kind == RDT_TCP_WRITE);
      hear_bytes(0, &bytes, 8);
    }
    say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = (uint64_t)completions + 8});
    for (int before = completions; completions == before;) EXPECT(poll_end() >= 0);
  }
  return false;
}

static void post_until_one_waits(rdt_request *request) { EXPECT(one_waits(request, 100000, 0)); }

static void acknowledge(void) {
  const int before = completions;
  say_frame(0, (rdt_tcp_frame){.kind = RDT_TCP_ACK, .value = atomic_load(&end->streams[0].built)});
  while (completions == before) EXPECT(poll_end() >= 0);
}

static void notify(void) {
  EXPECT_STATUS(RDT_OK, rdt_tcp_notify(end, 5, NULL, 0));
  rdt_tcp_doorbell(end);
}

static void test_short_operations_gather(void) {
  void (*const ends_it[])(void) = {acknowledge, notify};
  for (int i = 0; i < 2; i++) {
    rdt_request request = {.holds = 0};
    connect_end();
    post_until_one_waits(&request);
    post(false, SIZE, &request); /* the other stream does not wait */
    EXPECT(poll_end() >= 0 && rdt_tcp_arm(end, true, true));
    EXPECT(waiting(0) == 1 && waiting(1) == 0 && rdt_tcp_outstanding(&end->streams[1]) > 0);
    ends_it[i]();
    EXPECT(waiting(0) == 0);
    disconnect_end();
  }
}

/* Enough of them do not wait for anything. */
static void test_gathered_operations_leave(void) {
  rdt_request request = {.holds = 0};
  connect_end();
  post_until_one_waits(&request);
  for (int i = 0; i < 100 && waiting(0) > 0; i++) post(false, 8, &request);
  EXPECT(waiting(0) == 0);
  disconnect_end();
  connect_end();
  post_until_one_waits(&request);
  post(false, 65536, &request);
  EXPECT(waiting(0) == 0);
  disconnect_end();
}

/* Where a round trip takes longer, waiting would add to it. */
static void test_nothing_waits_for_a_slow_peer(void) {
  rdt_request request = {.holds = 0};
  connect_end();
  EXPECT(!one_waits(&request, 160, 2000));
  disconnect_end();
}

/* ---- events --------------------------------------------------------------------------------------------- */

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

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("QUEUE_PAIRS", "2"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("STRIPE_BYTES", "131072"));
  test_frames();
  test_serves();
  test_refuses();
  test_serves_atomics();
  test_refuses_atomics();
  test_closes_in_the_middle();
  test_fence_holds_notifications_back();
  test_acknowledgements_are_checked();
  test_read_needs_data();
  test_atomics_need_data();
  test_refusal_fails_the_operation();
  test_short_operations_gather();
  test_gathered_operations_leave();
  test_nothing_waits_for_a_slow_peer();
  test_little_is_no_event_until_armed();
  test_much_is_an_event();
  test_first_stream_is_heard_beside_others();
  return 0;
}
