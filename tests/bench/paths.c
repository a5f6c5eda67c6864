/* SPDX-License-Identifier: Apache-2.0
 *
 * The hot paths, for callgrind: `paths PATH COUNT` runs one of them COUNT times between two devices of this
 * process. Counted is what the posting thread executes inside run_path; of `poll`, 64 notifications at once, what
 * the other device's thread does inside shm_poll. `batch` is 64 writes at once, `submit` a waitable write.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rdmatensor.h"

static void check(rdt_status status, const char *what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s\n", what, rdt_last_error());
  exit(1);
}

static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  (void)context, (void)channel, (void)immediate, (void)data, (void)size;
}

static rdt_device *open_device(const char *name) {
  rdt_device *device;
  rdt_device_options options = {
      .struct_size = sizeof(options), .name = name, .on_notify = on_notify};
  check(rdt_device_open(&options, &device), "open");
  return device;
}

__attribute__((noinline)) void run_path(rdt_channel *channel, const rdt_op *ops, size_t batch,
                                        int waitable) {
  rdt_transfer *transfer = NULL;
  if (!waitable) {
    check(rdt_channel_post(channel, ops, batch, NULL, NULL), "post");
    return;
  }
  check(rdt_channel_submit(channel, ops, batch, &transfer), "submit");
  if (transfer) check(rdt_transfer_wait(transfer, -1), "wait");
  rdt_transfer_free(transfer);
}

/* Until the device has taken all notifications, for a minute at most. */
static void await_all(rdt_device *device, uint32_t kind, uint64_t sent) {
  rdt_stats stats = {0};
  if (kind != RDT_OP_NOTIFY && kind != RDT_OP_WRITE_NOTIFY) return;
  for (int i = 0; i < 60000 && stats.notifies_received < sent; i++) {
    usleep(1000);
    check(rdt_device_stats(device, &stats), "stats");
  }
  if (stats.notifies_received != sent) exit(1);
}

static uint32_t kind_of(const char *path) {
  if (strcmp(path, "notify") == 0 || strcmp(path, "poll") == 0) return RDT_OP_NOTIFY;
  if (strcmp(path, "write_notify") == 0) return RDT_OP_WRITE_NOTIFY;
  return strcmp(path, "read") == 0 ? RDT_OP_READ : RDT_OP_WRITE;
}

int main(int count, char **words) {
  enum { BATCH = 64 };
  rdt_channel *channel;
  rdt_remote_region *remote;
  rdt_region *region;
  rdt_op ops[BATCH];
  char data[64] = {0};
  if (count != 3) return 2;
  rdt_device *here = open_device("here"), *there = open_device("there");
  check(rdt_region_alloc(there, 4096, RDT_ACCESS_READ | RDT_ACCESS_WRITE, "paths", &region),
        "allocate");
  check(rdt_device_connect(here, rdt_device_address(there), -1, &channel), "connect");
  check(rdt_remote_region_find(channel, "paths", -1, &remote), "find");
  uint32_t kind = kind_of(words[1]);
  for (int i = 0; i < BATCH; i++)
    ops[i] = (rdt_op){
        .kind = kind, .local = data, .size = 8, .remote = kind == RDT_OP_NOTIFY ? NULL : remote};
  bool many = strcmp(words[1], "batch") == 0 || strcmp(words[1], "poll") == 0;
  size_t batch = many ? BATCH : 1;
  for (int i = 0; i < atoi(words[2]); i++)
    run_path(channel, ops, batch, strcmp(words[1], "submit") == 0);
  await_all(there, kind, (uint64_t)atoi(words[2]) * batch);
  rdt_remote_region_unref(remote);
  rdt_channel_unref(channel);
  rdt_device_close(here);
  rdt_device_close(there);
  return 0;
}
