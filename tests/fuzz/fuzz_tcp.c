/* SPDX-License-Identifier: Apache-2.0
 *
 * What a peer over tcp says once it is connected: frames of any kind, whole or in parts, on any stream, while
 * this end posts operations of its own. Only the region that is open to the peer changes.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "transport/tcp/objects.h"

#define STREAMS 2u
#define OPEN_BYTES 3000u
#define OURS_BYTES 4096u
#define STEPS 200
#define OUTSTANDING 64u

static rdt_domain *domain;
static rdt_endpoint *tested;
static int peer[STREAMS]; /* the ends that the fuzzer holds */
static rdt_registration *opened, *closed, *of_another;
static uint8_t *open_memory, *secret, *ours;
static rdt_request requests[OUTSTANDING];
static unsigned posted;

static void notified(void *context, uint64_t immediate, const void *data, size_t size) {
  static volatile uint8_t last;
  (void)context, (void)immediate;
  for (size_t i = 0; i < size; i++) last = ((const uint8_t *)data)[i];
  (void)last;
}

/* Nothing completes that was not posted, or more than once. */
static void completed(void *context, rdt_request *request, rdt_status status) {
  (void)context, (void)status;
  FUZZ_EXPECT(atomic_fetch_sub(&request->holds, 1) > 0);
}

static const rdt_events events = {NULL, notified, completed};

static rdt_registration *open_region(uint8_t *memory, uint64_t size, uint32_t access, bool one) {
  rdt_registration *made;
  rdt_region_memory region = {memory, size, access, RDT_MEMORY_HOST, one};
  FUZZ_EXPECT(rdt_tcp_region_register(domain, &region, &made) == RDT_OK);
  return made;
}

static void start(void) {
  rdt_bundle offer;
  posted = 0;
  memset(requests, 0, sizeof(requests));
  open_memory = calloc(1, OPEN_BYTES);
  secret = calloc(1, OPEN_BYTES);
  ours = calloc(1, OURS_BYTES);
  FUZZ_EXPECT(open_memory && secret && ours && rdt_tcp_domain_open(&domain) == RDT_OK);
  opened = open_region(open_memory, OPEN_BYTES, RDT_ACCESS_READ | RDT_ACCESS_WRITE, false);
  closed = open_region(secret, OPEN_BYTES, RDT_ACCESS_READ, false);
  of_another = open_region(secret, OPEN_BYTES, RDT_ACCESS_WRITE, true);
  atomic_store(&of_another->grantee, UINT64_MAX);
  FUZZ_EXPECT(rdt_tcp_endpoint_create(domain, &tested, &offer) == RDT_OK);
  FUZZ_EXPECT(rdt_tcp_endpoint_connect(tested, "peer", &offer) == RDT_OK);
  for (uint32_t i = 0; i < STREAMS; i++) {
    int ends[2];
    FUZZ_EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    FUZZ_EXPECT(rdt_tcp_socket_add(tested, i, rdt_socket_of(ends[0])) == RDT_OK);
    peer[i] = ends[1];
  }
}

static void end(void) {
  rdt_tcp_endpoint_stop(tested);
  rdt_tcp_poll(tested, 0, &events);
  FUZZ_EXPECT(rdt_tcp_endpoint_idle(tested));
  for (unsigned i = 0; i < posted; i++) FUZZ_EXPECT(atomic_load(&requests[i].holds) == 0);
  for (uint32_t i = 0; i < OPEN_BYTES; i++) FUZZ_EXPECT(secret[i] == 0);
  rdt_tcp_endpoint_destroy(tested);
  if (opened) rdt_tcp_region_deregister(opened);
  rdt_tcp_region_deregister(closed);
  rdt_tcp_region_deregister(of_another);
  rdt_tcp_domain_close(domain);
  for (uint32_t i = 0; i < STREAMS; i++) close(peer[i]);
  free(open_memory);
  free(secret);
  free(ours);
}

/* ---- what the peer says ------------------------------------------------------------------------------- */

static void say(uint32_t stream, const void *bytes, size_t size) {
  ssize_t ignored = send(peer[stream], bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)ignored;
}

static void say_frame(fuzz_input *input) {
  uint8_t how = fuzz_u8(input), header[RDT_TCP_HEADER_SIZE];
  const rdt_registration *aim = how & 1 ? opened : how & 2 ? closed : of_another;
  rdt_tcp_frame frame = {.kind = fuzz_u8(input) % 12u};
  frame.size = (uint32_t)fuzz_number(input, how & 4 ? 2 : 0);
  frame.value = fuzz_number(input, how & 8 ? 8 : 2);
  frame.index = aim && how & 16 ? aim->index : fuzz_u8(input);
  frame.key = aim && how & 16 ? aim->key : fuzz_u8(input);
  rdt_tcp_frame_put(&frame, header);
  say(how >> 7, header, sizeof(header));
}

static void say_bytes(fuzz_input *input) {
  size_t size;
  uint32_t stream = fuzz_u8(input) & 1;
  const uint8_t *bytes = fuzz_chunk(input, &size);
  say(stream, bytes, size);
}

static void say_zeros(fuzz_input *input) {
  static const uint8_t zeros[65536];
  say(0, zeros, fuzz_u16(input));
}

static void listen_to_us(void) {
  uint8_t bytes[4096];
  for (uint32_t i = 0; i < STREAMS; i++)
    while (recv(peer[i], bytes, sizeof(bytes), MSG_DONTWAIT) > 0) continue;
}

/* ---- what this end does --------------------------------------------------------------------------------- */

static void post(fuzz_input *input) {
  rdt_mapping mapping = {.key = 1};
  rdt_op op = {.kind = RDT_OP_FETCH_ADD, .local = ours, .size = 1 + fuzz_u16(input) % OURS_BYTES};
  uint8_t how = fuzz_u8(input);
  if (posted == OUTSTANDING || atomic_load(&tested->failed)) return;
  rdt_request *request = &requests[posted++];
  if (how & 2)
    rdt_tcp_atomic(tested, &mapping, &op, request);
  else
    (how & 1 ? rdt_tcp_read : rdt_tcp_write)(tested, &mapping, &op, request);
  rdt_tcp_doorbell(tested);
}

/* True if the endpoint goes on. */
static bool step(fuzz_input *input) {
  switch (fuzz_u8(input) % 12) {
    case 0:
      say_bytes(input);
      return true;
    case 1:
      say_zeros(input);
      return true;
    case 2:
      post(input);
      return true;
    case 3:
      if (rdt_tcp_notify(tested, 1, ours, fuzz_u16(input) % OURS_BYTES) < 0) return false;
      rdt_tcp_doorbell(tested);
      return true;
    case 4:
      listen_to_us();
      return true;
    case 5:
      return rdt_tcp_arm(tested, true, true) || true;
    case 6:
      return rdt_tcp_probe(tested) == RDT_OK;
    case 7:
      if (opened && fuzz_u8(input) == 0) {
        rdt_tcp_region_deregister(opened);
        opened = NULL;
        memset(open_memory, 0, OPEN_BYTES);
        free(open_memory); /* whoever still touches it is found */
        open_memory = NULL;
      }
      return true;
    case 8:
    case 9:
      return rdt_tcp_poll(tested, 8, &events) >= 0;
    default:
      say_frame(input);
      return true;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  start();
  bool alive = true;
  for (int i = 0; i < STEPS && input.left > 0 && alive; i++) alive = step(&input);
  for (int i = 0; i < 8 && alive; i++) alive = rdt_tcp_poll(tested, 64, &events) >= 0;
  end();
  return 0;
}

/* ---- seeds ---------------------------------------------------------------------------------------------- */

/* A frame to the open region, which the peer says on stream `stream`. */
static void put_frame(fuzz_output *out, uint32_t stream, rdt_tcp_kind kind, uint32_t size,
                      uint64_t value) {
  fuzz_put_number(out, 10, 1);
  fuzz_put_number(out, (uint64_t)(1 | 4 | 16) | stream << 7, 1);
  fuzz_put_number(out, kind, 1);
  fuzz_put_number(out, size, 2);
  fuzz_put_number(out, value, 2);
}

static void put_poll(fuzz_output *out) { fuzz_put_number(out, 8, 1); }

/* Writes, reads and a notification that waits for a fence. */
static size_t seed_of_target(uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  rdt_record_header record = {.size = 8, .kind = RDT_RECORD_MESSAGE, .immediate = 5};
  put_frame(&out, 0, RDT_TCP_WRITE, 100, 50);
  fuzz_put_number(&out, 1 | 100 << 8, 3);
  put_poll(&out);
  put_frame(&out, 0, RDT_TCP_READ, 2000, 0);
  put_poll(&out);
  fuzz_put_number(&out, 10 | 4 << 8, 2); /* a fence of stream 1 */
  fuzz_put_number(&out, RDT_TCP_FENCE, 1);
  fuzz_put_number(&out, 0, 2);
  fuzz_put_number(&out, 1, 2);
  fuzz_put_number(&out, 1, 2);
  put_frame(&out, 0, RDT_TCP_NOTIFY, 32, 0);
  fuzz_put_number(&out, 0, 2);
  fuzz_put_chunk(&out, &record, sizeof(record));
  fuzz_put_number(&out, 1 | 16 << 8, 3);
  put_poll(&out);
  put_frame(&out, 1, RDT_TCP_READ, 30, 7);
  for (int i = 0; i < 3; i++) put_poll(&out);
  fuzz_put_number(&out, 7, 2);
  put_frame(&out, 0, RDT_TCP_PROBE, 0, 0);
  put_poll(&out);
  return out.size;
}

/* A write, a read and a notification of ours, with all that the peer answers. */
static size_t seed_of_source(uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  fuzz_put_number(&out, 2 | 99 << 8, 1 + 2 + 1);
  fuzz_put_number(&out, 2 | 99 << 8 | 1u << 24, 1 + 2 + 1);
  fuzz_put_number(&out, 3 | 16 << 8, 3);
  put_frame(&out, 0, RDT_TCP_ACK, 0, 1);
  put_poll(&out);
  put_frame(&out, 0, RDT_TCP_DATA, 100, 0);
  fuzz_put_number(&out, 1 | 100 << 8, 3);
  put_frame(&out, 0, RDT_TCP_ACK, 0, 3);
  put_frame(&out, 0, RDT_TCP_CREDIT, 0, 32);
  put_poll(&out);
  fuzz_put_number(&out, 3 | 16 << 8, 3);
  fuzz_put_number(&out, 6 | 4 << 8 | 5 << 16, 3);
  put_frame(&out, 0, RDT_TCP_REFUSE, 0, 3);
  put_poll(&out);
  return out.size;
}

/* Atomic operations: of the peer, some of them between words or on the last bytes, and one of ours. */
static size_t seed_of_atomics(uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  for (uint32_t i = 0; i < 8; i++) {
    put_frame(&out, i & 1, i & 2 ? RDT_TCP_COMPARE_SWAP : RDT_TCP_FETCH_ADD, RDT_TCP_OPERANDS_BYTES,
              i < 6 ? i * 8 : OPEN_BYTES - 2 * i + 8);
    fuzz_put_number(&out, i & 1 ? 1 << 8 : 0, 2); /* bytes on stream 1, or on stream 0 */
    fuzz_put_chunk(&out, "operand.expected", RDT_TCP_OPERANDS_BYTES);
    put_poll(&out);
  }
  fuzz_put_number(&out, 2 | 7 << 8 | 2u << 24, 1 + 2 + 1);
  put_frame(&out, 0, RDT_TCP_DATA, RDT_ATOMIC_SIZE, 0);
  fuzz_put_number(&out, 1 | RDT_ATOMIC_SIZE << 8, 3);
  put_frame(&out, 0, RDT_TCP_ACK, 0, 1);
  put_poll(&out);
  return out.size;
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  if (number == 0) return seed_of_target(seed, capacity);
  if (number == 1) return seed_of_source(seed, capacity);
  return number == 2 ? seed_of_atomics(seed, capacity) : 0;
}
