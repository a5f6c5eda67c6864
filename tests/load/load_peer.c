/* SPDX-License-Identifier: Apache-2.0
 *
 * The writing side: each peer has WINDOW transfers under way, which its device's progress thread keeps going.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "load.h"

#define CONNECT_MS 60000
#define PATIENCE_MS 120000 /* for the last transfers, where everything is slow */

typedef struct peer peer;

/* A place for transfers, one at a time, over edges of its own. */
typedef struct flight {
  peer *owner;
  uint32_t number, turn; /* own edges: number, number + WINDOW, ... of the peer's */
  uint64_t random, size;
  header head; /* what is told */
  bool reads;
  atomic_int pending; /* its completion, and the hub's answer */
  uint8_t *data, *back;
} flight;

struct peer {
  board *board;
  uint32_t rank, edges;
  rdt_device *device;
  rdt_channel *channel;
  rdt_remote_region **regions; /* of its edges */
  uint64_t *sequences;
  atomic_llong left; /* transfers to begin */
  atomic_uint idle;  /* flights that ended */
  flight flights[WINDOW];
};

static void begin(flight *f);

static uint32_t edge_of(const peer *p, uint32_t own) {
  return own * p->board->given.peers + p->rank;
}

/* Of a flight. */
static uint32_t edges_of(const flight *f) {
  return (f->owner->edges - f->number + WINDOW - 1) / WINDOW;
}

static void land(flight *f) {
  peer *p = f->owner;
  if (f->reads && memcmp(f->back, f->data, f->size) != 0)
    wrong(p->board, "peer %u read back other bytes than it wrote", p->rank);
  if (f->reads) atomic_fetch_add(&p->board->reads, 1);
  atomic_fetch_add(&p->board->transfers, 1);
  atomic_fetch_add(&p->board->bytes, f->size);
  begin(f);
}

static void settle(flight *f) {
  if (atomic_fetch_sub(&f->pending, 1) == 1) land(f);
}

static void end(flight *f) { atomic_fetch_add(&f->owner->idle, 1); }

static void on_done(void *context, rdt_status status) {
  flight *f = context;
  if (status == RDT_OK) {
    settle(f);
  } else {
    wrong(f->owner->board, "peer %u: a transfer failed: %s", f->owner->rank,
          rdt_status_name(status));
    end(f);
  }
}

static void on_answer(void *context, rdt_channel *channel, uint64_t immediate, const void *data,
                      size_t size) {
  peer *p = context;
  uint64_t found = 0;
  (void)channel;
  if (immediate >= WINDOW || size != sizeof(found)) {
    wrong(p->board, "peer %u was told nonsense", p->rank);
    return;
  }
  memcpy(&found, data, sizeof(found));
  flight *f = &p->flights[immediate];
  if (atomic_load(&f->pending) < 1) wrong(p->board, "peer %u was told something twice", p->rank);
  if (found != f->head.sum) wrong(p->board, "peer %u: the hub found another sum", p->rank);
  settle(f);
}

static void on_down(void *context, rdt_channel *channel, rdt_status why) {
  peer *p = context;
  (void)channel;
  if (why == RDT_ERR_CLOSED) return; /* here, at the end */
  wrong(p->board, "peer %u lost the hub: %s", p->rank, rdt_last_error());
  atomic_store(&p->board->failed, 1);
}

/* New bytes for the edge that is next. */
static uint32_t load_up(flight *f) {
  peer *p = f->owner;
  uint32_t own = f->number + f->turn++ % edges_of(f) * WINDOW;
  uint64_t *words = (uint64_t *)f->data;
  f->random = mix(f->random + 0x632be59bd9b4e019u);
  f->size = (f->random % (edge_bytes(edge_of(p, own)) / 8) + 1) * 8;
  for (uint64_t i = 0; i < f->size / 8; i++) words[i] = f->random + i * 0x9e3779b97f4a7c15u;
  f->head = (header){++p->sequences[own], f->size, sum_of(f->data, f->size)};
  f->reads = f->head.sequence % READ_BACK_EVERY == 0;
  return own;
}

static void begin(flight *f) {
  peer *p = f->owner;
  if (atomic_load(&p->board->stop) || atomic_fetch_sub(&p->left, 1) <= 0) {
    end(f);
    return;
  }
  uint32_t own = load_up(f);
  rdt_op write = {
      .kind = RDT_OP_WRITE, .local = f->data, .size = f->size, .remote = p->regions[own]};
  rdt_op read = write;
  rdt_op tell = {.kind = RDT_OP_NOTIFY,
                 .local = &f->head,
                 .size = sizeof(f->head),
                 .immediate = (uint64_t)edge_of(p, own) << 32 | f->number};
  read.kind = RDT_OP_READ;
  read.local = f->back;
  rdt_op ops[3] = {write, tell};
  if (f->reads) {
    ops[1] = read;
    ops[2] = tell;
  }
  atomic_store(&f->pending, 2);
  rdt_status status = rdt_channel_post(p->channel, ops, f->reads ? 3 : 2, on_done, f);
  if (status == RDT_IN_PROGRESS) return;
  on_done(f, status);
}

/* ---- the beginning and the end ------------------------------------------------------------------- */

static bool fails(peer *p, const char *what, rdt_status status) {
  if (status >= 0) return false;
  wrong(p->board, "peer %u cannot %s: %s", p->rank, what, rdt_last_error());
  return true;
}

static bool open_edges(peer *p) {
  uint64_t size = (uint64_t)p->board->given.edges * sizeof(uint64_t), *keys = malloc(size);
  rdt_remote_region *table;
  rdt_transfer *transfer = NULL;
  if (!keys || fails(p, "find the table", rdt_remote_region_find(p->channel, "keys", -1, &table)))
    return false;
  rdt_op read = {.kind = RDT_OP_READ, .local = keys, .size = size, .remote = table};
  if (fails(p, "read the table", rdt_channel_submit(p->channel, &read, 1, &transfer))) return false;
  if (transfer && fails(p, "read the table", rdt_transfer_wait(transfer, CONNECT_MS))) return false;
  rdt_transfer_free(transfer);
  rdt_remote_region_unref(table);
  for (uint32_t own = 0; own < p->edges; own++)
    if (fails(p, "open an edge",
              rdt_remote_region_open(p->channel, keys[edge_of(p, own)], CONNECT_MS,
                                     &p->regions[own])))
      return false;
  free(keys);
  return true;
}

/* All of it is in use from the beginning: what grows later is a leak. */
static bool open_flight(peer *p, uint32_t number) {
  flight *f = &p->flights[number];
  uint64_t largest = SMALL_BYTES;
  *f = (flight){.owner = p, .number = number, .random = (uint64_t)p->rank << 32 | number};
  for (uint32_t i = 0; i < edges_of(f); i++) {
    uint64_t bytes = edge_bytes(edge_of(p, number + i * WINDOW));
    if (bytes > largest) largest = bytes;
  }
  f->data = malloc(largest);
  f->back = malloc(largest);
  if (!f->data || !f->back) return false;
  memset(f->data, 1, largest);
  memset(f->back, 1, largest);
  return true;
}

static bool open_peer(peer *p) {
  rdt_device_options options = {
      .struct_size = sizeof(options), .context = p, .on_notify = on_answer, .on_down = on_down};
  for (uint32_t i = 0; i < WINDOW; i++)
    if (!open_flight(p, i)) return false;
  p->regions = calloc(p->edges, sizeof(rdt_remote_region *));
  p->sequences = calloc(p->edges, sizeof(uint64_t));
  if (!p->regions || !p->sequences) return false;
  return !fails(p, "open a device", rdt_device_open(&options, &p->device)) &&
         !fails(p, "connect",
                rdt_device_connect(p->device, p->board->address, CONNECT_MS, &p->channel)) &&
         open_edges(p);
}

static bool await(board *board, atomic_int *flag, int wanted) {
  rdt_deadline deadline = rdt_deadline_after(PATIENCE_MS);
  while (atomic_load(flag) < wanted && rdt_deadline_left(deadline) > 0)
    if (usleep(1000) != 0 || atomic_load(&board->failed)) return false;
  return atomic_load(flag) >= wanted;
}

/* The last of the transfers; one that never ends is an error. */
static void await_last(peer *p) {
  uint64_t before = 0;
  rdt_deadline deadline = rdt_deadline_after(PATIENCE_MS);
  while (atomic_load(&p->idle) < WINDOW && rdt_deadline_left(deadline) > 0 &&
         !atomic_load(&p->board->failed)) {
    uint64_t now = atomic_load(&p->board->transfers);
    if (now != before) deadline = rdt_deadline_after(PATIENCE_MS);
    before = now;
    usleep(1000);
  }
  if (atomic_load(&p->idle) < WINDOW)
    wrong(p->board, "peer %u: %u transfers never ended", p->rank, WINDOW - atomic_load(&p->idle));
}

static void close_peer(peer *p) {
  for (uint32_t own = 0; own < p->edges; own++) rdt_remote_region_unref(p->regions[own]);
  rdt_channel_unref(p->channel);
  rdt_device_close(p->device);
  for (uint32_t i = 0; i < WINDOW; i++) {
    free(p->flights[i].data);
    free(p->flights[i].back);
  }
  free(p->regions);
  free(p->sequences);
}

int run_peers(board *board, uint32_t first, uint32_t count) {
  const settings *given = &board->given;
  peer *peers = calloc(count, sizeof(*peers));
  bool well = peers && await(board, &board->ready, 1);
  for (uint32_t i = 0; i < count && well; i++) {
    peer *p = &peers[i];
    p->board = board;
    p->rank = first + i;
    p->edges = (given->edges - p->rank + given->peers - 1) / given->peers;
    uint64_t share = given->transfers / given->peers + (p->rank < given->transfers % given->peers);
    atomic_store(&p->left, given->transfers ? (long long)share : INT64_MAX);
    well = open_peer(p);
    if (well) atomic_fetch_add(&board->connected, 1);
  }
  if (!well || !await(board, &board->go, 1)) {
    atomic_store(&board->failed, 1);
    return 1;
  }
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t each = 0; each < WINDOW; each++) begin(&peers[i].flights[each]);
  for (uint32_t i = 0; i < count; i++) await_last(&peers[i]);
  for (uint32_t i = 0; i < count; i++) close_peer(&peers[i]);
  free(peers);
  return atomic_load(&board->failed) != 0;
}
