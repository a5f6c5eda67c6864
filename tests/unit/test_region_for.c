/* SPDX-License-Identifier: Apache-2.0
 *
 * Regions for one peer: it reaches them, nobody else finds them, and they end with the region or the channel.
 */
#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "unit.h"

enum { ACCESS = RDT_ACCESS_READ | RDT_ACCESS_WRITE, SIZE = 4 << 20, MANY = 150 };

static _Atomic(rdt_channel *) arrived;
static atomic_int refused;

static void on_connect(void *context, rdt_channel *channel) {
  (void)context;
  rdt_channel_ref(channel);
  atomic_store(&arrived, channel);
}

/* Waiting is not for handlers. */
static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  rdt_region *region;
  (void)context, (void)immediate, (void)data, (void)size;
  if (rdt_region_alloc_for(channel, 4096, ACCESS, &region) == RDT_ERR_INVALID)
    atomic_store(&refused, 1);
}

static rdt_device *owner, *peer;

/* The peer's end, and in `own` the owner's. */
static rdt_channel *join(rdt_device *from, rdt_channel **own) {
  rdt_channel *channel;
  EXPECT_STATUS(RDT_OK, rdt_device_connect(from, rdt_device_address(owner), -1, &channel));
  UNTIL(atomic_load(&arrived));
  *own = atomic_exchange(&arrived, NULL);
  return channel;
}

static rdt_status transfer(rdt_channel *channel, rdt_remote_region *remote, uint32_t kind,
                           void *bytes, uint64_t size) {
  rdt_op op = {.kind = kind, .local = bytes, .size = size, .remote = remote};
  rdt_transfer *waitable = NULL;
  rdt_status status = rdt_channel_submit(channel, &op, 1, &waitable);
  if (status == RDT_IN_PROGRESS) status = rdt_transfer_wait(waitable, 20000);
  rdt_transfer_free(waitable);
  return status;
}

static rdt_remote_region *reach(rdt_channel *channel, const rdt_region_info *info) {
  rdt_remote_region *remote;
  EXPECT_STATUS(RDT_OK, rdt_remote_region_open(channel, info->key, -1, &remote));
  return remote;
}

static rdt_region *reserve(rdt_channel *own, uint64_t size, rdt_region_info *info) {
  rdt_region *region;
  EXPECT_STATUS(RDT_OK, rdt_region_alloc_for(own, size, ACCESS, &region));
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(region, info));
  return region;
}

static void expect_hidden(rdt_channel *channel, const rdt_region_info *info) {
  rdt_remote_region *remote;
  EXPECT_STATUS(RDT_ERR_NO_REGION, rdt_remote_region_open(channel, info->key, -1, &remote));
}

/* An operation that is over may hold its region for a moment longer. */
static bool is_hidden(rdt_channel *channel, const rdt_region_info *info) {
  rdt_remote_region *remote = NULL;
  rdt_status status = rdt_remote_region_open(channel, info->key, -1, &remote);
  if (status == RDT_OK) rdt_remote_region_unref(remote);
  return status == RDT_ERR_NO_REGION;
}

/* Large enough to go over all queue pairs of a connection. */
static void test_only_its_peer(void) {
  static uint8_t bytes[SIZE], read[SIZE];
  rdt_channel *own, *others_own, *channel = join(peer, &own), *other = join(peer, &others_own);
  rdt_region_info info;
  rdt_region *region = reserve(own, SIZE, &info);
  for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 7 >> 3);
  rdt_remote_region *remote = reach(channel, &info);
  expect_hidden(other, &info);
  EXPECT_STATUS(RDT_OK, transfer(channel, remote, RDT_OP_WRITE, bytes, SIZE));
  EXPECT(memcmp(info.address, bytes, SIZE) == 0);
  EXPECT_STATUS(RDT_OK, transfer(channel, remote, RDT_OP_READ, read, SIZE));
  EXPECT(memcmp(read, bytes, SIZE) == 0);
  rdt_remote_region_unref(remote);
  rdt_region_close(region);
  UNTIL(is_hidden(channel, &info));
  rdt_channel *all[] = {channel, own, other, others_own};
  for (int i = 0; i < 4; i++) rdt_channel_unref(all[i]);
}

/* Channels of earlier tests open and close some meanwhile, so the number is waited for. */
static int open_files(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  EXPECT(folder);
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

/* As for a peer, that what it allocates is its own. */
static void test_what_a_peer_allocates(void) {
  rdt_channel *own, *others_own, *channel = join(peer, &own), *other = join(peer, &others_own);
  rdt_remote_region *remote, *more[MANY];
  rdt_region_info info;
  char word[8] = "tenant";
  EXPECT_STATUS(RDT_OK, rdt_remote_region_alloc(channel, 4096, ACCESS, -1, &remote));
  int files = open_files();
  for (int i = 0; i < MANY; i++)
    EXPECT_STATUS(RDT_OK, rdt_remote_region_alloc(channel, 4096, ACCESS, -1, &more[i]));
  UNTIL(open_files() <= files);
  for (int i = 0; i < MANY; i++) rdt_remote_region_unref(more[i]);
  EXPECT_STATUS(RDT_OK, rdt_remote_region_get_info(remote, &info));
  expect_hidden(other, &info);
  EXPECT_STATUS(RDT_OK, transfer(channel, remote, RDT_OP_WRITE, word, sizeof(word)));
  rdt_remote_region_unref(remote);
  rdt_channel *all[] = {channel, own, other, others_own};
  for (int i = 0; i < 4; i++) rdt_channel_unref(all[i]);
}

static void test_many(void) {
  rdt_channel *own, *channel = join(peer, &own);
  static rdt_region *regions[MANY];
  static rdt_remote_region *remotes[MANY];
  static rdt_region_info infos[MANY];
  for (uint64_t i = 0; i < MANY; i++) {
    regions[i] = reserve(own, 4096, &infos[i]);
    remotes[i] = reach(channel, &infos[i]);
  }
  for (uint64_t i = 0; i < MANY; i++)
    EXPECT_STATUS(RDT_OK, transfer(channel, remotes[i], RDT_OP_WRITE, &i, sizeof(i)));
  for (uint64_t i = 0; i < MANY; i++) {
    EXPECT(memcmp(infos[i].address, &i, sizeof(i)) == 0);
    rdt_remote_region_unref(remotes[i]);
    rdt_region_close(regions[i]);
  }
  rdt_channel_unref(channel);
  rdt_channel_unref(own);
}

/* Programs that trace ever new graphs have thousands of them. */
static void test_few_files(void) {
  rdt_channel *own, *channel = join(peer, &own);
  enum { REGIONS = 1000, EACH = 20000 };
  static rdt_region *regions[REGIONS];
  static rdt_region_info infos[REGIONS];
  int before = open_files();
  for (int i = 0; i < REGIONS; i++) {
    EXPECT_STATUS(RDT_OK, rdt_region_alloc_for(own, EACH, RDT_ACCESS_WRITE, &regions[i]));
    EXPECT_STATUS(RDT_OK, rdt_region_get_info(regions[i], &infos[i]));
    memset(infos[i].address, i, EACH);
  }
  UNTIL(open_files() <= before + 1);
  uint8_t byte = 77;
  rdt_remote_region *remote = reach(channel, &infos[500]);
  EXPECT_STATUS(RDT_OK, transfer(channel, remote, RDT_OP_WRITE, &byte, 1));
  for (int i = 0; i < REGIONS; i++) {
    const uint8_t *bytes = infos[i].address;
    EXPECT(bytes[0] == (i == 500 ? byte : (uint8_t)i));
    EXPECT(bytes[1] == (uint8_t)i && bytes[EACH - 1] == (uint8_t)i);
  }
  rdt_remote_region_unref(remote);
  /* What is given back is used again, and is zero-filled as new memory is. */
  for (int i = 0; i < REGIONS; i += 2) rdt_region_close(regions[i]);
  int used = open_files();
  for (int i = 0; i < REGIONS; i += 2) {
    EXPECT_STATUS(RDT_OK, rdt_region_alloc_for(own, EACH, RDT_ACCESS_WRITE, &regions[i]));
    EXPECT_STATUS(RDT_OK, rdt_region_get_info(regions[i], &infos[i]));
    const uint8_t *bytes = infos[i].address;
    EXPECT(bytes[0] == 0 && memcmp(bytes, bytes + 1, EACH - 1) == 0);
  }
  UNTIL(open_files() <= used);
  for (int i = 0; i < REGIONS; i++) rdt_region_close(regions[i]);
  UNTIL(open_files() <= before);
  rdt_channel_unref(channel);
  rdt_channel_unref(own);
}

/* With two files left, as long as nobody closes another one meanwhile. */
static bool is_refused(rdt_channel *own) {
  rdt_region *region;
  struct rlimit all, few;
  EXPECT(getrlimit(RLIMIT_NOFILE, &all) == 0);
  few = all;
  int lowest = dup(0);
  EXPECT(lowest >= 0 && close(lowest) == 0);
  few.rlim_cur = (rlim_t)lowest + 2;
  EXPECT(setrlimit(RLIMIT_NOFILE, &few) == 0);
  rdt_status status = rdt_region_alloc_for(own, SIZE, RDT_ACCESS_WRITE, &region);
  EXPECT(setrlimit(RLIMIT_NOFILE, &all) == 0);
  if (status == RDT_OK) rdt_region_close(region);
  return status == RDT_ERR_LIMIT && strstr(rdt_last_error(), "ulimit -n");
}

/* The last files are the program's. */
static void test_leaves_files(void) {
  rdt_channel *own, *channel = join(peer, &own);
  rdt_region *region;
  UNTIL(is_refused(own));
  EXPECT_STATUS(RDT_OK, rdt_region_alloc_for(own, SIZE, RDT_ACCESS_WRITE, &region));
  rdt_region_close(region);
  rdt_channel_unref(channel);
  rdt_channel_unref(own);
}

/* Where nothing is mapped, the peer's access ends at once; its write fails and takes the channel with it. */
static void test_closed_under_its_peer(void) {
  rdt_channel *own, *channel = join(peer, &own);
  rdt_channel_info about;
  rdt_region_info info;
  char word[8] = "late";
  rdt_region *region = reserve(own, 4096, &info);
  rdt_remote_region *remote = reach(channel, &info);
  EXPECT_STATUS(RDT_OK, transfer(channel, remote, RDT_OP_WRITE, word, sizeof(word)));
  rdt_region_close(region);
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(channel, &about));
  if (!(about.capabilities & RDT_CAP_MAP))
    EXPECT_STATUS(RDT_ERR_ACCESS, transfer(channel, remote, RDT_OP_WRITE, word, sizeof(word)));
  rdt_remote_region_unref(remote);
  rdt_channel_unref(channel);
  rdt_channel_unref(own);
}

static bool is_up(rdt_channel *channel) {
  rdt_channel_info about = {.up = 1};
  rdt_channel_get_info(channel, &about);
  return about.up;
}

/* A region may outlive its channel; a new connection of the same peer gets a new one. */
static void test_reconnect(void) {
  for (int turn = 0; turn < 5; turn++) {
    rdt_channel *own, *channel = join(peer, &own), *again, *owners_again;
    rdt_region_info info, fresh;
    rdt_region *late, *region = reserve(own, 4096, &info);
    char word[8] = "again";
    rdt_remote_region_unref(reach(channel, &info));
    rdt_channel_close(channel);
    UNTIL(!is_up(own));
    EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, rdt_region_alloc_for(own, 4096, ACCESS, &late));
    rdt_channel_unref(channel);
    rdt_channel_unref(own);
    again = join(peer, &owners_again);
    expect_hidden(again, &info);
    rdt_region *next = reserve(owners_again, 4096, &fresh);
    rdt_remote_region *remote = reach(again, &fresh);
    EXPECT_STATUS(RDT_OK, transfer(again, remote, RDT_OP_WRITE, word, sizeof(word)));
    EXPECT(memcmp(fresh.address, word, sizeof(word)) == 0);
    rdt_remote_region_unref(remote);
    rdt_region_close(region);
    rdt_region_close(next);
    rdt_channel_unref(again);
    rdt_channel_unref(owners_again);
  }
}

/* The same address, and another device behind it: nothing of the old one is good there. */
static void test_restarted_owner(const rdt_device_options *options) {
  rdt_channel *own, *channel = join(peer, &own), *again, *owners_again;
  rdt_channel_info before, after;
  rdt_region_info info;
  rdt_region *region;
  char word[8] = "old";
  rdt_device_options same = *options;
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(owner, 4096, ACCESS, "kept", &region));
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(region, &info));
  rdt_remote_region *remote = reach(channel, &info);
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(channel, &before));
  same.port = (uint16_t)atoi(strrchr(rdt_device_address(owner), ':') + 1);
  rdt_device_close(owner);
  EXPECT_STATUS(RDT_OK, rdt_device_open(&same, &owner));
  again = join(peer, &owners_again);
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(again, &after));
  EXPECT(after.generation != before.generation);
  expect_hidden(again, &info);
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST,
                transfer(channel, remote, RDT_OP_WRITE, word, sizeof(word)));
  EXPECT_STATUS(RDT_ERR_INVALID, transfer(again, remote, RDT_OP_WRITE, word, sizeof(word)));
  rdt_remote_region_unref(remote);
  rdt_channel *all[] = {channel, own, again, owners_again};
  for (int i = 0; i < 4; i++) rdt_channel_unref(all[i]);
}

static void test_not_from_a_handler(void) {
  rdt_channel *own, *channel = join(peer, &own);
  rdt_op op = {.kind = RDT_OP_NOTIFY};
  EXPECT(rdt_channel_post(channel, &op, 1, NULL, NULL) >= 0);
  UNTIL(atomic_load(&refused));
  rdt_channel_unref(channel);
  rdt_channel_unref(own);
}

/* Each transport says which kinds of memory it takes; another kind is no region. */
static void test_kinds_of_memory(void) {
  static char bytes[64];
  rdt_transport_info info;
  rdt_region *region;
  for (size_t i = 0; rdt_device_get_transport(owner, i, &info) == RDT_OK; i++)
    EXPECT((info.memory_kinds & ~RDT_MEMORY_CUDA) == RDT_MEMORY_HOST);
  EXPECT_STATUS(RDT_ERR_UNSUPPORTED,
                rdt_region_register_kind(owner, RDT_MEMORY_OTHER, bytes, sizeof(bytes),
                                         RDT_ACCESS_READ, NULL, &region));
  EXPECT(strstr(rdt_last_error(), "takes no memory of kind other"));
  EXPECT_STATUS(RDT_OK, rdt_region_register_kind(owner, RDT_MEMORY_HOST, bytes, sizeof(bytes),
                                                 RDT_ACCESS_READ, NULL, &region));
  rdt_region_close(region);
}

int main(void) {
  rdt_device_options options = {
      .struct_size = sizeof(options), .on_connect = on_connect, .on_notify = on_notify};
  rdt_region *region;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_region_alloc_for(NULL, 4096, ACCESS, &region));
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &owner));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &peer));
  test_kinds_of_memory();
  test_only_its_peer();
  test_what_a_peer_allocates();
  test_many();
  test_few_files();
  test_leaves_files();
  test_closed_under_its_peer();
  test_reconnect();
  test_restarted_owner(&options);
  test_not_from_a_handler();
  rdt_device_close(peer);
  rdt_device_close(owner);
  return 0;
}
