/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of CUDA devices, over tests/support/cuda_driver.c: copies that come late, regions that peers use, and a driver
 * that fails. Within a process no memory is opened by CUDA IPC: tests/transport/test_cuda_regions.py does.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda.h"
#include "cuda_standin.h"

enum { BOTH = RDT_ACCESS_READ | RDT_ACCESS_WRITE, LATE_US = 3000 };

static void test_copies_are_complete(void) {
  uint8_t *wanted = numbers(LARGE, 1), *zeros = calloc(1, LARGE);
  delay(LATE_US);
  char *first = on_device(0, LARGE), *second = on_device(1, LARGE);
  EXPECT(zeros && holds(first, zeros, LARGE));
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(first, wanted, LARGE));
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(second, first, LARGE)); /* from device to device */
  EXPECT(holds(second, wanted, LARGE) && holds(second + 100, wanted + 100, 1000));
  delay(0);
  EXPECT_STATUS(RDT_OK, rdt_cuda_copy(first, wanted, 0));
  rdt_cuda_free(first);
  rdt_cuda_free(second);
  EXPECT(allocated() == 0);
  free(zeros);
  free(wanted);
}

static void test_what_is_refused(void) {
  char here[16] = "";
  void *memory;
  uint64_t stream;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_alloc(2, 64, &memory));
  EXPECT(strstr(rdt_last_error(), "there is no CUDA device 2"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_alloc(0, 0, &memory));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_stream(-1, &stream));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_copy(here, here + 8, 8));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_wait(here, 0));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_check(here, sizeof(here)));
  memory = on_device(0, 64);
  EXPECT_STATUS(RDT_OK, rdt_cuda_check(memory, 64));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_check(memory, 65));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_cuda_check(memory, UINT64_MAX));
  EXPECT_STATUS(RDT_OK, rdt_cuda_wait(memory, 0));
  fail("cuMemAlloc_v2", 2);
  void *more;
  EXPECT_STATUS(RDT_ERR_NO_MEMORY, rdt_cuda_alloc(0, 64, &more));
  EXPECT(strstr(rdt_last_error(), "out of memory (CUDA error 2, CUDA_ERROR_OUT_OF_MEMORY)"));
  for (int i = 0; i < 2; i++) {
    fail(i ? "cuEventQuery" : "cuMemcpyAsync", 400);
    EXPECT_STATUS(RDT_ERR_SYSTEM, rdt_cuda_copy(memory, here, 8));
    EXPECT(strstr(rdt_last_error(), "invalid resource handle"));
  }
  fail("cuMemsetD8Async", 400);
  EXPECT_STATUS(RDT_ERR_SYSTEM, rdt_cuda_alloc(0, 64, &more));
  fail("", 0);
  rdt_cuda_free(memory);
  EXPECT(allocated() == 0);
}

static rdt_device *owner, *peer;

typedef struct link {
  rdt_channel *channel;
  rdt_remote_region *remote;
} link_to;

static link_to reach(const char *name, const char *transport) {
  link_to made;
  EXPECT_STATUS(RDT_OK, rdt_device_connect_to(peer, rdt_device_address(owner), NULL, transport, -1,
                                              &made.channel));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(made.channel, name, -1, &made.remote));
  return made;
}

static void leave(link_to left) {
  rdt_remote_region_unref(left.remote);
  rdt_channel_close(left.channel);
  rdt_channel_unref(left.channel);
}

static rdt_status move(link_to over, uint32_t kind, void *bytes, uint64_t size, uint64_t offset) {
  rdt_op op = {
      .kind = kind, .local = bytes, .size = size, .remote = over.remote, .remote_offset = offset};
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_channel_submit(over.channel, &op, 1, &transfer);
  if (status == RDT_IN_PROGRESS) status = rdt_transfer_wait(transfer, 60000);
  rdt_transfer_free(transfer);
  return status;
}

static rdt_region *share(void *memory, uint64_t size, const char *name) {
  rdt_region *region;
  EXPECT_STATUS(
      RDT_OK, rdt_region_register_kind(owner, RDT_MEMORY_CUDA, memory, size, BOTH, name, &region));
  return region;
}

/* Short and long operations, at any offset, one after the other and at the same time. */
static void test_peers_use_regions(const char *transport) {
  uint8_t *wanted = numbers(LARGE, 2), *seen = malloc(LARGE);
  char *memory = on_device(1, LARGE);
  rdt_region *region = share(memory, LARGE, "used");
  link_to over = reach("used", transport);
  static const uint64_t sizes[] = {1, 8, 1000, 4096, 4097, 70000, 600000, LARGE - 7};
  delay(100);
  EXPECT(seen);
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    uint64_t size = sizes[i];
    EXPECT_STATUS(RDT_OK, move(over, RDT_OP_WRITE, wanted, size, 7));
    EXPECT(holds(memory + 7, wanted, size));
    memset(seen, 0, size);
    EXPECT_STATUS(RDT_OK, move(over, RDT_OP_READ, seen, size, 7));
    EXPECT(memcmp(seen, wanted, size) == 0);
    for (uint64_t at = 0; at < size; at++) wanted[at]++;
  }
  delay(0);
  uint64_t old;
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, move(over, RDT_OP_FETCH_ADD, &old, sizeof(old), 0));
  EXPECT(strstr(rdt_last_error(), "the memory of a GPU"));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_remote_region_map(over.remote, 0, 8, (void **)&seen));
  leave(over);
  rdt_region_close(region);
  rdt_cuda_free(memory);
  free(seen);
  free(wanted);
}

/* What goes over the network goes to a device in pieces of 512 KiB. */
static void test_long_operations_are_few_copies(void) {
  uint8_t *wanted = numbers(LARGE, 5), *seen = malloc(LARGE);
  char *memory = on_device(0, LARGE);
  rdt_region *region = share(memory, LARGE, "long");
  link_to over = reach("long", "tcp");
  EXPECT(seen);
  uint64_t before = copies();
  EXPECT_STATUS(RDT_OK, move(over, RDT_OP_WRITE, wanted, LARGE, 0));
  EXPECT_STATUS(RDT_OK, move(over, RDT_OP_READ, seen, LARGE, 0));
  EXPECT(copies() - before == 2 * LARGE / (512 << 10));
  EXPECT(memcmp(seen, wanted, LARGE) == 0);
  leave(over);
  rdt_region_close(region);
  rdt_cuda_free(memory);
  free(seen);
  free(wanted);
}

/* The peer learns of it; nothing half done counts as done. */
static void test_driver_fails_under_peers(void) {
  static const char *const functions[] = {"cuMemcpyAsync", "cuEventQuery"};
  uint8_t *bytes = numbers(LARGE, 3);
  char *memory = on_device(0, LARGE);
  rdt_region *region = share(memory, LARGE, "failing");
  for (int i = 0; i < 8; i++) {
    link_to over = reach("failing", "tcp");
    fail(functions[i % 2], 700);
    EXPECT_STATUS(RDT_ERR_ACCESS,
                  move(over, i & 2 ? RDT_OP_READ : RDT_OP_WRITE, bytes, i & 4 ? LARGE : 100, 0));
    EXPECT(strstr(rdt_last_error(), "its GPU failed"));
    fail("", 0);
    leave(over);
  }
  link_to over = reach("failing", "tcp"); /* the driver works again, and so does the region */
  EXPECT_STATUS(RDT_OK, move(over, RDT_OP_WRITE, bytes, LARGE, 0));
  EXPECT(holds(memory, bytes, LARGE));
  leave(over);
  rdt_region_close(region);
  rdt_cuda_free(memory);
  free(bytes);
}

typedef struct mover {
  link_to over;
  uint8_t *bytes;
  rdt_status status;
} mover;

static atomic_int began;

static void *keep_moving(void *argument) {
  mover *self = argument;
  for (int i = 0; self->status == RDT_OK; i++) {
    self->status = move(self->over, i % 2 ? RDT_OP_READ : RDT_OP_WRITE, self->bytes, LARGE, 0);
    atomic_fetch_add(&began, 1);
  }
  return NULL;
}

/* No copy touches the memory after the region was closed: the driver would report an illegal address from then on. */
static void test_closed_while_copies_run(const char *transport, rdt_status status) {
  pthread_t thread;
  char *memory = on_device(0, LARGE);
  rdt_region *region = share(memory, LARGE, "closed");
  mover self = {.over = reach("closed", transport), .bytes = numbers(LARGE, 4), .status = RDT_OK};
  atomic_store(&began, 0);
  delay(200);
  EXPECT(pthread_create(&thread, NULL, keep_moving, &self) == 0);
  UNTIL(atomic_load(&began) > 2);
  rdt_region_close(region);
  rdt_cuda_free(memory);
  delay(0);
  pthread_join(thread, NULL);
  EXPECT_STATUS(status, self.status);
  leave(self.over);
  memory = on_device(0, 64); /* and what others had open is freed now */
  EXPECT(allocated() == 64);
  rdt_cuda_free(memory);
  free(self.bytes);
}

static void test_registration(void) {
  static char bytes[64];
  rdt_region *region;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_region_register_kind(owner, RDT_MEMORY_CUDA, bytes,
                                                          sizeof(bytes), BOTH, NULL, &region));
  EXPECT(strstr(rdt_last_error(), "are not memory of a CUDA device"));
  /* Memory that the driver does not share is for tcp. */
  void *memory = on_device(0, 64);
  fail("cuIpcGetMemHandle", 801);
  region = share(memory, 64, "here");
  fail("", 0);
  rdt_channel *channel;
  rdt_remote_region *remote;
  EXPECT_STATUS(RDT_OK,
                rdt_device_connect_to(peer, rdt_device_address(owner), NULL, "shm", -1, &channel));
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED, rdt_remote_region_find(channel, "here", -1, &remote));
  EXPECT(strstr(rdt_last_error(), "connect to this device over tcp"));
  rdt_channel_close(channel);
  rdt_channel_unref(channel);
  leave(reach("here", "tcp"));
  rdt_region_close(region);
  rdt_cuda_free(memory);
}

static void test_child_of_fork(void *memory) {
  pid_t child = fork();
  if (child == 0) {
    char bytes[8];
    bool refused = rdt_cuda_copy(bytes, memory, sizeof(bytes)) == RDT_ERR_FORKED;
    rdt_cuda_free(memory);
    _exit(refused ? 0 : 1);
  }
  int status = 1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  load_driver();
  EXPECT_STATUS(
      RDT_OK, rdt_config_set("TRANSPORTS", "shm,tcp")); /* not only the one that the suite tests */
  char text[256];
  EXPECT_STATUS(RDT_OK, rdt_cuda_describe(text, sizeof(text)));
  EXPECT(strcmp(text,
                "CUDA 12.4, cuda:0 is stand-in 0, cuda:1 is stand-in 1; host memory is pinned "
                "for copies; GPUs copy to each other directly") == 0);
  static const char *const lacking[][2] = {
      {"cuMemHostRegister_v2", "host memory cannot be pinned"},
      {"cuDeviceCanAccessPeer", "between some GPUs, copies go through the host"}};
  for (int i = 0; i < 2; i++) {
    fail(lacking[i][0], 801);
    EXPECT_STATUS(RDT_OK, rdt_cuda_describe(text, sizeof(text)));
    EXPECT(strstr(text, lacking[i][1]));
  }
  fail("", 0);
  test_copies_are_complete();
  test_what_is_refused();
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &owner));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &peer));
  test_registration();
  test_peers_use_regions("tcp");
  test_peers_use_regions("shm");
  test_long_operations_are_few_copies();
  test_driver_fails_under_peers();
  test_closed_while_copies_run("tcp", RDT_ERR_ACCESS);
  test_closed_while_copies_run("shm", RDT_ERR_NO_REGION);
  rdt_device_close(peer);
  rdt_device_close(owner);
  void *memory = on_device(0, 64);
  test_child_of_fork(memory);
  rdt_cuda_free(memory);
  return 0;
}
