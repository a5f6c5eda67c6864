/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of the same user that speaks the protocol and means no good. (tests/fuzz makes up others.)
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "core/meet/handshake.h"
#include "core/objects.h"
#include "transport/shm/ring.h"
#include "unit.h"

#define CAPACITY 4096u

static rdt_device *device;
static rdt_channel *_Atomic arrived;
static atomic_int downs, releases;

static void on_connect(void *context, rdt_channel *channel) {
  (void)context;
  rdt_channel_ref(channel);
  atomic_store(&arrived, channel);
}

static void on_down(void *context, rdt_channel *channel, rdt_status why) {
  (void)context, (void)channel, (void)why;
  atomic_fetch_add(&downs, 1);
}

static void on_released(void *context, rdt_channel *channel) {
  (void)context, (void)channel;
  atomic_fetch_add(&releases, 1);
}

static void send_message(int socket, rdt_wire *wire, const rdt_fds *fds) {
  EXPECT_STATUS(RDT_OK, rdt_wire_end(wire));
  EXPECT_STATUS(RDT_OK, rdt_net_send(rdt_socket_of(socket), wire, fds, rdt_deadline_after(10000)));
}

static void receive(int socket, rdt_wire *wire, rdt_fds *fds, rdt_message_type type) {
  EXPECT_STATUS(RDT_OK,
                rdt_net_receive(rdt_socket_of(socket), wire, fds, rdt_deadline_after(10000)));
  EXPECT(wire->type == type);
}

static int dial(void) {
  int socket;
  EXPECT_STATUS(RDT_OK, rdt_local_connect(device->local_name, rdt_deadline_after(10000), &socket));
  return socket;
}

static void begin_hello(rdt_wire *wire) {
  rdt_hello hello = {.name = "hostile", .address = "127.0.0.1:1", .local_name = "nowhere"};
  snprintf(hello.transports, sizeof(hello.transports), "shm");
  memcpy(hello.host_id, device->host_id, sizeof(hello.host_id));
  rdt_wire_begin(wire, RDT_MESSAGE_HELLO, 0);
  rdt_hello_put(wire, &hello);
}

static void begin_attach(rdt_wire *wire) {
  uint64_t capacity = CAPACITY;
  rdt_wire_begin(wire, RDT_MESSAGE_ATTACH, 0);
  rdt_wire_put_text(wire, "shm");
  rdt_wire_put_bytes(wire, &capacity, sizeof(capacity));
  rdt_wire_put_u32(wire, RDT_PURPOSE_USER);
  rdt_wire_put_bytes(wire, "", 0); /* no proof */
}

/* A connection on which both have said hello; `fds` go with it, as soon as the device takes any. */
static int dial_and_greet(const rdt_fds *fds) {
  rdt_wire wire;
  int socket = dial();
  rdt_deadline deadline = rdt_deadline_after(10000);
  begin_hello(&wire);
  EXPECT_STATUS(RDT_OK, rdt_wire_end(&wire));
  while (rdt_net_send(rdt_socket_of(socket), &wire, fds, deadline) != RDT_OK) {
    EXPECT(fds && strstr(rdt_last_error(), strerror(EPERM)) && rdt_deadline_left(deadline) > 0);
    usleep(1000);
  }
  receive(socket, &wire, NULL, RDT_MESSAGE_HELLO);
  return socket;
}

/* A ring, and `event` to wake its reader. */
static rdt_fds offer(int event) {
  void *ring;
  rdt_fds fds = {.count = 2};
  EXPECT_STATUS(RDT_OK, rdt_memory_create(RDT_SHM_RING_DATA_OFFSET + CAPACITY, &fds.fd[0], &ring));
  munmap(ring, RDT_SHM_RING_DATA_OFFSET + CAPACITY);
  fds.fd[1] = event;
  return fds;
}

static int count_fds(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  EXPECT(folder);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

/* What it hands over unasked is closed again. */
static void test_descriptors(void) {
  int before = count_fds();
  rdt_fds fds = {.fd = {STDIN_FILENO, STDIN_FILENO}, .count = 2};
  for (int i = 0; i < 30; i++) close(dial_and_greet(&fds));
  for (int i = 0; i < 30; i++) { /* with a packet of no bytes, where descriptors are expected */
    size_t sent = 0;
    int socket = dial_and_greet(NULL);
    rdt_net_send_part(rdt_socket_of(socket), (const uint8_t *)"", 0, &fds, &sent);
    close(socket);
  }
  UNTIL(count_fds() <= before + 8);
}

/* Writing to a full pipe would hold up every channel of the device. */
static void test_event(void) {
  int socket = dial_and_greet(NULL), pipes[2];
  rdt_wire wire;
  EXPECT(pipe(pipes) == 0);
  rdt_fds fds = offer(pipes[1]);
  begin_attach(&wire);
  send_message(socket, &wire, &fds);
  receive(socket, &wire, NULL, RDT_MESSAGE_REFUSAL);
  rdt_fds_close(&fds);
  close(pipes[0]);
  close(socket);
}

/* Answers every question with a region that was not asked for. */
static void *answer_wrongly(void *argument) {
  int socket = *(int *)argument;
  rdt_wire wire;
  for (int i = 0; i < 2; i++) {
    void *memory;
    uint64_t offset = 0;
    rdt_fds fds = {.count = 1};
    EXPECT_STATUS(RDT_OK,
                  rdt_net_receive(rdt_socket_of(socket), &wire, NULL, rdt_deadline_after(10000)));
    EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &fds.fd[0], &memory));
    rdt_wire_begin(&wire, RDT_MESSAGE_REGION, wire.sequence);
    rdt_wire_put_u64(&wire, 6);
    rdt_wire_put_u64(&wire, 8192);
    rdt_wire_put_u32(&wire, RDT_ACCESS_READ);
    rdt_wire_put_u32(&wire, RDT_REGION_ATOMIC);
    rdt_wire_put_bytes(&wire, &offset, sizeof(offset));
    send_message(socket, &wire, &fds);
    rdt_fds_close(&fds);
    munmap(memory, 8192);
  }
  return NULL;
}

/* The hostile end of a channel. */
typedef struct end {
  int socket;
  rdt_fds ours, theirs; /* rings and events */
} end;

/* The device's is returned, and its reference is the caller's. */
static rdt_channel *join(end *hostile) {
  rdt_wire wire;
  atomic_store(&arrived, NULL);
  hostile->socket = dial_and_greet(NULL);
  hostile->ours = offer(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  begin_attach(&wire);
  send_message(hostile->socket, &wire, &hostile->ours);
  receive(hostile->socket, &wire, &hostile->theirs, RDT_MESSAGE_ATTACH);
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  send_message(hostile->socket, &wire, NULL);
  UNTIL(atomic_load(&arrived));
  return atomic_load(&arrived);
}

static void hang_up(end *hostile) {
  rdt_fds_close(&hostile->ours);
  rdt_fds_close(&hostile->theirs);
  close(hostile->socket);
}

static void test_answers(void) {
  rdt_remote_region *region;
  pthread_t thread;
  end hostile;
  rdt_channel *channel = join(&hostile);
  EXPECT(pthread_create(&thread, NULL, answer_wrongly, &hostile.socket) == 0);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_remote_region_open(channel, 5, 10000, &region));
  EXPECT(strstr(rdt_last_error(), "another region"));
  EXPECT_STATUS(RDT_ERR_PROTOCOL,
                rdt_remote_region_alloc(channel, 4096, RDT_ACCESS_READ, 10000, &region));
  EXPECT(strstr(rdt_last_error(), "another region"));
  pthread_join(thread, NULL);
  rdt_channel_unref(channel);
  hang_up(&hostile);
  EXPECT(becomes(&releases, 1));
}

/* Answers with a region that begins between words, and says that it takes atomic operations; and then with one of
 * which it says nonsense. */
static void *answer_with_words(void *argument) {
  int socket = *(int *)argument;
  rdt_wire wire;
  for (uint64_t key = 5; key <= 6; key++) {
    void *memory;
    const uint64_t offset = 4;
    rdt_fds fds = {.count = 1};
    EXPECT_STATUS(RDT_OK,
                  rdt_net_receive(rdt_socket_of(socket), &wire, NULL, rdt_deadline_after(10000)));
    EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &fds.fd[0], &memory));
    rdt_wire_begin(&wire, RDT_MESSAGE_REGION, wire.sequence);
    rdt_wire_put_u64(&wire, key);
    rdt_wire_put_u64(&wire, 4096);
    rdt_wire_put_u32(&wire, RDT_ACCESS_READ | RDT_ACCESS_WRITE);
    rdt_wire_put_u32(&wire, key == 5 ? RDT_REGION_ATOMIC : RDT_REGION_DEVICE + 1);
    rdt_wire_put_bytes(&wire, &offset, sizeof(offset));
    send_message(socket, &wire, &fds);
    rdt_fds_close(&fds);
    munmap(memory, 8192);
  }
  return NULL;
}

/* A word over two cache lines would hold up the whole machine, and end this process on other processors. */
static void test_unaligned_words(void) {
  rdt_remote_region *region, *none;
  pthread_t thread;
  uint64_t old;
  end hostile;
  rdt_channel *channel = join(&hostile);
  atomic_store(&releases, 0);
  EXPECT(pthread_create(&thread, NULL, answer_with_words, &hostile.socket) == 0);
  EXPECT_STATUS(RDT_OK, rdt_remote_region_open(channel, 5, 10000, &region));
  const rdt_op op = {.kind = RDT_OP_FETCH_ADD, .local = &old, .size = 8, .remote = region};
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_channel_post(channel, &op, 1, NULL, NULL));
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_remote_region_open(channel, 6, 10000, &none));
  EXPECT(strstr(rdt_last_error(), "impossible region"));
  pthread_join(thread, NULL);
  rdt_remote_region_unref(region);
  rdt_channel_unref(channel);
  hang_up(&hostile);
  EXPECT(becomes(&releases, 1));
}

static void ask_for_lent(int socket) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_FIND, 1);
  rdt_wire_put_u64(&wire, 0);
  rdt_wire_put_text(&wire, "lent");
  send_message(socket, &wire, NULL);
}

static void send_garbage(int socket) { EXPECT(send(socket, "garbage", 7, MSG_NOSIGNAL) == 7); }

/* It looks like the end of the stream. */
static void send_nothing(int socket) { EXPECT(send(socket, "", 0, MSG_NOSIGNAL) == 0); }

static void send_what_is_not_expected(int socket) {
  rdt_wire wire;
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  send_message(socket, &wire, NULL);
}

/* More than the socket holds. */
static void ask_and_not_read(int socket) {
  for (int i = 0; i < 20000 && atomic_load(&downs) == 0; i++) ask_for_lent(socket);
}

/* A peer that breaks the rules loses its channel. But it lives, and may go on reading what was lent to it. */
static void test_lent_memory(void (*offend)(int socket)) {
  rdt_region *region;
  rdt_wire wire;
  rdt_fds lent = {.count = 0};
  end hostile, other;
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(device, 4096, RDT_ACCESS_READ, "lent", &region));
  rdt_channel_unref(join(&hostile));
  ask_for_lent(hostile.socket);
  receive(hostile.socket, &wire, &lent, RDT_MESSAGE_REGION);
  atomic_store(&downs, 0);
  atomic_store(&releases, 0);
  offend(hostile.socket);
  EXPECT(becomes(&downs, 1));
  /* What the progress thread did with the one, it has done when it sees the next. */
  rdt_channel_unref(join(&other));
  EXPECT(atomic_load(&releases) == 0);
  hang_up(&other);
  EXPECT(becomes(&releases, 1));
  hang_up(&hostile);
  EXPECT(becomes(&releases, 2));
  rdt_fds_close(&lent);
  rdt_region_close(region);
}

int main(void) {
  const rdt_device_options options = {.struct_size = sizeof(options),
                                      .name = "device",
                                      .on_connect = on_connect,
                                      .on_down = on_down,
                                      .on_released = on_released};
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "shm"));
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &device));
  test_descriptors();
  test_event();
  test_answers();
  test_unaligned_words();
  test_lent_memory(send_garbage);
  test_lent_memory(send_nothing);
  test_lent_memory(send_what_is_not_expected);
  test_lent_memory(ask_and_not_read);
  rdt_device_close(device);
  return 0;
}
