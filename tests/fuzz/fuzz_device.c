/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole device and a hostile peer on its host: over TCP and over the unix socket it says what it likes, hands
 * over descriptors of any kind, and writes into rings that the device reads and that it writes. After each
 * input the device has let go of everything, and it still serves.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/status.h"
#include "core/meet/handshake.h"
#include "core/objects.h"
#include "fuzz.h"
#include "transport/shm/ring.h"

#define CAPACITY RDT_RECORDS_MIN_CAPACITY
#define STEPS 64
#define ANSWER_MS 50
#define PATIENCE_MS 20000 /* a device that does not let go by then never will */
#define FD_SLACK 8

static rdt_device *device;
static rdt_region *region;
static atomic_uint connected, released;
static int fds_at_start;

/* The hostile peer's end. */
typedef struct peer {
  int socket;
  void *inbound, *outbound; /* rings: that the device writes, that it reads */
  int own_memory, own_event, its_event;
  rdt_shm_ring to_device;
} peer;

/* ---- the device --------------------------------------------------------------------------------------- */

static void on_connect(void *context, rdt_channel *channel) {
  (void)context, (void)channel;
  atomic_fetch_add(&connected, 1);
}

static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  static volatile uint8_t last;
  rdt_op op = {.kind = RDT_OP_NOTIFY, .local = &immediate, .size = sizeof(immediate)};
  (void)context;
  for (size_t i = 0; i < size; i++) last = ((const uint8_t *)data)[i];
  (void)last;
  rdt_channel_post(channel, &op, 1, NULL, NULL); /* an answer, for which there may be no room */
}

static void on_released(void *context, rdt_channel *channel) {
  (void)context, (void)channel;
  atomic_fetch_add(&released, 1);
}

static int count_fds(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  FUZZ_EXPECT(folder);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

static void start(void) {
  if (device) return;
  const rdt_device_options options = {.struct_size = sizeof(options),
                                      .name = "device",
                                      .on_connect = on_connect,
                                      .on_notify = on_notify,
                                      .on_released = on_released};
  const char *settings[][2] = {{"LOG_LEVEL", "error"},  {"TRANSPORTS", "shm"},
                               {"RING_BYTES", "4096"},  {"REMOTE_ALLOC_LIMIT", "64K"},
                               {"DEADLINE_MS", "1000"}, {"BIND_ADDRESS", "127.0.0.1"}};
  for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
    FUZZ_EXPECT(rdt_config_set(settings[i][0], settings[i][1]) == RDT_OK);
  FUZZ_EXPECT(rdt_device_open(&options, &device) == RDT_OK);
  FUZZ_EXPECT(rdt_region_alloc(device, 8192, RDT_ACCESS_READ, "region", &region) == RDT_OK);
  fds_at_start = count_fds();
}

static bool is_quiet(void) {
  pthread_mutex_lock(&device->lock);
  int workers = 0;
  for (int kind = 0; kind < RDT_TASK_KINDS; kind++) workers += device->workers[kind];
  pthread_mutex_unlock(&device->lock);
  return workers == 0 && atomic_load(&connected) == atomic_load(&released);
}

/* Everything the peer had is given back. */
static void await_quiet(void) {
  static unsigned inputs;
  rdt_deadline deadline = rdt_deadline_after(PATIENCE_MS);
  while (!is_quiet()) {
    FUZZ_EXPECT(rdt_deadline_left(deadline) > 0);
    struct timespec pause = {.tv_nsec = 20000};
    nanosleep(&pause, NULL);
  }
  if (++inputs % 64) return;
  while (count_fds() > fds_at_start + FD_SLACK) {
    FUZZ_EXPECT(rdt_deadline_left(deadline) > 0);
    poll(NULL, 0, 1);
  }
}

/* ---- sockets -------------------------------------------------------------------------------------------- */

static int connect_tcp(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  to.sin_port = htons((uint16_t)atoi(strrchr(device->address, ':') + 1));
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct linger at_once = {.l_onoff = 1}; /* or there would be no ports left */
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  FUZZ_EXPECT(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
  return fd;
}

static int connect_local(void) {
  int fd;
  FUZZ_EXPECT(rdt_local_connect(device->local_name, rdt_deadline_after(PATIENCE_MS), &fd) ==
              RDT_OK);
  return fd;
}

/* Descriptors are refused until the device has looked who we are. */
static bool is_early(rdt_status status, const rdt_fds *fds) {
  return status < 0 && fds && fds->count > 0 && strstr(rdt_last_error(), strerror(EPERM));
}

static void send_bytes(const peer *p, const void *bytes, size_t size, const rdt_fds *fds) {
  size_t sent;
  rdt_deadline deadline = rdt_deadline_after(PATIENCE_MS);
  if (size == 0 && !(fds && fds->count > 0)) return;
  while (is_early(rdt_net_send_part(rdt_socket_of(p->socket), bytes, size, fds, &sent), fds)) {
    FUZZ_EXPECT(rdt_deadline_left(deadline) > 0);
    poll(NULL, 0, 1);
  }
}

/* Messages that are there, or come soon if `wait`; false when the device hung up. */
static bool take_answer(peer *p, rdt_wire *wire, rdt_fds *fds, bool wait) {
  return rdt_net_receive(rdt_socket_of(p->socket), wire, fds,
                         wait ? rdt_deadline_after(ANSWER_MS) : 0) == RDT_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static void put_hello(rdt_wire *wire, fuzz_input *input) {
  uint8_t what = fuzz_u8(input);
  rdt_hello hello = {.address = "127.0.0.1:1", .local_name = "nowhere", .generation = 1};
  snprintf(hello.name, sizeof(hello.name), "%s", what & 1 ? "" : "peer");
  snprintf(hello.host_id, sizeof(hello.host_id), "%s", what & 2 ? "other" : device->host_id);
  snprintf(hello.transports, sizeof(hello.transports), "%s", what & 4 ? "verbs" : "shm");
  hello.has_secret = what & 8;
  rdt_hello_put(wire, &hello);
}

/* What the device needs to reach our end, or something like it. */
static void offer_ring(peer *p, rdt_fds *fds, uint8_t what) {
  fds->count = 0;
  fds->fd[fds->count++] = dup(what & 1 ? p->own_event : p->own_memory);
  fds->fd[fds->count++] = what & 2 ? open("/dev/null", O_RDWR | O_CLOEXEC) : dup(p->own_event);
  if (what & 4) close(fds->fd[--fds->count]);
}

static void send_attach(peer *p, fuzz_input *input) {
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  uint8_t what = fuzz_u8(input);
  uint64_t capacity = what & 8 ? fuzz_u64(input) : CAPACITY;
  rdt_wire_begin(&wire, RDT_MESSAGE_ATTACH, 0);
  rdt_wire_put_text(&wire, what & 16 ? "verbs" : "shm");
  rdt_wire_put_bytes(&wire, &capacity, what & 32 ? 4 : 8);
  rdt_wire_put_u32(&wire, what & 64 ? fuzz_u8(input) : 0);
  rdt_wire_put_bytes(&wire, "no proof", what & 128 ? 8 : 0);
  if (rdt_wire_end(&wire) != RDT_OK) return;
  offer_ring(p, &fds, what);
  send_bytes(p, wire.data, wire.size, &fds);
  rdt_fds_close(&fds);
}

static void send_header_and(peer *p, uint32_t type, fuzz_input *input) {
  rdt_wire wire;
  size_t size;
  rdt_wire_begin(&wire, (rdt_message_type)type, fuzz_u8(input));
  const uint8_t *body = fuzz_chunk(input, &size);
  for (size_t i = 0; i + 4 <= size; i += 4) {
    uint32_t word;
    memcpy(&word, body + i, sizeof(word));
    rdt_wire_put_u32(&wire, word);
  }
  if (rdt_wire_end(&wire) == RDT_OK) send_bytes(p, wire.data, wire.size, NULL);
}

static void ask(peer *p, fuzz_input *input) {
  rdt_wire wire;
  uint8_t what = fuzz_u8(input);
  rdt_wire_begin(&wire, what & 1 ? RDT_MESSAGE_ALLOC : RDT_MESSAGE_FIND, what);
  rdt_wire_put_u64(&wire, what & 2 ? fuzz_u64(input) : fuzz_u16(input));
  if (what & 1)
    rdt_wire_put_u32(&wire, fuzz_u8(input));
  else
    rdt_wire_put_text(&wire, what & 4 ? "region" : "");
  if (rdt_wire_end(&wire) == RDT_OK) send_bytes(p, wire.data, wire.size, NULL);
}

static void send_fds(peer *p, fuzz_input *input) {
  uint8_t what = fuzz_u8(input);
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  offer_ring(p, &fds, what & 3);
  rdt_wire_begin(&wire, what & 4 ? RDT_MESSAGE_HELLO : RDT_MESSAGE_REGION, 1);
  if (what & 4) put_hello(&wire, input);
  FUZZ_EXPECT(rdt_wire_end(&wire) == RDT_OK);
  if (what & 8)
    send_bytes(p, "", 0, &fds);
  else
    send_bytes(p, wire.data, wire.size, &fds);
  rdt_fds_close(&fds);
}

/* ---- rings ------------------------------------------------------------------------------------------------ */

/* The device's answer to an attach: where our end writes. */
static void map_ring(peer *p) {
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  if (p->outbound || !take_answer(p, &wire, &fds, true)) return;
  if (wire.type == RDT_MESSAGE_ATTACH && fds.count == 2) {
    FUZZ_EXPECT(rdt_memory_map(fds.fd[0], 0, RDT_SHM_RING_DATA_OFFSET + CAPACITY, true,
                               &p->outbound) == RDT_OK);
    rdt_shm_ring_init(&p->to_device, p->outbound, CAPACITY);
    p->its_event = dup(fds.fd[1]);
  }
  rdt_fds_close(&fds);
}

static void wake(const peer *p) {
  uint64_t one = 1;
  ssize_t ignored = write(p->its_event, &one, sizeof(one));
  (void)ignored;
}

static void write_ring(peer *p, fuzz_input *input) {
  size_t size;
  uint8_t what = fuzz_u8(input);
  if (!p->outbound) return;
  if (what & 1) {
    uint64_t immediate = fuzz_u64(input);
    const uint8_t *bytes = fuzz_bytes(input, fuzz_u8(input), &size);
    rdt_shm_ring_produce(&p->to_device, immediate, bytes, (uint32_t)size);
  } else {
    /* The other ring's head is a claim too: credit that we do not have. */
    char *into = what & 2 ? p->inbound : p->outbound;
    size_t at =
        what & 4 ? fuzz_u16(input) % 512 : RDT_SHM_RING_DATA_OFFSET + fuzz_u16(input) % CAPACITY;
    const uint8_t *bytes = fuzz_bytes(input, fuzz_u8(input) % 64, &size);
    if (at + size <= RDT_SHM_RING_DATA_OFFSET + CAPACITY) memcpy(into + at, bytes, size);
  }
  wake(p);
}

/* ---- a peer's life ------------------------------------------------------------------------------------------ */

static void open_peer(peer *p, bool local) {
  *p = (peer){.its_event = -1};
  p->socket = local ? connect_local() : connect_tcp();
  FUZZ_EXPECT(rdt_memory_create(RDT_SHM_RING_DATA_OFFSET + CAPACITY, &p->own_memory, &p->inbound) ==
              RDT_OK);
  p->own_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  FUZZ_EXPECT(p->own_event >= 0);
}

static void close_peer(peer *p) {
  close(p->socket);
  close(p->own_memory);
  close(p->own_event);
  if (p->its_event >= 0) close(p->its_event);
  munmap(p->inbound, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  if (p->outbound) munmap(p->outbound, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
}

static void step(peer *p, fuzz_input *input) {
  rdt_wire wire;
  rdt_fds fds = {.count = 0};
  size_t size;
  uint8_t what = fuzz_u8(input);
  switch (what % 9) {
    case 0: {
      const uint8_t *bytes = fuzz_chunk(input, &size);
      send_bytes(p, bytes, size, NULL);
      break;
    }
    case 1:
      send_header_and(p, fuzz_u8(input) % 12, input);
      break;
    case 2:
      rdt_wire_begin(&wire, RDT_MESSAGE_HELLO, 0);
      put_hello(&wire, input);
      if (rdt_wire_end(&wire) == RDT_OK) send_bytes(p, wire.data, wire.size, NULL);
      break;
    case 3:
      send_attach(p, input);
      map_ring(p);
      break;
    case 4:
      send_header_and(p, RDT_MESSAGE_READY, input);
      break;
    case 5:
      ask(p, input);
      break;
    case 6:
      send_fds(p, input);
      break;
    case 7:
      if (take_answer(p, &wire, &fds, what & 16)) rdt_fds_close(&fds);
      break;
    default:
      write_ring(p, input);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  peer p;
  start();
  open_peer(&p, fuzz_u8(&input) & 1);
  for (int i = 0; i < STEPS && input.left > 0; i++) step(&p, &input);
  close_peer(&p);
  await_quiet();
  return 0;
}

/* ---- seeds --------------------------------------------------------------------------------------------------- */

#define SEED_AWAIT 16 /* takes an answer, and waits for it */

static void put_connect(fuzz_output *out, uint8_t purpose) {
  fuzz_put_number(out, 2, 2);
  fuzz_put_number(out, SEED_AWAIT, 1);
  fuzz_put_number(out, 3, 1);
  fuzz_put_number(out, purpose ? 64 : 0, 1);
  if (purpose) fuzz_put_number(out, purpose, 1);
  fuzz_put_number(out, 4, 1);
  fuzz_put_number(out, 0, 1 + 2);
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  if (number > 5) return 0;
  fuzz_put_number(&out, number > 0, 1);
  if (number == 0) { /* hello, and an attach that TCP does not permit */
    fuzz_put_number(&out, 2, 2);
    fuzz_put_number(&out, SEED_AWAIT, 1);
    fuzz_put_number(&out, 3, 2);
  } else if (number == 5) { /* descriptors where none belong */
    fuzz_put_number(&out, 6 | 4 << 8, 3);
    fuzz_put_number(&out, 6 | 12 << 8, 3);
  } else {
    put_connect(&out, number == 4 ? 1 : 0);
    fuzz_put_number(&out, 5 | 4 << 8, 4);
    fuzz_put_number(&out, SEED_AWAIT, 1);
    fuzz_put_number(&out, 5 | 1 << 8 | 100 << 16 | 3 << 24, 5);
    fuzz_put_number(&out, SEED_AWAIT, 1);
    for (unsigned i = 0; i < number * 2; i++) {
      fuzz_put_number(&out, 8 | 1 << 8, 2);
      fuzz_put_number(&out, 1 + i, 8);
      fuzz_put_number(&out, 20, 1);
      fuzz_put(&out, "a notification that comes", 20);
    }
    fuzz_put_number(&out, 1 | 7 << 8, 2 + 1 + 2); /* goodbye */
  }
  return out.size;
}
