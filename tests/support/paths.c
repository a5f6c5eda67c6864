/* SPDX-License-Identifier: Apache-2.0
 *
 * The hot paths, for callgrind: `paths COUNT PATH...` runs them one after the other, each COUNT times, between two
 * devices of this process, and calls next_path after each. Counted is what the posting thread executes inside
 * run_path; of `poll`, 64 notifications at once, what devices' threads do inside shm_poll or rdt_verbs_poll. `batch` is
 * 64 writes at once, `submit` a waitable write.
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

/* Where counts are written down, and begin anew. */
__attribute__((noinline)) void next_path(void) { __asm__ volatile(""); }

enum { BATCH = 64, PATIENCE_US = 60000000, LOOK_US = 100 };

typedef struct ends {
  rdt_device *there;
  rdt_channel *channel;
  rdt_remote_region *remote;
  uint64_t notified;
} ends;

static bool notifies(uint32_t kind) { return kind == RDT_OP_NOTIFY || kind == RDT_OP_WRITE_NOTIFY; }

static uint64_t received(const ends *e) {
  rdt_stats stats;
  check(rdt_device_stats(e->there, &stats), "stats");
  return stats.notifies_received;
}

static void await_all(const ends *e) {
  for (int left = PATIENCE_US / LOOK_US; left > 0 && received(e) < e->notified; left--)
    usleep(LOOK_US);
  if (received(e) != e->notified) exit(1);
}

static void submit_and_wait(rdt_channel *channel, const rdt_op *ops, size_t count) {
  rdt_transfer *transfer = NULL;
  check(rdt_channel_submit(channel, ops, count, &transfer), "submit");
  if (transfer) check(rdt_transfer_wait(transfer, -1), "wait");
  rdt_transfer_free(transfer);
}

/* After this the queues of both ends are empty, so that no call finds what another left. */
static void settle(ends *e, uint32_t kind, size_t batch) {
  char word[8];
  rdt_op read = {.kind = RDT_OP_READ, .local = word, .size = sizeof(word), .remote = e->remote};
  if (notifies(kind)) {
    e->notified += batch;
    await_all(e);
  }
  if (kind != RDT_OP_NOTIFY) submit_and_wait(e->channel, &read, 1);
}

static uint32_t kind_of(const char *path) {
  if (strcmp(path, "notify") == 0 || strcmp(path, "poll") == 0) return RDT_OP_NOTIFY;
  if (strcmp(path, "write_notify") == 0) return RDT_OP_WRITE_NOTIFY;
  return strcmp(path, "read") == 0 ? RDT_OP_READ : RDT_OP_WRITE;
}

static void run_often(ends *e, const char *path, int times) {
  rdt_op ops[BATCH];
  char data[8] = {0};
  uint32_t kind = kind_of(path);
  for (int i = 0; i < BATCH; i++)
    ops[i] = (rdt_op){.kind = kind,
                      .local = data,
                      .size = sizeof(data),
                      .remote = kind == RDT_OP_NOTIFY ? NULL : e->remote};
  size_t batch = strcmp(path, "batch") == 0 || strcmp(path, "poll") == 0 ? BATCH : 1;
  submit_and_wait(e->channel, ops, batch); /* the first is another: it binds symbols, allocates */
  settle(e, kind, batch);
  for (int i = 0; i < times; i++) {
    run_path(e->channel, ops, batch, strcmp(path, "submit") == 0);
    settle(e, kind, batch);
  }
}

int main(int count, char **words) {
  ends e = {0};
  rdt_region *region;
  if (count < 3) return 2;
  rdt_device *here = open_device("here");
  e.there = open_device("there");
  check(rdt_region_alloc(e.there, 4096, RDT_ACCESS_READ | RDT_ACCESS_WRITE, "paths", &region),
        "allocate");
  check(rdt_device_connect(here, rdt_device_address(e.there), -1, &e.channel), "connect");
  check(rdt_remote_region_find(e.channel, "paths", -1, &e.remote), "find");
  for (int i = 2; i < count; i++) {
    run_often(&e, words[i], atoi(words[1]));
    next_path();
  }
  rdt_remote_region_unref(e.remote);
  rdt_channel_unref(e.channel);
  rdt_device_close(here);
  rdt_device_close(e.there);
  return 0;
}
