/* SPDX-License-Identifier: Apache-2.0
 *
 * Event queues: the tokens of transfers and of notifications, each as often as it should come.
 */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "unit.h"

enum { SIZE = 1000, MANY = 2000, ROOM = 64, DEVICE = 7 };

static rdt_device *ours, *theirs;
static rdt_channel *channel;

static bool readable(const rdt_event_queue *queue, int ms) {
  struct pollfd look = {.fd = rdt_event_queue_fd(queue), .events = POLLIN};
  return poll(&look, 1, ms) == 1;
}

static rdt_event_queue *open_queue(void) {
  rdt_event_queue *queue;
  EXPECT_STATUS(RDT_OK, rdt_event_queue_open(&queue));
  EXPECT(!readable(queue, 0));
  return queue;
}

/* Waits for one token, and takes it. */
static uint64_t next(rdt_event_queue *queue) {
  uint64_t token = 0;
  EXPECT(readable(queue, PATIENCE_S * 1000));
  EXPECT(rdt_event_queue_take(queue, &token, 1) == 1);
  return token;
}

static void notify(rdt_transfer **transfer) {
  static char bytes[SIZE];
  rdt_op op = {.kind = RDT_OP_NOTIFY, .local = bytes, .size = SIZE};
  EXPECT(rdt_channel_submit(channel, &op, 1, transfer) >= 0);
}

static void receive(int timeout_ms) {
  rdt_notification note;
  EXPECT_STATUS(RDT_OK, rdt_device_next_notification(theirs, timeout_ms, &note));
  rdt_notification_clear(&note);
}

/* Nobody receives, so sooner or later transfers wait for room. Returns how many were posted. */
static int fill_up(rdt_transfer **waiting, int count) {
  int posted = 0;
  for (int found = 0; found < count; posted++) {
    rdt_transfer *transfer = NULL;
    notify(&transfer);
    if (transfer && rdt_transfer_wait(transfer, 50) == RDT_ERR_DEADLINE)
      waiting[found++] = transfer;
    else
      rdt_transfer_free(transfer);
    if (found == 1) /* those behind it wait too */
      for (; found < count; found++, posted++) notify(&waiting[found]);
  }
  return posted;
}

static void test_transfers(void) {
  static rdt_transfer *waiting[MANY];
  static bool seen[MANY];
  uint64_t tokens[ROOM];
  rdt_event_queue *queue = open_queue(), *closed = open_queue();
  const int posted = fill_up(waiting, MANY);
  for (uint64_t i = 0; i < MANY; i++) {
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_transfer_watch(waiting[i], queue, i));
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_transfer_watch(waiting[i], closed, i));
    if (i % 2) rdt_transfer_free(waiting[i]); /* its token comes all the same */
  }
  EXPECT(!readable(queue, 0));
  EXPECT(rdt_event_queue_take(queue, tokens, ROOM) == 0);
  rdt_event_queue_close(closed);
  for (int i = 0; i < posted; i++) receive(PATIENCE_S * 1000);
  for (int all = 0; all < MANY;) {
    EXPECT(readable(queue, PATIENCE_S * 1000));
    size_t count = rdt_event_queue_take(queue, tokens, ROOM);
    for (size_t i = 0; i < count; i++, all++) {
      EXPECT(tokens[i] < MANY && !seen[tokens[i]]);
      seen[tokens[i]] = true;
    }
  }
  EXPECT(!readable(queue, 0));
  EXPECT_STATUS(RDT_OK, rdt_transfer_watch(waiting[0], queue, 1)); /* complete */
  EXPECT(!readable(queue, 0));
  for (int i = 0; i < MANY; i += 2) rdt_transfer_free(waiting[i]);
  rdt_event_queue_close(queue);
  rdt_event_queue_close(NULL);
}

static void test_notifications(void) {
  rdt_transfer *transfer = NULL;
  rdt_event_queue *queue = open_queue(), *other = open_queue();
  EXPECT_STATUS(RDT_OK, rdt_device_watch(theirs, queue, DEVICE));
  EXPECT_STATUS(RDT_OK, rdt_device_watch(theirs, other, DEVICE));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_watch(theirs, queue, DEVICE));
  EXPECT(!readable(queue, 0));
  for (int i = 0; i < 2; i++) {
    notify(&transfer);
    rdt_transfer_free(transfer);
    EXPECT(next(queue) == DEVICE && next(other) == DEVICE);
    receive(0);
  }
  notify(&transfer);
  rdt_transfer_free(transfer);
  EXPECT(readable(queue, PATIENCE_S * 1000) && readable(other, PATIENCE_S * 1000));
  rdt_device_unwatch(theirs, queue); /* and nobody has taken the token */
  rdt_device_unwatch(theirs, queue);
  EXPECT(!readable(queue, 0));
  EXPECT_STATUS(RDT_OK, rdt_device_watch(theirs, queue, DEVICE + 1));
  EXPECT(next(queue) == DEVICE + 1); /* the notification is still there */
  receive(0);
  rdt_event_queue_close(other); /* while the device knows it */
  rdt_device_interrupt(theirs);
  EXPECT(next(queue) == DEVICE + 1);
  rdt_device_close(theirs);
  EXPECT(next(queue) == DEVICE + 1);
  EXPECT(!readable(queue, 0));
  rdt_event_queue_close(queue);
}

static void test_arguments(void) {
  rdt_event_queue *queue = open_queue();
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_event_queue_open(NULL));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_watch(NULL, queue, 0));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_watch(ours, NULL, 0));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_transfer_watch(NULL, queue, 0));
  EXPECT(rdt_event_queue_take(queue, NULL, 1) == 0);
  EXPECT(rdt_event_queue_fd(NULL) == -1);
  rdt_device_unwatch(NULL, queue);
  rdt_device_unwatch(ours, queue);
  rdt_event_queue_close(queue);
}

/* What is given back makes room at once, also if the socket took no message for a while. */
static void test_freeing(void) {
  rdt_remote_region *remote[ROOM];
  rdt_stats stats;
  EXPECT_STATUS(RDT_OK, rdt_config_set("REMOTE_REGIONS", "64"));
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < ROOM; i++)
      EXPECT_STATUS(RDT_OK,
                    rdt_remote_region_alloc(channel, 4096, RDT_ACCESS_WRITE, -1, &remote[i]));
    rdt_remote_region *more;
    EXPECT_STATUS(RDT_ERR_LIMIT,
                  rdt_remote_region_alloc(channel, 4096, RDT_ACCESS_WRITE, -1, &more));
    for (int i = 0; i < ROOM; i++) rdt_remote_region_unref(remote[i]);
  }
  do EXPECT_STATUS(RDT_OK, rdt_device_stats(theirs, &stats));
  while (stats.regions > 0);
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "shm"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("RING_BYTES", "65536"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("NOTIFY_QUEUE_BYTES", "4096"));
  EXPECT_STATUS(RDT_OK, rdt_config_set("DEADLINE_MS", "60000"));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &ours));
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &theirs));
  EXPECT_STATUS(RDT_OK, rdt_device_connect(ours, rdt_device_address(theirs), -1, &channel));
  test_arguments();
  test_freeing();
  test_transfers();
  test_notifications();
  rdt_channel_unref(channel);
  rdt_device_close(ours);
  return 0;
}
