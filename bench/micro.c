/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the C interface without Python, as perftest measures verbs and ucx_perftest measures UCX.
 *
 * `micro serve BYTES` prints the address that `micro TEST ADDRESS SIZE SAMPLES [DEPTH [EACH]]` connects to.
 * Each of the SAMPLES lines of output is a mean of EACH operations, in microseconds. Tests that end in _bw
 * print MB/s (10^6 bytes).
 *
 *   write_lat        half a round trip, with both ends polling the last bytes in memory
 *   write            a write until it is complete
 *   read_lat         a read until the bytes have arrived
 *   write_bw read_bw bandwidth with up to DEPTH operations in flight
 *   crowd            DEPTH connections to one peer (SAMPLES is 1), in connections per second
 *   crowd_memory     what each of them takes here after a write, in KiB of resident memory
 *   copy             memcpy, the limit of shared memory, which needs no peer
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "rdmatensor.h"

#define MOST_DEPTH 1024
#define LEAST_REGION 4096ull

/* The arguments of the command line. */
typedef struct request {
  const char *test, *address;
  uint64_t size;
  long samples, depth, each;
} request;

typedef struct side {
  rdt_device *device;
  rdt_region *region;
  volatile char *memory; /* the peer writes to the first half; the second half is sent */
  uint64_t room;         /* bytes of a half */
  uint64_t size;         /* of an operation */
  rdt_channel *channel;
  rdt_remote_region *remote;
  /* At the server: a client that asked for ping-pong, and the number of turns. */
  pthread_mutex_t lock;
  pthread_cond_t ready;
  rdt_channel *guest;
  uint64_t turns;
} side;

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

/* A client asks for ping-pong by a notification with the size, and the number of turns as immediate value. */
static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  side *s = context;
  if (size != sizeof(s->size)) return;
  pthread_mutex_lock(&s->lock);
  rdt_channel_ref(channel);
  s->guest = channel;
  memcpy(&s->size, data, size);
  s->turns = immediate;
  pthread_cond_signal(&s->ready);
  pthread_mutex_unlock(&s->lock);
}

/* Without a handler, as at a client, a thread that waits for a transfer polls for it. */
static void open_side(side *s, const char *name, uint64_t size, bool handles) {
  rdt_region_info info;
  rdt_device_options options = {.struct_size = sizeof(options),
                                .name = name,
                                .context = s,
                                .on_notify = handles ? on_notify : NULL};
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->ready, NULL);
  s->size = size;
  s->room = size < LEAST_REGION ? LEAST_REGION : size;
  check(rdt_device_open(&options, &s->device), "open");
  check(rdt_region_alloc(s->device, 2 * s->room + LEAST_REGION, RDT_ACCESS_READ | RDT_ACCESS_WRITE,
                         "micro", &s->region),
        "allocate");
  check(rdt_region_get_info(s->region, &info), "region");
  s->memory = info.address;
}

static void join(side *s, const char *address) {
  check(rdt_device_connect(s->device, address, -1, &s->channel), "connect");
  check(rdt_remote_region_find(s->channel, "micro", -1, &s->remote), "find region");
}

static void leave(side *s) {
  rdt_remote_region_unref(s->remote);
  rdt_channel_unref(s->channel);
}

/* The source is half a page away from the peer's offset in its page: with equal offsets, processors confuse
 * reads of one with recent writes to the other. */
static rdt_op operation(side *s, uint32_t kind) {
  void *source = (void *)(s->memory + s->room + LEAST_REGION / 2);
  return (rdt_op){.kind = kind, .local = source, .size = s->size, .remote = s->remote};
}

static void finish(rdt_transfer *transfer) {
  if (transfer) check(rdt_transfer_wait(transfer, -1), "wait");
  rdt_transfer_free(transfer);
}

/* Waits for the oldest transfer once DEPTH are under way. */
static double bandwidth(side *s, const request *r, uint32_t kind) {
  rdt_op op = operation(s, kind);
  rdt_transfer *under_way[MOST_DEPTH] = {NULL};
  double begin = now_us();
  for (long i = 0; i < r->each; i++) {
    rdt_transfer **place = &under_way[i % r->depth];
    finish(*place);
    check(rdt_channel_submit(s->channel, &op, 1, place), "submit");
  }
  for (long i = 0; i < r->depth; i++) finish(under_way[(r->each + i) % r->depth]);
  return (double)r->size * (double)r->each / (now_us() - begin);
}

static double one_time(side *s, const request *r, uint32_t kind) {
  rdt_op op = operation(s, kind);
  double begin = now_us();
  for (long i = 0; i < r->each; i++) {
    rdt_transfer *transfer;
    check(rdt_channel_submit(s->channel, &op, 1, &transfer), "submit");
    finish(transfer);
  }
  return (now_us() - begin) / (double)r->each;
}

static double copy_time(const request *r) {
  static char *from, *to;
  if (!from) {
    if (posix_memalign((void **)&from, 4096, r->size) ||
        posix_memalign((void **)&to, 4096, r->size))
      exit(1);
    memset(from, 1, r->size);
    memset(to, 2, r->size);
  }
  double begin = now_us();
  for (long i = 0; i < r->each; i++) {
    memcpy(to, from, r->size);
    __asm__ volatile("" : : "r"(to) : "memory");
  }
  return (now_us() - begin) / (double)r->each;
}

/* The last 8 of `size` bytes hold the number of the turn. */
static volatile uint64_t *last_word(volatile char *bytes, uint64_t size) {
  return (volatile uint64_t *)(bytes + (size - 8));
}

static void send_turn(side *s, rdt_channel *channel, rdt_remote_region *remote, uint64_t turn) {
  rdt_op op = operation(s, RDT_OP_WRITE);
  *last_word(op.local, s->size) = turn;
  op.remote = remote;
  check(rdt_channel_post(channel, &op, 1, NULL, NULL), "post");
}

/* False if the peer does not answer. */
static bool await_turn(side *s, uint64_t turn) {
  volatile uint64_t *word = last_word(s->memory, s->size);
  for (uint64_t spins = 0; *word != turn; spins++) {
    if (spins > 1ull << 34) return false;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return true;
}

static void ping_pong(side *s, const request *r, double *times) {
  uint64_t turn = 0;
  rdt_op start = {.kind = RDT_OP_NOTIFY,
                  .local = &s->size,
                  .size = sizeof(s->size),
                  .immediate = (uint64_t)(r->samples * r->each)};
  *last_word(s->memory, s->size) = 0;
  check(rdt_channel_post(s->channel, &start, 1, NULL, NULL), "notify");
  for (long i = 0; i < r->samples; i++) {
    double begin = now_us();
    for (long j = 0; j < r->each; j++) {
      send_turn(s, s->channel, s->remote, ++turn);
      if (!await_turn(s, turn)) exit(1);
    }
    times[i] = (now_us() - begin) / 2 / (double)r->each;
  }
}

/* Plays ping-pong with each client that asks for it, until the parent process ends. */
static void serve(uint64_t most) {
  side s = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  open_side(&s, "server", most, true);
  printf("%s\n", rdt_device_address(s.device));
  fflush(stdout);
  for (;;) {
    rdt_remote_region *remote;
    pthread_mutex_lock(&s.lock);
    while (!s.guest) pthread_cond_wait(&s.ready, &s.lock);
    rdt_channel *guest = s.guest;
    uint64_t turns = s.turns;
    s.guest = NULL;
    pthread_mutex_unlock(&s.lock);
    check(rdt_remote_region_find(guest, "micro", -1, &remote), "find region");
    for (uint64_t i = 0; i < turns && await_turn(&s, i + 1); i++)
      send_turn(&s, guest, remote, i + 1);
    *last_word(s.memory, s.size) = 0;
    rdt_remote_region_unref(remote);
    rdt_channel_unref(guest);
  }
}

static double resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(1);
  fclose(file);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* Memory that one crowd leaves is used by the next, so there is one. */
static double crowd(side *s, const request *r) {
  rdt_channel *channels[MOST_DEPTH];
  one_time(s, r, RDT_OP_WRITE);
  double before = resident_kib(), begin = now_us();
  for (long i = 0; i < r->depth; i++)
    check(rdt_device_connect(s->device, r->address, -1, &channels[i]), "connect");
  double per_second = (double)r->depth / (now_us() - begin) * 1e6;
  for (long i = 0; i < r->depth; i++) {
    side other = *s;
    other.channel = channels[i];
    check(rdt_remote_region_find(other.channel, "micro", -1, &other.remote), "find region");
    one_time(&other, r, RDT_OP_WRITE);
    rdt_remote_region_unref(other.remote);
  }
  bool memory = strcmp(r->test, "crowd_memory") == 0;
  return memory ? (resident_kib() - before) / (double)r->depth : per_second;
}

static double sample(side *s, const request *r) {
  if (strcmp(r->test, "copy") == 0) return copy_time(r);
  if (strcmp(r->test, "write") == 0) return one_time(s, r, RDT_OP_WRITE);
  if (strcmp(r->test, "read_lat") == 0) return one_time(s, r, RDT_OP_READ);
  if (strcmp(r->test, "write_bw") == 0) return bandwidth(s, r, RDT_OP_WRITE);
  if (strcmp(r->test, "read_bw") == 0) return bandwidth(s, r, RDT_OP_READ);
  fprintf(stderr, "there is no test %s\n", r->test);
  exit(2);
}

static bool parse(int count, char **words, request *r) {
  if (count < 5) return false;
  *r = (request){.test = words[1],
                 .address = words[2],
                 .size = strtoull(words[3], NULL, 10),
                 .samples = atol(words[4]),
                 .depth = count > 5 ? atol(words[5]) : 1,
                 .each = count > 6 ? atol(words[6]) : 1};
  return r->size >= 8 && r->samples > 0 && r->each > 0 && r->depth > 0 && r->depth <= MOST_DEPTH;
}

int main(int count, char **words) {
  request r;
  side s = {0};
  if (count == 3 && strcmp(words[1], "serve") == 0) serve(strtoull(words[2], NULL, 10));
  if (!parse(count, words, &r)) {
    fprintf(stderr, "usage: micro serve BYTES | TEST ADDRESS SIZE SAMPLES [DEPTH [EACH]]\n");
    return 2;
  }
  double *times = calloc((size_t)r.samples, sizeof(*times));
  if (strcmp(r.test, "copy") != 0) {
    /* write_lat polls memory itself, and leaves completions to the device's thread. */
    open_side(&s, "client", r.size, strcmp(r.test, "write_lat") == 0);
    join(&s, r.address);
  }
  if (strcmp(r.test, "write_lat") == 0) {
    ping_pong(&s, &r, times);
  } else if (strncmp(r.test, "crowd", 5) == 0) {
    times[0] = crowd(&s, &r);
  } else {
    sample(&s, &r); /* maps memory */
    for (long i = 0; i < r.samples; i++) times[i] = sample(&s, &r);
  }
  if (s.device) leave(&s);
  for (long i = 0; i < r.samples; i++) printf("%.4f\n", times[i]);
  free(times);
  if (s.device) rdt_device_close(s.device);
  return 0;
}
