/* SPDX-License-Identifier: Apache-2.0
 *
 * Atomic operations: what they do to a word, what is refused, and that no change is lost when many threads and
 * devices change the same word.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/config.h"
#include "unit.h"

enum { BOTH = RDT_ACCESS_READ | RDT_ACCESS_WRITE, SIZE = 4096, PATIENCE_MS = 1000 * PATIENCE_S };

typedef struct {
  rdt_device *device;
  rdt_channel *channel;
  rdt_remote_region *remote;
} peer;

static rdt_device *owner;
static rdt_region *region;
static _Atomic uint64_t *words; /* of the region */
static _Atomic uint64_t notified;

/* Reads what an atomic operation posted before the notification did. */
static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  (void)context, (void)channel, (void)data, (void)size;
  atomic_store(&notified, immediate << 32 | atomic_load(&words[0]));
}

static rdt_device *open_device(const char *name) {
  rdt_device *device;
  rdt_device_options options = {
      .struct_size = sizeof(options), .name = name, .on_notify = on_notify};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &device));
  return device;
}

static void open_owner(void) {
  rdt_region_info info;
  owner = open_device("owner");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(owner, SIZE, BOTH, "words", &region));
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(region, &info));
  words = info.address;
}

static peer join(const char *name) {
  peer made = {.device = open_device(name)};
  EXPECT_STATUS(RDT_OK,
                rdt_device_connect(made.device, rdt_device_address(owner), -1, &made.channel));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(made.channel, "words", -1, &made.remote));
  return made;
}

static void leave(peer *gone) {
  rdt_remote_region_unref(gone->remote);
  rdt_channel_unref(gone->channel);
  rdt_device_close(gone->device);
}

static rdt_status wait_for(rdt_channel *channel, const rdt_op *ops, size_t count) {
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_channel_submit(channel, ops, count, &transfer);
  if (status == RDT_IN_PROGRESS) status = rdt_transfer_wait(transfer, PATIENCE_MS);
  rdt_transfer_free(transfer);
  return status;
}

static rdt_op change(const peer *of, rdt_op_kind kind, uint64_t offset, uint64_t *old) {
  return (rdt_op){
      .kind = kind, .local = old, .size = 8, .remote = of->remote, .remote_offset = offset};
}

static uint64_t fetch_add(const peer *of, uint64_t offset, uint64_t value) {
  uint64_t old;
  rdt_op op = change(of, RDT_OP_FETCH_ADD, offset, &old);
  op.operand = value;
  EXPECT_STATUS(RDT_OK, wait_for(of->channel, &op, 1));
  return old;
}

static uint64_t compare_swap(const peer *of, uint64_t offset, uint64_t expected, uint64_t desired) {
  uint64_t old;
  rdt_op op = change(of, RDT_OP_COMPARE_SWAP, offset, &old);
  op.expected = expected;
  op.operand = desired;
  EXPECT_STATUS(RDT_OK, wait_for(of->channel, &op, 1));
  return old;
}

static bool over(const peer *of, const char *transport) {
  rdt_channel_info info;
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(of->channel, &info));
  EXPECT(info.capabilities & RDT_CAP_ATOMIC);
  return strcmp(info.transport, transport) == 0;
}

static void test_words(void) {
  open_owner();
  peer one = join("one");
  rdt_stats stats;
  const uint64_t big = 0x8123456789abcdefu;
  EXPECT(fetch_add(&one, 8, 5) == 0 && fetch_add(&one, 8, UINT64_MAX) == 5);
  EXPECT(words[1] == 4);
  EXPECT(compare_swap(&one, 8, 5, 77) == 4 && words[1] == 4);
  EXPECT(compare_swap(&one, 8, 4, big) == 4 && words[1] == big);
  EXPECT(fetch_add(&one, 8, big) == big && words[1] == 2 * big);
  EXPECT(fetch_add(&one, SIZE - 8, 1) == 0 && words[SIZE / 8 - 1] == 1);
  EXPECT(words[0] == 0 && words[2] == 0 && words[SIZE / 8 - 2] == 0);
  EXPECT_STATUS(RDT_OK, rdt_device_stats(one.device, &stats));
  EXPECT(stats.atomics == 6 && stats.reads == 0 && stats.writes == 0);
  leave(&one);
  rdt_device_close(owner);
}

/* In a batch they come after the writes before them, and before the notifications after them. */
static void test_order(void) {
  open_owner();
  peer one = join("one");
  for (uint64_t turn = 1; turn <= 200; turn++) {
    uint64_t first = turn * 1000, old = 0, older = 0;
    rdt_op ops[] = {{.kind = RDT_OP_WRITE, .local = &first, .size = 8, .remote = one.remote},
                    change(&one, RDT_OP_FETCH_ADD, 0, &old),
                    change(&one, RDT_OP_COMPARE_SWAP, 0, &older),
                    {.kind = RDT_OP_NOTIFY, .immediate = turn}};
    ops[1].operand = 7;
    ops[2].expected = first + 7;
    ops[2].operand = first + 9;
    EXPECT_STATUS(RDT_OK, wait_for(one.channel, ops, 4));
    EXPECT(old == first && older == first + 7);
    UNTIL(atomic_load(&notified) >> 32 == turn);
    EXPECT(atomic_load(&notified) == (turn << 32 | (first + 9)));
  }
  leave(&one);
  rdt_device_close(owner);
}

/* More than a queue holds, from memory in a region and outside of one. */
static void test_many_in_flight(void) {
  enum { COUNT = 3000 };
  static uint64_t old[COUNT];
  static rdt_op ops[COUNT];
  rdt_region *results;
  open_owner();
  peer one = join("one");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(one.device, COUNT * 8, RDT_ACCESS_NONE, NULL, &results));
  rdt_region_info info;
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(results, &info));
  uint64_t *registered = info.address;
  for (int i = 0; i < COUNT; i++) {
    ops[i] = change(&one, RDT_OP_FETCH_ADD, 0, i % 2 ? &old[i] : &registered[i]);
    ops[i].operand = 3;
  }
  EXPECT_STATUS(RDT_OK, wait_for(one.channel, ops, COUNT));
  for (uint64_t i = 0; i < COUNT; i++) EXPECT((i % 2 ? old[i] : registered[i]) == 3 * i);
  EXPECT(words[0] == 3 * COUNT);
  leave(&one);
  rdt_device_close(owner);
}

static void expect_refusal(const peer *of, rdt_op op, rdt_status status, const char *says) {
  uint64_t one = 1;
  rdt_op ops[] = {{.kind = RDT_OP_WRITE, .local = &one, .size = 8, .remote = of->remote}, op};
  EXPECT_STATUS(status, rdt_channel_post(of->channel, ops, 2, NULL, NULL));
  EXPECT(strstr(rdt_last_error(), says));
  EXPECT(words[0] == 0); /* no byte moved */
}

static void expect_access(const peer *of, const char *name, const char *says) {
  rdt_remote_region *remote;
  uint64_t old;
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(of->channel, name, -1, &remote));
  rdt_op op = change(of, RDT_OP_FETCH_ADD, 0, &old);
  op.remote = remote;
  expect_refusal(of, op, strcmp(name, "unaligned") ? RDT_ERR_ACCESS : RDT_ERR_UNSUPPORTED, says);
  rdt_remote_region_unref(remote);
}

static void test_refusals(void) {
  uint64_t old;
  void *memory;
  rdt_region *readable, *writable, *unaligned;
  open_owner();
  EXPECT_STATUS(RDT_OK, rdt_memory_alloc(SIZE, &memory));
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(owner, 64, RDT_ACCESS_READ, "readable", &readable));
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(owner, 64, RDT_ACCESS_WRITE, "writable", &writable));
  EXPECT_STATUS(RDT_OK,
                rdt_region_register(owner, (char *)memory + 4, 64, BOTH, "unaligned", &unaligned));
  peer one = join("one");
  expect_access(&one, "readable", "write");
  expect_access(&one, "writable", "read");
  expect_access(&one, "unaligned", "have the device allocate it");
  rdt_op op = change(&one, RDT_OP_COMPARE_SWAP, 12, &old);
  expect_refusal(&one, op, RDT_ERR_INVALID, "a multiple of 8, not 12");
  op.remote_offset = SIZE;
  expect_refusal(&one, op, RDT_ERR_RANGE, "outside");
  op.remote_offset = UINT64_MAX - 7;
  expect_refusal(&one, op, RDT_ERR_RANGE, "outside");
  op.remote_offset = 0;
  op.size = 4;
  expect_refusal(&one, op, RDT_ERR_INVALID, "8 bytes, not 4");
  op.size = 0;
  expect_refusal(&one, op, RDT_ERR_INVALID, "8 bytes, not 0");
  op.size = 8;
  op.local = NULL;
  expect_refusal(&one, op, RDT_ERR_INVALID, "no local buffer");
  op.local = &old;
  op.remote = NULL;
  expect_refusal(&one, op, RDT_ERR_INVALID, "does not belong");
  leave(&one);
  rdt_device_close(owner);
  EXPECT_STATUS(RDT_OK, rdt_memory_free(memory));
}

/* What the peer allocated takes them too; elsewhere than on shm, none reach it once it is closed. */
static void test_regions(void) {
  uint64_t old = 0;
  open_owner();
  peer one = join("one");
  rdt_remote_region *words_there = one.remote;
  EXPECT_STATUS(RDT_OK, rdt_remote_region_alloc(one.channel, 64, BOTH, -1, &one.remote));
  EXPECT(fetch_add(&one, 56, 4) == 0 && fetch_add(&one, 56, 0) == 4);
  rdt_remote_region_unref(one.remote);
  one.remote = words_there;
  rdt_region_close(region);
  rdt_op op = change(&one, RDT_OP_FETCH_ADD, 0, &old);
  rdt_status status = wait_for(one.channel, &op, 1);
  EXPECT(status == (over(&one, "shm") ? RDT_OK : RDT_ERR_ACCESS));
  leave(&one);
  rdt_device_close(owner);
}

static void test_lost_peer(void) {
  uint64_t old;
  rdt_channel_info info;
  open_owner();
  peer one = join("one");
  rdt_device_close(owner);
  rdt_op op = change(&one, RDT_OP_FETCH_ADD, 0, &old);
  do EXPECT_STATUS(RDT_OK, rdt_channel_get_info(one.channel, &info));
  while (info.up && usleep(1000) == 0);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, wait_for(one.channel, &op, 1));
  leave(&one);
}

/* ---- many at once --------------------------------------------------------------------------------------- */

#define PEERS 2
#define THREADS 3 /* of each peer */
#define ADDS 500
#define LOCKED 60

/* The owner's processor adds too, where its instructions are atomic with the transport's. */
static void *add_here(void *unused) {
  (void)unused;
  for (int i = 0; i < ADDS; i++) atomic_fetch_add(&words[0], 1);
  return NULL;
}

static void *add(void *argument) {
  uint64_t before = 0;
  for (int i = 0; i < ADDS; i++) {
    uint64_t old = fetch_add(argument, 0, 1);
    EXPECT(i == 0 || old > before);
    before = old;
  }
  return NULL;
}

/* The second word is a lock, under which the third is changed by a read and a write. */
static void *add_locked(void *argument) {
  const peer *of = argument;
  for (int i = 0; i < LOCKED; i++) {
    uint64_t value;
    while (compare_swap(of, 8, 0, 1) != 0) continue;
    rdt_op op = change(of, RDT_OP_READ, 16, &value);
    EXPECT_STATUS(RDT_OK, wait_for(of->channel, &op, 1));
    value++;
    op.kind = RDT_OP_WRITE;
    EXPECT_STATUS(RDT_OK, wait_for(of->channel, &op, 1));
    EXPECT(compare_swap(of, 8, 1, 0) == 1);
  }
  return NULL;
}

static void run_in_threads(void *(*work)(void *), peer *peers, bool also_here) {
  pthread_t threads[PEERS * THREADS], here;
  if (also_here) EXPECT(pthread_create(&here, NULL, add_here, NULL) == 0);
  for (int i = 0; i < PEERS * THREADS; i++)
    EXPECT(pthread_create(&threads[i], NULL, work, &peers[i % PEERS]) == 0);
  for (int i = 0; i < PEERS * THREADS; i++) pthread_join(threads[i], NULL);
  if (also_here) pthread_join(here, NULL);
}

static void test_nothing_is_lost(void) {
  open_owner();
  peer peers[PEERS] = {join("one"), join("two")};
  bool also_here = !over(&peers[0], "verbs");
  run_in_threads(add, peers, also_here);
  EXPECT(words[0] == (uint64_t)(PEERS * THREADS + also_here) * ADDS);
  run_in_threads(add_locked, peers, false);
  EXPECT(words[1] == 0 && words[2] == (uint64_t)PEERS * THREADS * LOCKED);
  for (int i = 0; i < PEERS; i++) leave(&peers[i]);
  rdt_device_close(owner);
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  test_words();
  test_order();
  test_many_in_flight();
  test_refusals();
  test_regions();
  test_lost_peer();
  test_nothing_is_lost();
  return 0;
}
