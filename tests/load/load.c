/* SPDX-License-Identifier: Apache-2.0
 *
 * load PEERS PROCESSES EDGES TRANSFERS SECONDS
 *
 * The hub, and the report: a line of JSON for every sample and one at the end. Exit status 0 if all went well.
 * TRANSFERS 0: as many as there are in SECONDS; otherwise SECONDS is what it may take. See load.h.
 */
#include "load.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define SAMPLES 60   /* of a run whose length is known */
#define SAMPLE_MS 20 /* between them, if not */
#define CONNECT_MS 120000

typedef struct hub {
  board *board;
  rdt_device *device;
  uint8_t *memory;
  uint64_t *sequences, *answers; /* by edge; an answer stays until its edge's next transfer */
  pid_t processes[MAX_PROCESSES];
} hub;

void wrong(board *board, const char *format, ...) {
  va_list args;
  if (atomic_fetch_add(&board->errors, 1) >= 20) return;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

/* On the progress thread: the payload is there, because its notification is. */
static void on_transfer(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                        size_t size) {
  hub *h = context;
  header told;
  uint32_t edge = (uint32_t)(immediate >> 32);
  if (size != sizeof(told) || edge >= h->board->given.edges) {
    wrong(h->board, "the hub was told nonsense");
    return;
  }
  memcpy(&told, data, sizeof(told));
  if (told.sequence != ++h->sequences[edge])
    wrong(h->board, "edge %u: transfer %llu came as number %llu", edge,
          (unsigned long long)told.sequence, (unsigned long long)h->sequences[edge]);
  if (told.size > edge_bytes(edge)) told.size = 0;
  h->answers[edge] = sum_of(h->memory + edge_offset(edge), told.size);
  if (h->answers[edge] != told.sum)
    wrong(h->board, "edge %u: other bytes came than were sent", edge);
  rdt_op answer = {.kind = RDT_OP_NOTIFY,
                   .local = &h->answers[edge],
                   .size = sizeof(h->answers[edge]),
                   .immediate = (uint32_t)immediate};
  if (rdt_channel_post(channel, &answer, 1, NULL, NULL) < 0)
    wrong(h->board, "edge %u cannot be answered: %s", edge, rdt_last_error());
}

/* ---- what a process uses ---------------------------------------------------------------------------- */

typedef struct use {
  uint64_t rss_kb, threads, fds;
} use;

static use use_of(pid_t pid) {
  use used = {0};
  char path[64], line[256];
  snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof(line), file)) {
    sscanf(line, "VmRSS: %lu", (unsigned long *)&used.rss_kb);
    sscanf(line, "Threads: %lu", (unsigned long *)&used.threads);
  }
  if (file) fclose(file);
  snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
  DIR *folder = opendir(path);
  while (folder && readdir(folder)) used.fds++;
  if (folder) closedir(folder);
  return used;
}

static void add(use *sum, use more) {
  sum->rss_kb += more.rss_kb;
  sum->threads += more.threads;
  sum->fds += more.fds;
}

static void report(const hub *h, const char *kind, double seconds) {
  use own = use_of(getpid()), theirs = {0};
  const board *b = h->board;
  for (uint32_t i = 0; i < b->given.processes; i++) add(&theirs, use_of(h->processes[i]));
  printf(
      "{\"kind\": \"%s\", \"seconds\": %.2f, \"transfers\": %llu, \"bytes\": %llu, "
      "\"reads\": %llu, \"errors\": %llu, \"rss_kb\": %llu, \"threads\": %llu, \"fds\": %llu, "
      "\"peers_rss_kb\": %llu, \"peers_threads\": %llu, \"peers_fds\": %llu}\n",
      kind, seconds, (unsigned long long)atomic_load(&b->transfers),
      (unsigned long long)atomic_load(&b->bytes), (unsigned long long)atomic_load(&b->reads),
      (unsigned long long)atomic_load(&b->errors), (unsigned long long)own.rss_kb,
      (unsigned long long)own.threads, (unsigned long long)own.fds,
      (unsigned long long)theirs.rss_kb, (unsigned long long)theirs.threads,
      (unsigned long long)theirs.fds);
  fflush(stdout);
}

/* ---- the hub -------------------------------------------------------------------------------------------- */

static bool fails(hub *h, const char *what, rdt_status status) {
  if (status >= 0) return false;
  wrong(h->board, "the hub cannot %s: %s", what, rdt_last_error());
  return true;
}

static bool open_hub(hub *h) {
  uint32_t edges = h->board->given.edges;
  rdt_device_options options = {
      .struct_size = sizeof(options), .name = "hub", .context = h, .on_notify = on_transfer};
  rdt_region *region;
  rdt_region_info info;
  h->sequences = calloc(edges, sizeof(uint64_t));
  h->answers = calloc(edges, sizeof(uint64_t));
  if (!h->sequences || !h->answers ||
      fails(h, "open a device", rdt_device_open(&options, &h->device)) ||
      fails(h, "allocate", rdt_memory_alloc(edge_offset(edges), (void **)&h->memory)) ||
      fails(
          h, "make the table",
          rdt_region_alloc(h->device, edges * sizeof(uint64_t), RDT_ACCESS_READ, "keys", &region)))
    return false;
  rdt_region_get_info(region, &info);
  uint64_t *keys = info.address;
  for (uint32_t edge = 0; edge < edges; edge++) {
    if (fails(h, "make an edge",
              rdt_region_register(h->device, h->memory + edge_offset(edge), edge_bytes(edge),
                                  RDT_ACCESS_READ | RDT_ACCESS_WRITE, NULL, &region)))
      return false;
    rdt_region_get_info(region, &info);
    keys[edge] = info.key;
  }
  snprintf(h->board->address, sizeof(h->board->address), "%s", rdt_device_address(h->device));
  return true;
}

/* Before there is any device: a device does not survive fork. */
static bool start_processes(hub *h) {
  const settings *given = &h->board->given;
  pid_t parent = getpid();
  for (uint32_t i = 0; i < given->processes; i++) {
    uint32_t first = given->peers * i / given->processes;
    uint32_t end = given->peers * (i + 1) / given->processes;
    h->processes[i] = fork();
    if (h->processes[i] < 0) return false;
    if (h->processes[i] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      exit(run_peers(h->board, first, end - first));
    }
  }
  return true;
}

/* True while a process of peers runs. */
static bool any_runs(const hub *h) {
  for (uint32_t i = 0; i < h->board->given.processes; i++) {
    siginfo_t how = {0};
    if (waitid(P_PID, (id_t)h->processes[i], &how, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        how.si_pid == 0)
      return true;
  }
  return false;
}

static void await_peers(hub *h) {
  rdt_deadline deadline = rdt_deadline_after(CONNECT_MS);
  while (atomic_load(&h->board->connected) < (int)h->board->given.peers)
    if (usleep(1000) != 0 || atomic_load(&h->board->failed) || rdt_deadline_left(deadline) == 0) {
      wrong(h->board, "only %d peers came", atomic_load(&h->board->connected));
      atomic_store(&h->board->failed, 1);
      return;
    }
}

/* Lets them work, and looks at what that uses. */
static void watch(hub *h) {
  const settings *given = &h->board->given;
  int64_t begin = rdt_now_ms(), span = (int64_t)given->seconds * 1000;
  int64_t every = given->transfers ? SAMPLE_MS : span / SAMPLES + SAMPLE_MS;
  int64_t next = begin + every;
  atomic_store(&h->board->go, 1);
  while (any_runs(h)) {
    int64_t now = rdt_now_ms();
    if (now - begin >= span && !atomic_exchange(&h->board->stop, 1) && given->transfers)
      wrong(h->board, "not done after %u seconds", given->seconds);
    if (now >= next && !atomic_load(&h->board->stop)) {
      report(h, "sample", (double)(now - begin) / 1000);
      next += every;
    }
    usleep(20000);
  }
  report(h, "end", (double)(rdt_now_ms() - begin) / 1000);
}

static void reap(hub *h) {
  for (uint32_t i = 0; i < h->board->given.processes; i++) {
    int how = 0;
    if (waitpid(h->processes[i], &how, 0) < 0 || how != 0)
      wrong(h->board, "a process of peers ended with %d", how);
  }
}

static void close_hub(hub *h) {
  if (h->device) rdt_device_close(h->device);
  if (h->memory) rdt_memory_free(h->memory);
  free(h->sequences);
  free(h->answers);
}

int main(int count, char **words) {
  hub h = {.board = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0)};
  struct rlimit files;
  if (count != 6 || h.board == MAP_FAILED) {
    fprintf(stderr, "usage: load PEERS PROCESSES EDGES TRANSFERS SECONDS\n");
    return 2;
  }
  h.board->given = (settings){.peers = (uint32_t)atoi(words[1]),
                              .processes = (uint32_t)atoi(words[2]),
                              .edges = (uint32_t)atoi(words[3]),
                              .transfers = strtoull(words[4], NULL, 10),
                              .seconds = (uint32_t)atoi(words[5])};
  const settings *given = &h.board->given;
  if (given->processes < 1 || given->processes > MAX_PROCESSES || given->peers < given->processes ||
      given->edges / WINDOW < given->peers) {
    fprintf(stderr, "give 1 to %d processes, a peer for each, and %u edges for each peer\n",
            MAX_PROCESSES, WINDOW);
    return 2;
  }
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  /* Small enough that all of it is in use soon: what still grows then is a leak. */
  if (!getenv("RDMATENSOR_TEST_RING_BYTES")) rdt_config_set("RING_BYTES", "64K");
  bool well = start_processes(&h) && open_hub(&h);
  atomic_store(&h.board->failed, !well);
  atomic_store(&h.board->ready, well);
  if (well) await_peers(&h);
  watch(&h);
  reap(&h);
  close_hub(&h);
  return atomic_load(&h.board->errors) > 0;
}
