/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport alone, measured as perftest measures verbs: `verbs_perf serve` prints the address that
 * `verbs_perf write_bw|read_bw|write_lat|read_lat ADDRESS SIZE ITERATIONS [DEPTH]` connects to. Prints
 * one number: MB/s (10^6 bytes), or microseconds, the median; for write_lat half of a round trip, both
 * ends polling memory.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rdmatensor.h"

#define REGION_BYTES (64ull << 20)

static void check(rdt_status status, const char *what) {
  if (status >= 0) return;
  fprintf(stderr, "%s: %s: %s\n", what, rdt_status_name(status), rdt_last_error());
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

typedef struct side {
  rdt_device *device;
  rdt_region *region;
  volatile char *memory;
  rdt_channel *channel;
  rdt_remote_region *remote;
} side;

static void open_side(side *s, const char *name) {
  rdt_region_info info;
  rdt_device_options options = {.struct_size = sizeof(options), .name = name};
  check(rdt_device_open(&options, &s->device), "open");
  check(rdt_region_alloc(s->device, REGION_BYTES, RDT_ACCESS_READ | RDT_ACCESS_WRITE, "perf",
                         &s->region),
        "allocate");
  check(rdt_region_get_info(s->region, &info), "region");
  s->memory = info.address;
}

static void join(side *s, const char *address) {
  check(rdt_device_connect(s->device, address, -1, &s->channel), "connect");
  check(rdt_remote_region_find(s->channel, "perf", -1, &s->remote), "find region");
}

/* ---- bandwidth ------------------------------------------------------------------------------------ */

static atomic_int outstanding;

static void done(void *context, rdt_status status) {
  (void)context;
  check(status, "transfer");
  atomic_fetch_sub(&outstanding, 1);
}

static void post(side *s, uint32_t kind, uint64_t size) {
  rdt_op op = {.kind = kind, .local = (void *)s->memory, .size = size, .remote = s->remote};
  atomic_fetch_add(&outstanding, 1);
  rdt_status status = rdt_channel_post(s->channel, &op, 1, done, NULL);
  check(status, "post");
  if (status == RDT_OK) atomic_fetch_sub(&outstanding, 1);
}

static void wait_below(int limit) {
  while (atomic_load(&outstanding) >= limit) usleep(50);
}

static double bandwidth(side *s, uint32_t kind, uint64_t size, int iterations, int depth) {
  double begin = now_us();
  for (int i = 0; i < iterations; i++) {
    wait_below(depth);
    post(s, kind, size);
  }
  wait_below(1);
  return (double)size * iterations / (now_us() - begin);
}

/* ---- latency -------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Writes go from the end of our memory to the beginning of the peer's. */
static void send_turn(side *s, uint64_t turn) {
  volatile uint64_t *from = (volatile uint64_t *)(s->memory + REGION_BYTES / 2);
  *from = turn;
  rdt_op op = {.kind = RDT_OP_WRITE, .local = (void *)from, .size = 8, .remote = s->remote};
  check(rdt_channel_post(s->channel, &op, 1, NULL, NULL), "post");
}

static void await_turn(side *s, uint64_t turn) {
  volatile uint64_t *word = (volatile uint64_t *)s->memory;
  while (*word != turn) continue;
}

static double write_latency(side *s, int iterations, double *times) {
  rdt_op start = {.kind = RDT_OP_NOTIFY, .immediate = (uint64_t)iterations};
  check(rdt_channel_post(s->channel, &start, 1, NULL, NULL), "notify");
  for (int i = 0; i < iterations; i++) {
    double begin = now_us();
    send_turn(s, (uint64_t)i + 1);
    await_turn(s, (uint64_t)i + 1);
    times[i] = (now_us() - begin) / 2;
  }
  qsort(times, (size_t)iterations, sizeof(*times), ascending);
  return times[iterations / 2];
}

static double read_latency(side *s, uint64_t size, int iterations, double *times) {
  rdt_op op = {.kind = RDT_OP_READ, .local = (void *)s->memory, .size = size, .remote = s->remote};
  for (int i = 0; i < iterations; i++) {
    rdt_transfer *transfer;
    double begin = now_us();
    check(rdt_channel_submit(s->channel, &op, 1, &transfer), "submit");
    if (transfer) check(rdt_transfer_wait(transfer, -1), "wait");
    times[i] = now_us() - begin;
    rdt_transfer_free(transfer);
  }
  qsort(times, (size_t)iterations, sizeof(*times), ascending);
  return times[iterations / 2];
}

/* ---- ends ----------------------------------------------------------------------------------------- */

/* Answers each client that asks for a ping-pong, until it is killed. */
static void serve(void) {
  side s = {0};
  open_side(&s, "server");
  printf("%s\n", rdt_device_address(s.device));
  fflush(stdout);
  for (;;) {
    rdt_notification asked;
    rdt_status status = rdt_device_next_notification(s.device, 1000, &asked);
    if (status == RDT_ERR_DEADLINE) continue;
    check(status, "serve");
    s.channel = asked.channel;
    check(rdt_remote_region_find(s.channel, "perf", -1, &s.remote), "find region");
    for (uint64_t i = 0; i < asked.immediate; i++) {
      await_turn(&s, i + 1);
      send_turn(&s, i + 1);
    }
    rdt_remote_region_unref(s.remote);
    rdt_notification_clear(&asked);
  }
}

int main(int count, char **arguments) {
  if (count == 2 && strcmp(arguments[1], "serve") == 0) serve();
  if (count < 5) {
    fprintf(stderr, "usage: verbs_perf serve | TEST ADDRESS SIZE ITERATIONS [DEPTH]\n");
    return 2;
  }
  side s = {0};
  const char *test = arguments[1];
  uint64_t size = strtoull(arguments[3], NULL, 10);
  int iterations = atoi(arguments[4]), depth = count > 5 ? atoi(arguments[5]) : 128;
  double *times = calloc((size_t)iterations, sizeof(*times)), result;
  open_side(&s, "client");
  join(&s, arguments[2]);
  if (strcmp(test, "write_lat") == 0)
    result = write_latency(&s, iterations, times);
  else if (strcmp(test, "read_lat") == 0)
    result = read_latency(&s, size, iterations, times);
  else
    result = bandwidth(&s, strcmp(test, "read_bw") == 0 ? RDT_OP_READ : RDT_OP_WRITE, size,
                       iterations, depth);
  printf("%.2f\n", result);
  free(times);
  rdt_remote_region_unref(s.remote);
  rdt_channel_unref(s.channel);
  rdt_device_close(s.device);
  return 0;
}
