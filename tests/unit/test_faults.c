/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kind of fault that the setting FAULTS injects, with both ends in one process: what is posted
 * completes exactly once and in time, and what the fault did not concern goes on.
 */
#include <time.h>

#include "fault_pair.h"
#include "rdmatensor.h"

/* ---- the setting -------------------------------------------------------------------------------------- */

static void test_setting(void) {
  const char *bad[] = {"post",       "post=",        "post=2",         "post=-0.1",  "post=0.1x",
                       "post=#0",    "post=#x",      "seed=x",         "delay=0.1:", "delay=0.1:5",
                       "delay=1:5m", "delay=1:601s", "post=0.1:5ms",   "transport=", "nothing=0.1",
                       "=1",         "post=0.1,,x",  "delay=0.1:5ms:", "post =1",    "rate=",
                       "rate=fast",  "rate=1.5X",    "rate=2kk",       "rate=999",   "latency=5",
                       "latency="};
  char text[256];
  faults("seed=7,post=0.25,delay=1:5ms,credit=#3:20us,hang=0:600s,stall=1:1s,");
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("FAULTS", bad[i]));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("FAULTS", "seed=1,drip=0.1"));
  EXPECT(strstr(rdt_last_error(), "\"drip\"") && strstr(rdt_last_error(), "drop"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("FAULTS", "transport=smh,post=1"));
  EXPECT(strstr(rdt_last_error(), "no transport \"smh\"; choose from shm,verbs,tcp"));
  EXPECT_STATUS(RDT_OK, rdt_config_get("FAULTS", text, sizeof(text)));
  EXPECT(strncmp(text, "seed=7", 6) == 0); /* what was refused is not in force */
  faults("");
}

/* What a client of a device injects itself. */
static void test_occasions(void) {
  faults("call_delay=1:20us,call_break=#2");
  EXPECT(rdt_fault_occasion("call_delay", "shm", "b") == 20);
  EXPECT(rdt_fault_occasion("call_break", "shm", "b") == -1);
  EXPECT(rdt_fault_occasion("call_break", "shm", "b") == 0 && injected("call_break") == 1);
  EXPECT(rdt_fault_occasion("call_duplicate", "shm", "b") == -1);
  EXPECT(rdt_fault_occasion("nothing", "shm", "b") == -1);
  faults("transport=tcp,call_delay=1");
  EXPECT(rdt_fault_occasion("call_delay", "shm", "b") == -1);
  EXPECT(rdt_fault_occasion("call_delay", "tcp", "b") == 5000);
  faults("");
  EXPECT(rdt_fault_occasion("call_delay", "tcp", "b") == -1);
}

/* Who is slow needs more time at both ends: there is no other limit. */
static void test_time_to_connect(void) {
  pair p;
  rdt_channel *channel;
  open_ends(&p);
  faults("hang=1:500ms");
  for (int i = 0; i < 2; i++) {
    rdt_config_set("DEADLINE_MS", i ? "60000" : "200"); /* of the end that answers */
    rdt_status status =
        rdt_device_connect(p.a.device, rdt_device_address(p.b.device), PATIENCE_MS, &channel);
    EXPECT((status == RDT_OK) == (i == 1));
  }
  rdt_channel_unref(channel);
  rdt_config_set("DEADLINE_MS", "10000");
  close_pair(&p);
}

/* Which of 200 writes are refused. */
static void refusals(pair *p, const char *wanted, bool *refused) {
  faults(wanted);
  for (int i = 0; i < 200; i++) {
    rdt_status status = write_byte(p, (uint8_t)i, (uint64_t)i);
    EXPECT(status == RDT_OK || status == RDT_ERR_LIMIT);
    refused[i] = status != RDT_OK;
  }
}

static void test_seeds(void) {
  pair p;
  bool first[200], again[200], other[200];
  int count = 0;
  open_pair(&p, "");
  refusals(&p, "seed=5,post=0.2", first);
  refusals(&p, "seed=5,post=0.2", again);
  refusals(&p, "seed=6,post=0.2", other);
  EXPECT(memcmp(first, again, sizeof(first)) == 0);
  EXPECT(memcmp(first, other, sizeof(first)) != 0);
  for (int i = 0; i < 200; i++) count += first[i];
  EXPECT(count > 15 && count < 70);
  close_pair(&p);
}

/* ---- one kind after the other ---------------------------------------------------------------------------- */

static void test_post(void) {
  pair p;
  uint8_t bytes[2] = {7, 8};
  open_pair(&p, "post=#2");
  uint64_t before = injected("post");
  EXPECT_STATUS(RDT_OK, write_byte(&p, 1, 0));
  EXPECT_STATUS(RDT_ERR_LIMIT, write_byte(&p, 2, 1));
  EXPECT_STATUS(RDT_OK, write_byte(&p, 3, 2));
  EXPECT(p.memory[0] == 1 && p.memory[1] == 0 && p.memory[2] == 3);
  EXPECT(injected("post") == before + 1);
  /* The second of a batch: its end is told once, by return value or completion. */
  faults("post=#2");
  tally t = {0};
  rdt_op ops[] = {write_op(&p, bytes, 1, 10), write_op(&p, bytes + 1, 1, 11)};
  rdt_status status = rdt_channel_post(p.channel, ops, 2, count_done, &t);
  if (status == RDT_IN_PROGRESS) EXPECT(becomes(&t.done, 1) && atomic_load(&t.failed) == 1);
  EXPECT(status != RDT_OK && p.memory[11] == 0);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 4, 3));
  EXPECT(atomic_load(&p.a.down) == 0);
  close_pair(&p);
}

static void test_delay(void) {
  enum { COUNT = 100 };
  pair p;
  uint8_t byte = 9;
  tally t = {0};
  open_pair(&p, "delay=1:20ms");
  for (int i = 0; i < COUNT; i++) {
    rdt_op op = write_op(&p, &byte, 1, (uint64_t)i);
    EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_post(p.channel, &op, 1, count_done, &t));
  }
  EXPECT(becomes(&t.done, COUNT) && atomic_load(&t.failed) == 0);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 3, 200)); /* whose poster waits for it */
  EXPECT(p.memory[COUNT - 1] == 9 && p.memory[200] == 3);
  close_pair(&p);
  EXPECT(atomic_load(&t.done) == COUNT);
}

/* Operations pass one link behind each other; the processor sleeps meanwhile. */
static void test_link(void) {
  enum { COUNT = 20 };
  pair p;
  uint8_t bytes[10000] = {7};
  tally t = {0};
  faults("rate=1M,latency=10ms");
  open_pair(&p, "rate=1M,latency=10ms");
  clock_t used = clock();
  int64_t began = rdt_now_us();
  for (int i = 0; i < COUNT; i++) {
    rdt_op op = write_op(&p, bytes, sizeof(bytes), 0);
    rdt_status status = rdt_channel_post(p.channel, &op, 1, count_done, &t);
    EXPECT(status >= 0);
    atomic_fetch_add(&t.posted, status == RDT_IN_PROGRESS);
  }
  EXPECT(becomes(&t.done, atomic_load(&t.posted)) && atomic_load(&t.failed) == 0);
  int64_t took = rdt_now_us() - began;
  EXPECT(took >= COUNT * 10000); /* 10 ms each */
  EXPECT((int64_t)(clock() - used) * 1000000 / CLOCKS_PER_SEC < took);
  EXPECT(p.memory[0] == 7);
  usleep(20000); /* until the link is empty */
  began = rdt_now_us();
  EXPECT_STATUS(RDT_OK, write_byte(&p, 3, 1));
  EXPECT(rdt_now_us() - began >= 10000); /* the latency */
  close_pair(&p);
}

/* A completion that never comes ends the channel within the deadline, also while others go on. */
static void test_drop(bool busy) {
  pair p;
  uint8_t byte = 1;
  tally t = {0};
  open_pair(&p, "drop=#1");
  rdt_config_set("DEADLINE_MS", "600");
  rdt_op op = write_op(&p, &byte, 1, 0);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_post(p.channel, &op, 1, count_done, &t));
  rdt_status status = RDT_OK;
  rdt_deadline deadline = rdt_deadline_after(PATIENCE_MS);
  while (busy && status == RDT_OK && rdt_deadline_left(deadline) > 0) {
    status = write_byte(&p, 2, 1);
    usleep(1000);
  }
  EXPECT_STATUS(busy ? RDT_ERR_CONNECTION_LOST : RDT_OK, status);
  EXPECT(becomes(&t.done, 1) && atomic_load(&t.lost) == 1);
  EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, write_byte(&p, 2, 1));
  EXPECT(strstr(rdt_last_error(), "did not complete an operation"));
  rdt_config_set("DEADLINE_MS", "10000");
  leave(&p);
  join(&p);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 5, 5));
  close_pair(&p);
  EXPECT(atomic_load(&t.done) == 1);
}

/* Closing does not wait for what never comes. */
static void test_drop_and_close(bool device) {
  pair p;
  uint8_t byte = 1;
  tally t = {0};
  open_pair(&p, "drop=#1");
  uint64_t before = injected("drop");
  rdt_op op = write_op(&p, &byte, 1, 0);
  EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_post(p.channel, &op, 1, count_done, &t));
  UNTIL(injected("drop") > before);
  if (!device) {
    rdt_channel_close(p.channel);
    EXPECT(becomes(&t.done, 1) && becomes(&p.a.down, 1));
  }
  close_pair(&p);
  EXPECT(atomic_load(&t.done) == 1 && atomic_load(&t.failed) == 1);
}

static void test_fail(void) {
  pair p;
  open_pair(&p, "fail=#3");
  EXPECT_STATUS(RDT_OK, write_byte(&p, 1, 0));
  EXPECT_STATUS(RDT_OK, write_byte(&p, 1, 1));
  EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, write_byte(&p, 1, 2));
  EXPECT(strstr(rdt_last_error(), "injected"));
  EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
  leave(&p);
  join(&p);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 5, 5));
  close_pair(&p);
}

static void test_credit(void) {
  enum { COUNT = 300 };
  pair p;
  tally t = {0};
  open_pair(&p, "seed=2,credit=0.05:2ms");
  for (uint64_t i = 1; i <= COUNT; i++) notify(&p, i, &t);
  EXPECT(becomes(&p.b.notified, COUNT) && !atomic_load(&p.b.order_broken));
  EXPECT(becomes(&t.done, atomic_load(&t.posted)) && atomic_load(&t.failed) == 0);
  EXPECT(atomic_load(&t.posted) > 0);
  close_pair(&p);
}

static void test_no_credit_for_ever(void) {
  pair p;
  tally t = {0};
  open_pair(&p, "credit=1");
  rdt_config_set("DEADLINE_MS", "300");
  for (uint64_t i = 1; i <= 5; i++) notify(&p, i, &t);
  EXPECT(becomes(&t.done, 5) && atomic_load(&t.lost) == 5);
  EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
  EXPECT(atomic_load(&p.b.notified) == 0);
  close_pair(&p);
  rdt_config_set("DEADLINE_MS", "10000");
}

static void test_stall(void) {
  enum { COUNT = 50 };
  pair p;
  tally t = {0};
  open_pair(&p, "seed=4,stall=0.3:10ms");
  for (uint64_t i = 1; i <= COUNT; i++) {
    notify(&p, i, &t);
    EXPECT_STATUS(RDT_OK, write_byte(&p, (uint8_t)i, i));
    usleep(1000);
  }
  EXPECT(becomes(&p.b.notified, COUNT) && !atomic_load(&p.b.order_broken));
  EXPECT(injected("stall") > 0);
  close_pair(&p);
}

static void test_break(bool waits) {
  enum { COUNT = 20 };
  pair p;
  tally t = {0};
  open_pair(&p, waits ? "break=#10,credit=#12:5s" : "break=#10");
  for (uint64_t i = 1; i <= COUNT; i++) {
    rdt_op op = {.kind = RDT_OP_NOTIFY, .immediate = i};
    rdt_status status = rdt_channel_post(p.channel, &op, 1, count_done, &t);
    EXPECT(status >= 0 || status == RDT_ERR_CONNECTION_LOST);
    atomic_fetch_add(&t.posted, status == RDT_IN_PROGRESS);
  }
  EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
  EXPECT(becomes(&t.done, atomic_load(&t.posted)));
  EXPECT(atomic_load(&t.failed) == atomic_load(&t.lost));
  leave(&p);
  join(&p);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 5, 5));
  close_pair(&p);
}

/* Drivers may take long to destroy an endpoint, whose operations may have to be given up with it. Until then the peer may
 * reach memory. The device's other channels go on meanwhile. */
static void test_destroy(bool aborts) {
  pair p;
  uint8_t byte = 1;
  tally t = {0};
  rdt_channel *other;
  rdt_remote_region *found;
  open_pair(&p, "");
  const char *address = rdt_device_address(p.b.device);
  EXPECT_STATUS(RDT_OK, rdt_device_connect(p.a.device, address, PATIENCE_MS, &other));
  uint64_t before = injected("destroy");
  faults(aborts ? "drop=#1,destroy=1:600s" : "destroy=1:600s");
  rdt_op op = write_op(&p, &byte, 1, 0);
  if (aborts) EXPECT_STATUS(RDT_IN_PROGRESS, rdt_channel_post(p.channel, &op, 1, count_done, &t));
  rdt_channel_close(p.channel);
  if (!aborts) usleep(100000); /* the device lets go of it before its user does */
  time_t began = time(NULL);
  leave(&p);
  EXPECT(time(NULL) - began < PATIENCE_S);
  /* At both ends; but over shm the other end of one that aborts waits for it. */
  UNTIL(injected("destroy") >= before + (aborts ? 1 : 2));
  EXPECT(atomic_load(&t.done) == 0);
  EXPECT_STATUS(RDT_OK, rdt_remote_region_find(other, "memory", PATIENCE_MS, &found));
  EXPECT(atomic_load(&p.a.released) == 0 && atomic_load(&p.b.released) == 0);
  faults(""); /* which ends the destruction */
  EXPECT(becomes(&t.done, aborts) && becomes(&p.a.down, 1));
  EXPECT(becomes(&p.a.released, 1) && becomes(&p.b.released, 1));
  rdt_remote_region_unref(found);
  rdt_channel_unref(other);
  close_pair(&p);
}

static void test_regions(void) {
  pair p;
  rdt_region *region;
  rdt_remote_region *remote;
  open_pair(&p, "register=1");
  EXPECT_STATUS(RDT_ERR_LIMIT,
                rdt_region_alloc(p.a.device, BYTES, RDT_ACCESS_READ, "other", &region));
  EXPECT_STATUS(RDT_ERR_LIMIT,
                rdt_remote_region_alloc(p.channel, BYTES, RDT_ACCESS_WRITE, -1, &remote));
  faults("map=#1");
  EXPECT_STATUS(RDT_ERR_NO_MEMORY,
                rdt_remote_region_alloc(p.channel, BYTES, RDT_ACCESS_WRITE, -1, &remote));
  EXPECT_STATUS(RDT_OK, rdt_remote_region_alloc(p.channel, BYTES, RDT_ACCESS_WRITE, -1, &remote));
  rdt_remote_region_unref(remote);
  EXPECT_STATUS(RDT_OK, rdt_region_alloc(p.a.device, BYTES, RDT_ACCESS_READ, "other", &region));
  close_pair(&p);
}

/* The transport that a connection takes if nothing fails. */
static const char *best_transport(const rdt_device *device) {
  rdt_transport_info info = {0};
  for (size_t i = 0; rdt_device_get_transport(device, i, &info) == RDT_OK; i++)
    if (info.usable) return info.name;
  return "";
}

static void test_connecting(void) {
  pair p;
  rdt_channel *channel;
  open_ends(&p);
  const char *address = rdt_device_address(p.b.device), *best = best_transport(p.a.device);
  faults("connect=#1"); /* the accepting end, which comes first; then the connecting one */
  EXPECT_STATUS(RDT_ERR_UNREACHABLE,
                rdt_device_connect_to(p.a.device, address, NULL, best, -1, &channel));
  EXPECT(strstr(rdt_last_error(), "refused"));
  faults("connect=#2");
  EXPECT_STATUS(RDT_ERR_UNREACHABLE,
                rdt_device_connect_to(p.a.device, address, NULL, best, -1, &channel));
  EXPECT(!strstr(rdt_last_error(), "refused"));
  faults("hang=#1:2s");
  EXPECT_STATUS(RDT_ERR_DEADLINE, rdt_device_connect(p.a.device, address, 100, &channel));
  faults("");
  join(&p);
  EXPECT_STATUS(RDT_OK, write_byte(&p, 5, 5));
  EXPECT(atomic_load(&p.b.down) == 0);
  close_pair(&p);
}

/* ---- bits that turn over -------------------------------------------------------------------------------- */

static rdt_status run_op(const pair *p, rdt_op op) {
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_channel_submit(p->channel, &op, 1, &transfer);
  if (transfer) status = rdt_transfer_wait(transfer, PATIENCE_MS);
  rdt_transfer_free(transfer);
  return status;
}

/* The bits in which `size` bytes differ. */
static int difference(const uint8_t *a, const uint8_t *b, size_t size) {
  int bits = 0;
  for (size_t i = 0; i < size; i++) bits += __builtin_popcount(a[i] ^ b[i]);
  return bits;
}

/* One bit of the second of three, and none of the others. Sizes that are inlined, staged and, over verbs,
 * registered for the operation. */
static void test_corruption(uint64_t size) {
  pair p;
  uint8_t source[BYTES], target[BYTES];
  open_pair(&p, "");
  for (size_t i = 0; i < size; i++) source[i] = (uint8_t)(7 * i + 1);
  uint64_t before = injected("corrupt_write") + injected("corrupt_read");
  faults("corrupt_write=#2");
  for (int turn = 1; turn <= 3; turn++) {
    EXPECT_STATUS(RDT_OK, run_op(&p, write_op(&p, source, size, 0)));
    EXPECT(difference(source, p.memory, size) == (turn == 2));
  }
  rdt_op read = write_op(&p, target, size, 0);
  read.kind = RDT_OP_READ;
  faults("corrupt_read=#2");
  for (int turn = 1; turn <= 3; turn++) {
    EXPECT_STATUS(RDT_OK, run_op(&p, read));
    EXPECT(difference(source, target, size) == (turn == 2));
    EXPECT(memcmp(source, p.memory, size) == 0);
  }
  EXPECT(injected("corrupt_write") + injected("corrupt_read") == before + 2);
  faults("corrupt_notify=#2");
  atomic_store(&p.b.notified, 0);
  for (int turn = 1; turn <= 3; turn++) {
    rdt_op op = {.kind = RDT_OP_NOTIFY, .local = source, .size = size, .immediate = 1};
    EXPECT_STATUS(RDT_OK, run_op(&p, op));
    EXPECT(becomes(&p.b.notified, turn));
    pthread_mutex_lock(&payloads);
    EXPECT(p.b.payload_size == size && difference(source, p.b.payload, size) == (turn == 2));
    pthread_mutex_unlock(&payloads);
  }
  close_pair(&p);
}

/* ---- faults of the device, which only verbs have ------------------------------------------------------- */

static void test_duplicates(void) {
  enum { COUNT = 500 };
  pair p;
  uint8_t bytes[COUNT];
  tally t = {0};
  open_pair(&p, "seed=1,duplicate=0.5");
  if (over_verbs(&p)) {
    for (int i = 0; i < COUNT; i++) {
      bytes[i] = (uint8_t)i;
      rdt_op op = write_op(&p, &bytes[i], 1, (uint64_t)i);
      rdt_status status = rdt_channel_post(p.channel, &op, 1, count_done, &t);
      EXPECT_STATUS(RDT_IN_PROGRESS, status);
    }
    EXPECT(becomes(&t.done, COUNT) && atomic_load(&t.failed) == 0);
    for (int i = 0; i < 50; i++) EXPECT_STATUS(RDT_OK, write_byte(&p, 1, 1000));
    EXPECT(injected("duplicate") > 10 && memcmp(p.memory, bytes, COUNT) == 0);
    EXPECT(atomic_load(&t.done) == COUNT && atomic_load(&p.a.down) == 0);
  }
  close_pair(&p);
}

static void test_refusal(void) {
  pair p;
  open_pair(&p, "");
  if (over_verbs(&p)) {
    faults("refuse=#2");
    rdt_status status = RDT_OK;
    for (int i = 0; i < 10 && status == RDT_OK; i++) status = write_byte(&p, 1, 0);
    EXPECT_STATUS(RDT_ERR_CONNECTION_LOST, status);
    EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
    leave(&p);
    join(&p);
    EXPECT_STATUS(RDT_OK, write_byte(&p, 5, 5));
  }
  close_pair(&p);
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  test_setting();
  test_occasions();
  test_time_to_connect();
  test_seeds();
  test_post();
  test_delay();
  test_link();
  test_drop(false);
  test_drop(true);
  test_drop_and_close(false);
  test_drop_and_close(true);
  test_fail();
  test_credit();
  test_no_credit_for_ever();
  test_stall();
  test_break(false);
  test_break(true);
  test_destroy(false);
  test_destroy(true);
  test_regions();
  test_connecting();
  test_corruption(1);
  test_corruption(100);
  test_corruption(BYTES);
  test_duplicates();
  test_refusal();
  return 0;
}
