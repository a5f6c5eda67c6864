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
#include <unistd.h>

#include "core/handshake.h"
#include "core/memory.h"
#include "core/objects.h"
#include "transport/shm/ring.h"
#include "unit.h"

#define CAPACITY 4096u

static rdt_device *device;
static rdt_channel *_Atomic arrived;

static void on_connect(void *context, rdt_channel *channel) {
  (void)context;
  rdt_channel_ref(channel);
  atomic_store(&arrived, channel);
}

static void send_message(int socket, rdt_wire *wire, const rdt_fds *fds) {
  EXPECT_STATUS(RDT_OK, rdt_wire_end(wire));
  EXPECT_STATUS(RDT_OK, rdt_net_send(socket, wire, fds, rdt_deadline_after(10000)));
}

static void receive(int socket, rdt_wire *wire, rdt_fds *fds, rdt_message_type type) {
  EXPECT_STATUS(RDT_OK, rdt_net_receive(socket, wire, fds, rdt_deadline_after(10000)));
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
  while (rdt_net_send(socket, &wire, fds, deadline) != RDT_OK) {
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
  EXPECT_STATUS(RDT_OK, rdt_memory_create(RING_DATA_OFFSET + CAPACITY, &fds.fd[0], &ring));
  munmap(ring, RING_DATA_OFFSET + CAPACITY);
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
    rdt_net_send_part(socket, (const uint8_t *)"", 0, &fds, &sent);
    close(socket);
  }
  rdt_deadline deadline = rdt_deadline_after(20000);
  while (count_fds() > before + 8 && rdt_deadline_left(deadline) > 0) usleep(1000);
  EXPECT(count_fds() <= before + 8);
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
    EXPECT_STATUS(RDT_OK, rdt_net_receive(socket, &wire, NULL, rdt_deadline_after(10000)));
    EXPECT_STATUS(RDT_OK, rdt_memory_create(8192, &fds.fd[0], &memory));
    rdt_wire_begin(&wire, RDT_MESSAGE_REGION, wire.sequence);
    rdt_wire_put_u64(&wire, 6);
    rdt_wire_put_u64(&wire, 8192);
    rdt_wire_put_u32(&wire, RDT_ACCESS_READ);
    rdt_wire_put_bytes(&wire, &offset, sizeof(offset));
    send_message(socket, &wire, &fds);
    rdt_fds_close(&fds);
    munmap(memory, 8192);
  }
  return NULL;
}

static void test_answers(void) {
  int socket = dial_and_greet(NULL), event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  rdt_wire wire;
  rdt_remote_region *region;
  pthread_t thread;
  rdt_fds fds = offer(event), theirs = {.count = 0};
  begin_attach(&wire);
  send_message(socket, &wire, &fds);
  receive(socket, &wire, &theirs, RDT_MESSAGE_ATTACH);
  rdt_wire_begin(&wire, RDT_MESSAGE_READY, 0);
  send_message(socket, &wire, NULL);
  rdt_deadline deadline = rdt_deadline_after(10000);
  while (!atomic_load(&arrived) && rdt_deadline_left(deadline) > 0) usleep(1000);
  rdt_channel *channel = atomic_load(&arrived);
  EXPECT(channel && pthread_create(&thread, NULL, answer_wrongly, &socket) == 0);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_remote_region_open(channel, 5, 10000, &region));
  EXPECT(strstr(rdt_last_error(), "another region"));
  EXPECT_STATUS(RDT_ERR_PROTOCOL,
                rdt_remote_region_alloc(channel, 4096, RDT_ACCESS_READ, 10000, &region));
  EXPECT(strstr(rdt_last_error(), "another region"));
  pthread_join(thread, NULL);
  rdt_channel_unref(channel);
  rdt_fds_close(&fds);
  rdt_fds_close(&theirs);
  close(socket);
}

int main(void) {
  const rdt_device_options options = {
      .struct_size = sizeof(options), .name = "device", .on_connect = on_connect};
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "shm"));
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &device));
  test_descriptors();
  test_event();
  test_answers();
  rdt_device_close(device);
  return 0;
}
