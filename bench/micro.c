/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the C interface without Python, as perftest measures verbs and ucx_perftest measures UCX.
 *
 * `micro serve BYTES` prints the address that `micro TEST ADDRESS SIZE SAMPLES [DEPTH [EACH]]` connects to.
 * `micro peers - SIZE SAMPLES COUNT` starts COUNT peers itself, and `micro copy - SIZE SAMPLES` needs no peer.
 * Each of the SAMPLES lines of output is a mean of EACH operations, in microseconds. Tests that end in _bw
 * print MB/s (10^6 bytes), and rate prints 10^6 operations per second.
 *
 *   write_lat     half a round trip, with both ends polling the last bytes in memory
 *   write         a write until it is complete
 *   read_lat      a read until the bytes have arrived
 *   notify_lat    half a round trip of writes with notification, which the devices' threads handle
 *   write_bw read_bw write_notify_bw   bandwidth with up to DEPTH operations in flight
 *   rate          notifications of SIZE bytes, until the peer has handled all of them
 *   batch         like write_bw, but posts DEPTH writes at once, and prints operations per second
 *   peers         a write to each of COUNT peers in turn
 *   peers_notify  a notification to each of COUNT peers in turn, and its answer
 *   crowd         DEPTH connections to one peer (SAMPLES is 1), in connections per second
 *   crowd_memory  what each of them takes here after a write, in KiB of resident memory
 *   copy          memcpy, the limit of shared memory
 */
#include "micro.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_PEERS 64
#define MOST_BATCHED 1024
#define LEAST_REGION 4096ull
/* What a client asks of a server, in the upper half of a notification's immediate value. */
#define ECHO (1ull << 32)
#define PING_PONG (2ull << 32)
#define WANT(immediate) ((immediate) & ~0xffffffffull)

static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size);

/* Without a handler, a thread that waits for a transfer polls for it. */
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

static void finish(rdt_transfer *transfer) {
  if (transfer) check(rdt_transfer_wait(transfer, -1), "wait");
  rdt_transfer_free(transfer);
}

/* ---- many in flight ------------------------------------------------------------------------------- */

static long begun; /* transfers that were not complete when they were posted */
static atomic_long ended;

static void done(void *context, rdt_status status) {
  (void)context;
  check(status, "transfer");
  atomic_fetch_add(&ended, 1);
}

/* Half a page away from the peer's offset in its page: with equal offsets, processors confuse reads of one with
 * recent writes to the other. */
static void *source(side *s) { return (void *)(s->memory + s->room + LEAST_REGION / 2); }

static rdt_op operation(side *s, uint32_t kind) {
  bool notifies = kind == RDT_OP_NOTIFY;
  return (rdt_op){
      .kind = kind, .local = source(s), .size = s->size, .remote = notifies ? NULL : s->remote};
}

static void post(side *s, const rdt_op *ops, size_t count) {
  rdt_status status = rdt_channel_post(s->channel, ops, count, done, NULL);
  check(status, "post");
  if (status == RDT_IN_PROGRESS) begun++;
}

static void wait_below(long limit) {
  while (begun - atomic_load(&ended) >= limit) usleep(50);
}

/* Waits for the oldest transfer once DEPTH are under way. */
static double bandwidth(side *s, const request *r, uint32_t kind) {
  rdt_op op = operation(s, kind);
  rdt_transfer *under_way[MOST_BATCHED] = {NULL};
  double begin = now_us();
  for (long i = 0; i < r->each; i++) {
    rdt_transfer **place = &under_way[i % r->depth];
    finish(*place);
    check(rdt_channel_submit(s->channel, &op, 1, place), "submit");
  }
  for (long i = 0; i < r->depth; i++) finish(under_way[(r->each + i) % r->depth]);
  return (double)r->size * (double)r->each / (now_us() - begin);
}

static double batches(side *s, const request *r) {
  rdt_op ops[MOST_BATCHED];
  for (long i = 0; i < r->depth; i++) ops[i] = operation(s, RDT_OP_WRITE);
  double begin = now_us();
  for (long i = 0; i < r->each; i++) {
    wait_below(r->depth);
    post(s, ops, (size_t)r->depth);
  }
  wait_below(1);
  return (double)(r->depth * r->each) / (now_us() - begin);
}

/* ---- one after the other -------------------------------------------------------------------------- */

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

/* ---- ping-pong in memory -------------------------------------------------------------------------- */

/* The last 8 of `size` bytes hold the number of the turn. */
static volatile uint64_t *last_word(volatile char *bytes, uint64_t size) {
  return (volatile uint64_t *)(bytes + (size - 8));
}

static void send_turn(side *s, rdt_channel *channel, rdt_remote_region *remote, uint64_t turn) {
  rdt_op op = operation(s, RDT_OP_WRITE);
  *last_word(op.local, s->size) = turn;
  op.remote = remote;
  rdt_status status = rdt_channel_post(channel, &op, 1, NULL, NULL);
  check(status, "post");
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

static void ping_pong(side *s, const request *r) {
  uint64_t turn = 0;
  rdt_op start = {.kind = RDT_OP_NOTIFY,
                  .local = &s->size,
                  .size = sizeof(s->size),
                  .immediate = PING_PONG | (uint64_t)(r->samples * r->each)};
  *last_word(s->memory, s->size) = 0;
  check(rdt_channel_post(s->channel, &start, 1, NULL, NULL), "notify");
  for (long i = 0; i < r->samples; i++) {
    double begin = now_us();
    for (long j = 0; j < r->each; j++) {
      send_turn(s, s->channel, s->remote, ++turn);
      if (!await_turn(s, turn)) exit(1);
    }
    s->times[i] = (now_us() - begin) / 2 / (double)r->each;
  }
}

static bool has_guest(side *s) { return s->guest != NULL; }

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
    while (!has_guest(&s)) pthread_cond_wait(&s.ready, &s.lock);
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

/* ---- notifications -------------------------------------------------------------------------------- */

static void send_notified(side *s, uint32_t kind, uint64_t immediate) {
  rdt_op op = operation(s, kind);
  op.immediate = immediate;
  s->sent = now_us();
  check(rdt_channel_post(s->channel, &op, 1, NULL, NULL), "post");
}

static bool has_all(side *s) { return s->have == s->wanted; }

/* Handles the answer to `send_notified`, and sends the next turn from the device's thread. */
static void count_turn(side *s) {
  if (s->times) s->times[s->have] = (now_us() - s->sent) / 2;
  if (++s->have < s->wanted) {
    send_notified(s, RDT_OP_WRITE_NOTIFY, ECHO);
    return;
  }
  pthread_mutex_lock(&s->lock);
  pthread_cond_signal(&s->ready);
  pthread_mutex_unlock(&s->lock);
}

static void answer(side *s, rdt_channel *channel) {
  rdt_op op = {.kind = RDT_OP_NOTIFY};
  (void)s;
  check(rdt_channel_post(channel, &op, 1, NULL, NULL), "answer");
}

static void on_notify(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  side *s = context;
  if (s->wanted) {
    count_turn(s);
  } else if (WANT(immediate) == ECHO) {
    answer(s, channel);
  } else if (WANT(immediate) == PING_PONG && size == sizeof(s->size)) {
    pthread_mutex_lock(&s->lock);
    rdt_channel_ref(channel);
    s->guest = channel;
    memcpy(&s->size, data, size);
    s->turns = immediate & 0xffffffffull;
    pthread_cond_signal(&s->ready);
    pthread_mutex_unlock(&s->lock);
  }
}

static void notify_latency(side *s, const request *r) {
  s->wanted = r->samples;
  send_notified(s, RDT_OP_WRITE_NOTIFY, ECHO);
  await(s, has_all);
}

/* The answer to the last notification means that all have been handled. */
static double rate(side *s, const request *r) {
  rdt_op op = operation(s, RDT_OP_NOTIFY);
  s->times = NULL;
  s->have = 0;
  s->wanted = 1;
  double begin = now_us();
  for (long i = 1; i < r->each; i++) {
    wait_below(r->depth);
    post(s, &op, 1);
  }
  send_notified(s, RDT_OP_NOTIFY, ECHO);
  await(s, has_all);
  wait_below(1);
  return (double)r->each / (now_us() - begin);
}

/* ---- many peers ----------------------------------------------------------------------------------- */

/* Starts a peer in a process of its own, which ends with this one. */
static void start_peer(uint64_t size, char address[64]) {
  int ends[2];
  if (pipe(ends)) exit(1);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    serve(size);
  }
  close(ends[1]);
  FILE *answer = fdopen(ends[0], "r");
  if (child < 0 || !answer || !fgets(address, 64, answer)) exit(1);
  address[strcspn(address, "\n")] = 0;
  fclose(answer);
}

static void turn_of_peers(side *s, const request *r, rdt_channel **channels,
                          rdt_remote_region **remotes) {
  bool notifies = strcmp(r->test, "peers_notify") == 0;
  double *times = s->times;
  s->times = NULL;
  for (long i = 0; i < r->samples; i++) {
    s->channel = channels[i % r->depth];
    s->remote = remotes[i % r->depth];
    double begin = now_us();
    if (notifies) {
      s->have = 0;
      s->wanted = 1;
      send_notified(s, RDT_OP_WRITE_NOTIFY, ECHO);
      await(s, has_all);
    } else {
      one_time(s, r, RDT_OP_WRITE);
    }
    times[i] = now_us() - begin;
  }
  s->times = times;
}

static void peers(side *s, const request *r) {
  char addresses[MOST_PEERS][64];
  rdt_channel *channels[MOST_PEERS];
  rdt_remote_region *remotes[MOST_PEERS];
  for (long i = 0; i < r->depth; i++) start_peer(r->size, addresses[i]);
  open_side(s, "client", r->size, strcmp(r->test, "peers") != 0);
  for (long i = 0; i < r->depth; i++) {
    join(s, addresses[i]);
    channels[i] = s->channel;
    remotes[i] = s->remote;
  }
  turn_of_peers(s, r, channels, remotes);
  for (long i = 0; i < r->depth; i++) {
    s->channel = channels[i];
    s->remote = remotes[i];
    leave(s);
  }
}

/* ---- many connections ----------------------------------------------------------------------------- */

static double resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(1);
  fclose(file);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

/* Memory that one crowd leaves is used by the next, so there is one. */
static void crowd(side *s, const request *r) {
  rdt_channel *channels[MOST_BATCHED];
  open_side(s, "client", r->size, false);
  join(s, r->address);
  one_time(s, r, RDT_OP_WRITE);
  leave(s);
  double before = resident_kib(), begin = now_us();
  for (long i = 0; i < r->depth; i++)
    check(rdt_device_connect(s->device, r->address, -1, &channels[i]), "connect");
  s->times[0] = (double)r->depth / (now_us() - begin) * 1e6;
  for (long i = 0; i < r->depth; i++) {
    s->channel = channels[i];
    check(rdt_remote_region_find(s->channel, "micro", -1, &s->remote), "find region");
    one_time(s, r, RDT_OP_WRITE);
    rdt_remote_region_unref(s->remote);
  }
  if (strcmp(r->test, "crowd_memory") == 0)
    s->times[0] = (resident_kib() - before) / (double)r->depth;
}

/* ---- command line --------------------------------------------------------------------------------- */

static double sample(side *s, const request *r) {
  if (strcmp(r->test, "write") == 0) return one_time(s, r, RDT_OP_WRITE);
  if (strcmp(r->test, "read_lat") == 0) return one_time(s, r, RDT_OP_READ);
  if (strcmp(r->test, "write_bw") == 0) return bandwidth(s, r, RDT_OP_WRITE);
  if (strcmp(r->test, "read_bw") == 0) return bandwidth(s, r, RDT_OP_READ);
  if (strcmp(r->test, "write_notify_bw") == 0) return bandwidth(s, r, RDT_OP_WRITE_NOTIFY);
  if (strcmp(r->test, "rate") == 0) return rate(s, r);
  if (strcmp(r->test, "batch") == 0) return batches(s, r);
  fprintf(stderr, "there is no test %s\n", r->test);
  exit(2);
}

static void run(side *s, const request *r) {
  if (strcmp(r->test, "write_lat") == 0) {
    ping_pong(s, r);
  } else if (strcmp(r->test, "notify_lat") == 0) {
    notify_latency(s, r);
  } else {
    double *times = s->times;
    sample(s, r); /* maps memory */
    for (long i = 0; i < r->samples; i++) times[i] = sample(s, r);
    s->times = times;
  }
}

/* Reports whether the test waits for its transfers itself. */
static bool waits(const char *test) {
  return strcmp(test, "write") == 0 || strcmp(test, "read_lat") == 0 || strstr(test, "_bw");
}

static bool parse(int count, char **words, request *r) {
  if (count < 5) return false;
  *r = (request){.test = words[1],
                 .address = words[2],
                 .size = strtoull(words[3], NULL, 10),
                 .samples = atol(words[4]),
                 .depth = count > 5 ? atol(words[5]) : 1,
                 .each = count > 6 ? atol(words[6]) : 1};
  bool peers = strncmp(r->test, "peers", 5) == 0;
  return r->size >= 8 && r->samples > 0 && r->each > 0 && r->depth > 0 &&
         r->depth <= (peers ? MOST_PEERS : MOST_BATCHED);
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
  s.times = times;
  if (strncmp(r.test, "peers", 5) == 0) {
    peers(&s, &r);
  } else if (strncmp(r.test, "crowd", 5) == 0) {
    crowd(&s, &r);
  } else if (strcmp(r.test, "copy") == 0) {
    for (long i = 0; i < r.samples; i++) times[i] = copy_time(&r);
  } else {
    open_side(&s, "client", r.size, !waits(r.test));
    join(&s, r.address);
    run(&s, &r);
    leave(&s);
  }
  for (long i = 0; i < r.samples; i++) printf("%.4f\n", times[i]);
  free(times);
  if (s.device) rdt_device_close(s.device);
  return 0;
}
