/* SPDX-License-Identifier: Apache-2.0
 *
 * Channels that stay silent between two waits of a thread. The peer's device thread stays in its handler, so that
 * nothing completes before the test lets it go.
 */
#include <pthread.h>
#include <string.h>

#include "base/config.h"
#include "core/objects.h"
#include "core/post/channel.h"
#include "core/post/polling.h"
#include "core/post/waiting.h"
#include "unit.h"

static rdt_device *here, *there;
static _Atomic(rdt_channel *) accepted;
static rdt_channel *channel;
static rdt_region *region;
static rdt_remote_region *remote;
static atomic_int inside, done;
static atomic_bool held;

static void on_connect(void *context, rdt_channel *with) {
  (void)context;
  rdt_channel_ref(with);
  atomic_store(&accepted, with);
}

static void on_notify(void *context, rdt_channel *with, uint64_t immediate, const void *data,
                      size_t size) {
  (void)context, (void)with, (void)immediate, (void)data, (void)size;
  atomic_fetch_add(&inside, 1);
  while (atomic_load(&held)) usleep(500);
}

static void count_done(void *context, rdt_status status) {
  (void)context;
  EXPECT(status == RDT_OK);
  atomic_fetch_add(&done, 1);
}

static void open_both(void) {
  rdt_device_options options = {.struct_size = sizeof(options),
                                .name = "there",
                                .on_connect = on_connect,
                                .on_notify = on_notify};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &there));
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(there, 64, RDT_ACCESS_WRITE, "words", &region));
  options = (rdt_device_options){.struct_size = sizeof(options), .name = "here"};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &here));
  EXPECT_STATUS(RDT_OK, rdt_device_connect(here, rdt_device_address(there), -1, &channel));
  UNTIL(atomic_load(&accepted));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(channel, "words", -1, &remote));
}

static void close_both(void) {
  rdt_remote_region_unref(remote);
  rdt_channel_unref(channel);
  rdt_channel_unref(atomic_load(&accepted));
  rdt_device_close(here);
  rdt_region_close(region);
  rdt_device_close(there);
}

static rdt_transfer *write_word(void) {
  rdt_transfer *transfer = NULL;
  const rdt_op op = {.kind = RDT_OP_WRITE, .local = "8 bytes", .size = 8, .remote = remote};
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_submit(channel, &op, 1, &transfer));
  return transfer;
}

/* From here on the peer acknowledges nothing. Returns a write that is under way. */
static rdt_transfer *hold_peer(void) {
  const int before = atomic_load(&inside);
  const rdt_op notification = {.kind = RDT_OP_NOTIFY};
  atomic_store(&held, true);
  EXPECT(rdt_channel_post(channel, &notification, 1, NULL, NULL) >= RDT_OK);
  UNTIL(atomic_load(&inside) > before);
  return write_word();
}

static void let_go(rdt_transfer *transfer) {
  atomic_store(&held, false);
  EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfer, -1));
  rdt_transfer_free(transfer);
}

static void wait_once(void) {
  rdt_channel_waiter_begin(channel);
  rdt_channel_waiter_poll(channel);
  rdt_channel_waiter_end(channel);
}

/* A tick may come at once on a busy machine. */
static void wait_until_it_is_silent(void) { UNTIL((wait_once(), rdt_channel_is_silent(channel))); }

static void test_silent_behind_a_wait(void) {
  rdt_transfer *transfer = hold_peer();
  wait_until_it_is_silent();
  UNTIL(atomic_load(&channel->waiting.mode) !=
        RDT_SILENT); /* since that thread did not come back */
  wait_until_it_is_silent();
  let_go(transfer);
}

/* The thread sleeps, so its completion must be an event. */
static void *wait_asleep(void *transfer) {
  EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfer, -1));
  atomic_fetch_add(&done, 1);
  return NULL;
}

static void test_ends_for_a_sleeper(void) {
  pthread_t sleeper;
  rdt_transfer *transfer = hold_peer();
  atomic_store(&done, 0);
  wait_until_it_is_silent();
  EXPECT(pthread_create(&sleeper, NULL, wait_asleep, transfer) == 0);
  UNTIL(atomic_load(&channel->waiting.sleepers) > 0);
  EXPECT(!rdt_channel_is_silent(channel));
  wait_once();
  EXPECT(atomic_load(&channel->waiting.mode) != RDT_SILENT);
  atomic_store(&held, false);
  EXPECT(becomes(&done, 1));
  pthread_join(sleeper, NULL);
  rdt_transfer_free(transfer);
}

static void test_ends_for_a_callback(void) {
  const rdt_op op = {.kind = RDT_OP_WRITE, .local = "8 bytes", .size = 8, .remote = remote};
  rdt_transfer *transfer = hold_peer();
  atomic_store(&done, 0);
  wait_until_it_is_silent();
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_post(channel, &op, 1, count_done, NULL));
  EXPECT(!rdt_channel_is_silent(channel));
  wait_once();
  EXPECT(atomic_load(&channel->waiting.mode) != RDT_SILENT);
  atomic_store(&held, false);
  EXPECT(becomes(&done, 1));
  let_go(transfer);
}

static void *read_notification(void *into) {
  EXPECT_STATUS(RDT_OK, rdt_device_next_notification(here, -1, into));
  atomic_fetch_add(&done, 1);
  return NULL;
}

static void test_ends_for_a_reader(void) {
  pthread_t reader;
  rdt_notification notification = {0};
  rdt_transfer *transfer = hold_peer();
  atomic_store(&done, 0);
  wait_until_it_is_silent();
  EXPECT(pthread_create(&reader, NULL, read_notification, &notification) == 0);
  UNTIL(atomic_load(&here->readers) > 0);
  EXPECT(!rdt_channel_is_silent(channel));
  const rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = 7};
  EXPECT(rdt_channel_post(atomic_load(&accepted), &op, 1, NULL, NULL) >= RDT_OK);
  EXPECT(becomes(&done, 1) && notification.immediate == 7);
  pthread_join(reader, NULL);
  EXPECT(atomic_load(&here->readers) == 0);
  rdt_notification_clear(&notification);
  let_go(transfer);
}

static uint64_t heard(void) {
  pthread_mutex_lock(&channel->poll_lock);
  const uint64_t operations = channel->transport->silence(channel->endpoint);
  pthread_mutex_unlock(&channel->poll_lock);
  return operations;
}

/* Lets the peer notify, and polls until that came. */
static void hear_peer(void) {
  const uint64_t before = heard();
  const rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = 8};
  EXPECT(rdt_channel_post(atomic_load(&accepted), &op, 1, NULL, NULL) >= RDT_OK);
  rdt_channel_waiter_begin(channel);
  UNTIL((rdt_channel_waiter_poll(channel), heard() > before));
  rdt_channel_waiter_end(channel);
}

/* The thread that waits has received the notification, and may not take it. */
static void test_a_peer_that_posts_ends_it(void) {
  rdt_notification notification = {0};
  rdt_transfer *transfer = hold_peer();
  wait_until_it_is_silent();
  hear_peer();
  EXPECT(atomic_load(&channel->waiting.mode) != RDT_SILENT);
  EXPECT_STATUS(RDT_OK, rdt_device_next_notification(here, -1, &notification));
  EXPECT(notification.immediate == 8);
  rdt_notification_clear(&notification);
  let_go(transfer);
}

/* With nothing under way, the peer is the only one who can have something to say. */
static void test_silent_after_all_if_the_peer_is_still(void) {
  rdt_notification notification;
  UNTIL((hear_peer(), wait_once(), atomic_load(&channel->waiting.mode) != RDT_SILENT));
  wait_until_it_is_silent(); /* as it posts no more */
  while (rdt_device_next_notification(here, 0, &notification) == RDT_OK)
    rdt_notification_clear(&notification);
}

/* A thread that polls all the time lets go for moments only. The device's thread does not wait for them. */
static void test_device_goes_on_beside_a_poller(void) {
  rdt_remote_region *again;
  rdt_channel_waiter_begin(channel);
  pthread_mutex_lock(&channel->poll_lock);
  EXPECT_STATUS(RDT_OK,
                rdt_remote_region_find(channel, "words", -1, &again)); /* it takes the answer */
  EXPECT(!rdt_channel_hold(channel));
  pthread_mutex_unlock(&channel->poll_lock);
  rdt_channel_waiter_end(channel);
  EXPECT(rdt_channel_hold(channel));
  pthread_mutex_unlock(&channel->poll_lock);
  rdt_remote_region_unref(again);
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_config_set("TRANSPORTS", "tcp"));
  open_both();
  test_device_goes_on_beside_a_poller();
  test_silent_behind_a_wait();
  test_ends_for_a_sleeper();
  test_ends_for_a_callback();
  test_ends_for_a_reader();
  test_a_peer_that_posts_ends_it();
  test_silent_after_all_if_the_peer_is_still();
  close_both();
  return 0;
}
