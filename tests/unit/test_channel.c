/* SPDX-License-Identifier: Apache-2.0
 *
 * Life cycle and order of channels, with two devices in one process so that sanitizers see both ends.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "core/objects.h"
#include "core/post/channel.h"
#include "unit.h"

typedef struct {
  rdt_device *device;
  atomic_int connected, notified, down, released;
  atomic_uint_fast64_t last, sum;
  _Atomic(rdt_channel *) channel;
  atomic_int order_broken;
  atomic_bool held; /* its progress thread stays in on_notify */
} end;

static void on_connect(void *context, rdt_channel *channel) {
  end *e = context;
  rdt_channel_ref(channel);
  atomic_store(&e->channel, channel);
  atomic_fetch_add(&e->connected, 1);
}

static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  end *e = context;
  (void)channel;
  uint64_t value = 0;
  if (size == sizeof(value)) memcpy(&value, data, size);
  atomic_fetch_add(&e->sum, value);
  if (immediate != atomic_exchange(&e->last, immediate) + 1) atomic_store(&e->order_broken, 1);
  atomic_fetch_add(&e->notified, 1);
  while (atomic_load(&e->held)) usleep(1000);
}

static void on_down(void *context, rdt_channel *channel, rdt_status why) {
  (void)channel;
  EXPECT(why < 0);
  EXPECT(strstr(rdt_last_error(), "is lost: "));
  atomic_fetch_add(&((end *)context)->down, 1);
}

static void on_released(void *context, rdt_channel *channel) {
  end *e = context;
  (void)channel;
  EXPECT(atomic_load(&e->down) == 1);
  atomic_fetch_add(&e->released, 1);
}

static void open_end(end *e, const char *name) {
  memset(e, 0, sizeof(*e));
  rdt_device_options options = {.struct_size = sizeof(options),
                                .name = name,
                                .context = e,
                                .on_connect = on_connect,
                                .on_notify = on_notify,
                                .on_down = on_down,
                                .on_released = on_released};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &e->device));
}

static rdt_channel *join(end *from, end *to) {
  rdt_channel *channel;
  EXPECT_STATUS(RDT_OK,
                rdt_device_connect(from->device, rdt_device_address(to->device), -1, &channel));
  EXPECT(becomes(&to->connected, 1));
  return channel;
}

static void count_done(void *context, rdt_status status) {
  EXPECT(status == RDT_OK);
  atomic_fetch_add((atomic_int *)context, 1);
}

/* Far more than the ring holds: each completes once, and arrives once, in order. */
static void test_order_without_credit(void) {
  enum { COUNT = 20000 };
  end a, b;
  rdt_config_set("RING_BYTES", "4096");
  open_end(&a, "a");
  open_end(&b, "b");
  rdt_channel *channel = join(&a, &b);
  atomic_int done = 0;
  int at_once = 0;
  static uint64_t values[COUNT];
  for (int i = 0; i < COUNT; i++) {
    values[i] = (uint64_t)i;
    rdt_op op = {.kind = RDT_OP_NOTIFY,
                 .local = &values[i],
                 .size = sizeof(values[i]),
                 .immediate = (uint64_t)i + 1};
    rdt_status status = rdt_channel_post(channel, &op, 1, count_done, &done);
    EXPECT(status >= 0);
    at_once += status == RDT_OK;
  }
  EXPECT(becomes(&b.notified, COUNT));
  EXPECT(becomes(&done, COUNT - at_once));
  EXPECT(!atomic_load(&b.order_broken));
  EXPECT(atomic_load(&b.sum) == (uint64_t)COUNT * (COUNT - 1) / 2);
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(a.device);
  rdt_device_close(b.device);
  rdt_config_set("RING_BYTES", "4M");
}

/* The peer's memory stays leased until the last handle goes, whatever happened to the channel. */
static void test_lease(void) {
  end a, b;
  rdt_region *region;
  rdt_remote_region *remote;
  void *bytes;
  open_end(&a, "a");
  open_end(&b, "b");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(b.device, 4096, RDT_ACCESS_READ, "lent", &region));
  rdt_channel *channel = join(&a, &b);
  rdt_channel_info about;
  EXPECT_STATUS(RDT_OK, rdt_channel_get_info(channel, &about));
  if (!(about.capabilities & RDT_CAP_MAP)) { /* nothing is ever leased */
    rdt_channel_unref(channel);
    rdt_channel_unref(b.channel);
    rdt_device_close(a.device);
    rdt_device_close(b.device);
    return;
  }
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(channel, "lent", -1, &remote));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_map(remote, 100, 8, &bytes));
  rdt_op op = {.kind = RDT_OP_WRITE, .local = "x", .size = 1, .remote = remote};
  EXPECT_STATUS(RDT_ERR_ACCESS, rdt_channel_post(channel, &op, 1, NULL, NULL));
  rdt_channel_close(channel);
  EXPECT(becomes(&a.down, 1) && becomes(&b.down, 1));
  usleep(50000); /* time in which it would be released if nobody held it */
  EXPECT(atomic_load(&b.released) == 0);
  rdt_region_info info;
  EXPECT_STATUS(RDT_OK, rdt_region_get_info(region, &info));
  memcpy((char *)info.address + 100, "in place", 8);
  EXPECT(memcmp(bytes, "in place", 8) == 0);
  rdt_remote_region_unref(remote);
  EXPECT(becomes(&b.released, 1) && becomes(&a.released, 1));
  op.kind = RDT_OP_NOTIFY;
  op.remote = NULL;
  EXPECT_STATUS(RDT_ERR_CANCELLED, rdt_channel_post(channel, &op, 1, NULL, NULL));
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(a.device);
  rdt_device_close(b.device);
}

static int open_files(void) {
  int count = 0;
  DIR *files = opendir("/proc/self/fd");
  EXPECT(files);
  while (readdir(files)) count++;
  closedir(files);
  return count;
}

/* A child of fork gives up the last handle: nothing is freed, for over verbs the queue pairs are its parent's,
 * and locks may be held by threads that only the parent has. */
static void test_forked_child_frees_nothing(void) {
  end a, b;
  int status = -1;
  open_end(&a, "a");
  open_end(&b, "b");
  rdt_channel *channel = join(&a, &b);
  rdt_channel_close(channel);
  UNTIL(atomic_load(&channel->refs) == 1);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int before = open_files();
    rdt_channel_unref(channel);
    _exit(open_files() == before ? 0 : 1);
  }
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(a.device);
  rdt_device_close(b.device);
}

/* It gives up regions while threads that only its parent has hold the locks. */
static void test_forked_child_waits_for_no_lock(void) {
  end a, b;
  int status = -1;
  rdt_region *own, *theirs;
  rdt_remote_region *remote;
  open_end(&a, "a");
  open_end(&b, "b");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(a.device, 64, RDT_ACCESS_READ, NULL, &own));
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(b.device, 64, RDT_ACCESS_READ, "theirs", &theirs));
  rdt_channel *channel = join(&a, &b);
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(channel, "theirs", -1, &remote));
  pthread_mutex_lock(&a.device->lock);
  pthread_mutex_lock(&channel->lock);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    rdt_remote_region_unref(remote);
    rdt_region_close(own);
    _exit(0);
  }
  pthread_mutex_unlock(&channel->lock);
  pthread_mutex_unlock(&a.device->lock);
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  rdt_remote_region_unref(remote);
  rdt_region_close(own);
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(a.device);
  rdt_device_close(b.device);
}

typedef struct {
  rdt_channel *channel;
  rdt_remote_region *remote;
  int id;
} writer;

#define WRITERS 4
#define WRITES 2000

static void *write_own_slot(void *argument) {
  writer *w = argument;
  for (uint64_t i = 1; i <= WRITES; i++) {
    uint64_t got = 0, offset = (uint64_t)w->id * 64;
    rdt_op ops[] = {{.kind = RDT_OP_WRITE,
                     .local = &i,
                     .size = 8,
                     .remote = w->remote,
                     .remote_offset = offset},
                    {.kind = RDT_OP_READ,
                     .local = &got,
                     .size = 8,
                     .remote = w->remote,
                     .remote_offset = offset},
                    {.kind = RDT_OP_NOTIFY, .local = &i, .size = 8}};
    rdt_transfer *transfer;
    EXPECT(rdt_channel_submit(w->channel, ops, 3, &transfer) >= 0);
    if (transfer) EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfer, 20000));
    rdt_transfer_free(transfer);
    EXPECT(got == i);
  }
  return NULL;
}

static void test_concurrent_posts(void) {
  end a, b;
  rdt_region *region;
  rdt_remote_region *remote;
  pthread_t threads[WRITERS];
  writer writers[WRITERS];
  open_end(&a, "a");
  open_end(&b, "b");
  EXPECT_STATUS(RDT_OK,
                rdt_region_alloc(b.device, 4096, RDT_ACCESS_READ | RDT_ACCESS_WRITE, "w", &region));
  rdt_channel *channel = join(&a, &b);
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(channel, "w", -1, &remote));
  /* Nothing to move needs no buffer. */
  rdt_op empty[] = {{.kind = RDT_OP_WRITE, .remote = remote},
                    {.kind = RDT_OP_READ, .remote = remote, .remote_offset = 4096}};
  EXPECT_STATUS(RDT_OK, rdt_channel_post(channel, empty, 2, NULL, NULL));
  for (int i = 0; i < WRITERS; i++) {
    writers[i] = (writer){channel, remote, i};
    EXPECT(pthread_create(&threads[i], NULL, write_own_slot, &writers[i]) == 0);
  }
  for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
  EXPECT(becomes(&b.notified, WRITERS * WRITES));
  EXPECT(atomic_load(&b.sum) == (uint64_t)WRITERS * WRITES * (WRITES + 1) / 2);
  rdt_remote_region_unref(remote);
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(b.device);
  EXPECT(becomes(&a.down, 1) && becomes(&a.released, 1));
  rdt_device_close(a.device);
}

static uint64_t pending(const rdt_device *device) {
  rdt_stats stats;
  EXPECT_STATUS(RDT_OK, rdt_device_stats(device, &stats));
  return stats.pending;
}

/* A reader that is slow, but not stuck, is waited for longer than the deadline. */
static void test_slow_reader(void) {
  enum { COUNT = 1500 };
  end a;
  rdt_device *slow;
  rdt_channel *channel;
  rdt_transfer *last = NULL;
  rdt_config_set("RING_BYTES", "4096");
  rdt_config_set("NOTIFY_QUEUE_BYTES", "4096");
  open_end(&a, "a");
  EXPECT_STATUS(RDT_OK, rdt_device_open(NULL, &slow));
  EXPECT_STATUS(RDT_OK, rdt_device_connect(a.device, rdt_device_address(slow), -1, &channel));
  rdt_config_set("DEADLINE_MS", "600000"); /* nobody reads while this posts, which may take long */
  for (uint64_t i = 0; i < COUNT; i++) {
    rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = i};
    rdt_transfer_free(last);
    EXPECT(rdt_channel_submit(channel, &op, 1, &last) >= 0);
  }
  EXPECT(pending(a.device) > 0);
  rdt_config_set("DEADLINE_MS", "2000");
  for (uint64_t i = 0; i < COUNT; i++) {
    rdt_notification got;
    EXPECT_STATUS(RDT_OK, rdt_device_next_notification(slow, 60000, &got));
    EXPECT(got.immediate == i);
    rdt_notification_clear(&got);
    if (i % 6 == 0) usleep(20000); /* in all, more than twice the deadline */
  }
  EXPECT_STATUS(RDT_OK, last ? rdt_transfer_wait(last, 60000) : RDT_OK);
  EXPECT(pending(a.device) == 0);
  rdt_transfer_free(last);
  rdt_channel_unref(channel);
  rdt_device_close(slow);
  rdt_device_close(a.device);
  rdt_config_set("DEADLINE_MS", "10000");
  rdt_config_set("RING_BYTES", "4M");
  rdt_config_set("NOTIFY_QUEUE_BYTES", "64M");
}

/* on_down is the last that a device's user hears of a channel, although the peer goes on for a while. */
static void test_nothing_comes_after_the_end(void) {
  end a, b;
  const rdt_op notify = {.kind = RDT_OP_NOTIFY, .immediate = 1};
  open_end(&a, "a");
  open_end(&b, "b");
  rdt_channel *channel = join(&a, &b);
  atomic_store(&b.held, true);
  EXPECT(rdt_channel_post(channel, &notify, 1, NULL, NULL) >= RDT_OK);
  EXPECT(becomes(&b.notified, 1));
  rdt_fail(RDT_ERR_CONNECTION_LOST, "it broke");
  rdt_channel_break(channel);
  EXPECT(becomes(&a.down, 1));
  EXPECT(rdt_channel_post(b.channel, &notify, 1, NULL, NULL) >= RDT_OK);
  atomic_store(&b.held, false);
  EXPECT(becomes(&b.down, 1) && becomes(&a.released, 1));
  EXPECT(atomic_load(&a.notified) == 0);
  rdt_channel_unref(channel);
  rdt_channel_unref(b.channel);
  rdt_device_close(a.device);
  rdt_device_close(b.device);
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

static rdt_transport counting;
static int (*real_poll)(rdt_endpoint *endpoint, int budget, const rdt_events *events);
static _Thread_local unsigned fruitful,
    since; /* polls of this thread; those after the last fruitful one */

static int counting_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  int taken = real_poll(endpoint, budget, events);
  fruitful += taken > 0;
  since = taken > 0 ? 0 : since + 1;
  return taken;
}

/* on_connect of the end that waits. */
static void count_polls(void *context, rdt_channel *channel) {
  counting = *channel->transport;
  real_poll = counting.poll;
  counting.poll = counting_poll;
  channel->transport = &counting;
  on_connect(context, channel);
}

/* A thread that waits for a transfer looks as soon as something came. Where a poll is a system call, more polls would
 * take longer than the transfer. */
static void test_waiting_ends_with_the_poll(void) {
  enum { TIMES = 200 };
  end here = {0}, there;
  rdt_region *region;
  rdt_remote_region *remote;
  unsigned polled = 0, at_once = 0;
  char transports[256];
  rdt_config_text(RDT_CONFIG_TRANSPORTS, transports, sizeof(transports));
  rdt_config_set("TRANSPORTS", "tcp");
  rdt_config_set("SPIN_US", "1000000");
  rdt_device_options options = {
      .struct_size = sizeof(options), .name = "here", .context = &here, .on_connect = count_polls};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &here.device));
  open_end(&there, "there");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(there.device, 8, RDT_ACCESS_WRITE, "word", &region));
  rdt_channel *back = join(&there, &here), *channel = here.channel;
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(channel, "word", -1, &remote));
  rdt_op op = {.kind = RDT_OP_WRITE, .local = "8 bytes", .size = 8, .remote = remote};
  /* The device's thread may be the one that finds a completion, the more often the less this one runs. */
  for (unsigned i = 0; i < 500 * TIMES && polled < TIMES; i++) {
    rdt_transfer *transfer;
    EXPECT(rdt_channel_submit(channel, &op, 1, &transfer) >= RDT_OK);
    fruitful = 0;
    if (transfer) EXPECT_STATUS(RDT_OK, rdt_transfer_wait(transfer, -1));
    polled += fruitful > 0;
    at_once += fruitful > 0 && since == 0;
    rdt_transfer_free(transfer);
  }
  EXPECT(polled == TIMES && at_once > TIMES / 2);
  rdt_remote_region_unref(remote);
  rdt_channel_unref(channel);
  rdt_channel_unref(back);
  rdt_device_close(here.device);
  rdt_region_close(region);
  rdt_device_close(there.device);
  rdt_config_set("SPIN_US", "50");
  rdt_config_set("TRANSPORTS", transports);
}

static uint64_t latest; /* of the channels that note_order has met */

static void note_order(void *context, rdt_channel *channel) {
  end *e = context;
  if (channel->number < latest) atomic_store(&e->order_broken, 1);
  latest = channel->number;
  atomic_fetch_add(&e->connected, 1);
}

static int arrivals_at(rdt_device *device) {
  int count = 0;
  pthread_mutex_lock(&device->lock);
  for (const rdt_channel *each = device->arrivals; each; each = each->next) count++;
  pthread_mutex_unlock(&device->lock);
  return count;
}

/* Some peers connect while the progress thread is busy. Clients take a later channel for one that replaces an earlier
 * one. */
static void test_channels_are_met_in_the_order_in_which_they_come(void) {
  enum { COUNT = 4 };
  end here = {.held = true}, there;
  rdt_channel *channels[COUNT];
  rdt_device_options options = {.struct_size = sizeof(options),
                                .name = "here",
                                .context = &here,
                                .on_connect = note_order,
                                .on_notify = on_notify};
  EXPECT_STATUS(RDT_OK, rdt_device_open(&options, &here.device));
  open_end(&there, "there");
  channels[0] = join(&there, &here);
  rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = 1};
  EXPECT(rdt_channel_post(channels[0], &op, 1, NULL, NULL) >= 0);
  EXPECT(becomes(&here.notified, 1));
  for (int i = 1; i < COUNT; i++) {
    EXPECT_STATUS(RDT_OK, rdt_device_connect(there.device, rdt_device_address(here.device), -1,
                                             &channels[i]));
    UNTIL(arrivals_at(here.device) == i); /* the end that connects does not wait for that */
  }
  atomic_store(&here.held, false);
  EXPECT(becomes(&here.connected, COUNT));
  EXPECT(!atomic_load(&here.order_broken));
  for (int i = 0; i < COUNT; i++) rdt_channel_unref(channels[i]);
  rdt_device_close(there.device);
  rdt_device_close(here.device);
}

/* ---- a message that is cut ------------------------------------------------------------------------------- */

static atomic_int cut_fd = -1, cut_calls;

/* In the place of the C library's: of one socket, it takes a byte once, and has no memory then. */
ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
  if (socket != atomic_load(&cut_fd))
    return syscall(SYS_sendmsg, socket, (void *)(uintptr_t)message, flags);
  if (atomic_fetch_add(&cut_calls, 1) == 0) {
    EXPECT(message->msg_iovlen == 1 && message->msg_iov->iov_len > 1);
    return syscall(SYS_sendto, socket, message->msg_iov->iov_base, 1, flags, NULL, 0);
  }
  errno = ENOBUFS;
  return -1;
}

/* A peer cannot read what would follow a part of a message, so the connection ends at once. */
static void test_a_cut_message_ends_the_channel(bool answers) {
  end here, there;
  rdt_region *region;
  rdt_remote_region *remote;
  rdt_config_set("TRANSPORTS", "tcp");
  /* Without a secret, messages would travel over a unix socket. */
  char secret[] = "/tmp/rdmatensor-test-XXXXXX";
  int file = mkstemp(secret);
  EXPECT(write(file, "0123456789abcdef", 16) == 16 && close(file) == 0);
  /* The test's sendmsg has to be the one that sends. */
  char encrypt[16], secret_before[256];
  EXPECT_STATUS(RDT_OK, rdt_config_get("ENCRYPT", encrypt, sizeof(encrypt)));
  EXPECT_STATUS(RDT_OK, rdt_config_get("SECRET_FILE", secret_before, sizeof(secret_before)));
  rdt_config_set("ENCRYPT", "off");
  rdt_config_set("SECRET_FILE", secret);
  open_end(&here, "here");
  open_end(&there, "there");
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(there.device, 8, RDT_ACCESS_READ, "word", &region));
  rdt_channel *channel = join(&here, &there);
  UNTIL(atomic_load(&there.connected) == 1);
  rdt_channel *cutting = answers ? atomic_load(&there.channel) : channel;
  atomic_store(&cut_calls, 0);
  atomic_store(&cut_fd, cutting->control.fd);
  EXPECT(rdt_remote_region_find(channel, "word", 1000 * PATIENCE_S, &remote) < 0);
  atomic_store(&cut_fd, -1);
  EXPECT(atomic_load(&cut_calls) >= 2);
  UNTIL(atomic_load(&cutting->down));
  EXPECT(strstr(cutting->cause, "was cut"));
  UNTIL(atomic_load(&there.down) == 1 && atomic_load(&here.down) == 1);
  rdt_channel_unref(channel);
  rdt_channel_unref(atomic_load(&there.channel));
  rdt_channel_unref(atomic_load(&here.channel));
  rdt_device_close(here.device);
  rdt_region_close(region);
  rdt_device_close(there.device);
  unlink(secret);
  rdt_config_set("SECRET_FILE", secret_before);
  rdt_config_set("ENCRYPT", encrypt);
  rdt_config_set("TRANSPORTS", "verbs,shm,tcp");
}

static void test_bad_options(void) {
  rdt_device *device;
  rdt_device_options options = {.struct_size = sizeof(options), .name = "two\nlines"};
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_open(&options, &device));
  options = (rdt_device_options){.struct_size = sizeof(options) + 8};
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_open(&options, &device));
  options = (rdt_device_options){.struct_size = sizeof(options), .bind_address = "192.0.2.1"};
  /* Often, because a progress thread that is told to stop before it first sleeps must not sleep. */
  for (int i = 0; i < 300; i++) EXPECT_STATUS(RDT_ERR_SYSTEM, rdt_device_open(&options, &device));
}

int main(void) {
  test_bad_options();
  test_waiting_ends_with_the_poll();
  test_a_cut_message_ends_the_channel(false);
  test_a_cut_message_ends_the_channel(true);
  test_order_without_credit();
  test_slow_reader();
  test_channels_are_met_in_the_order_in_which_they_come();
  test_nothing_comes_after_the_end();
  test_lease();
  test_forked_child_frees_nothing();
  test_forked_child_waits_for_no_lock();
  test_concurrent_posts();
  return 0;
}
