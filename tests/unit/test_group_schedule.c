/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedules of all members, executed here step by step in random order: the results, the rules of
 * schedule.h, and that nobody waits for ever.
 */
#include <string.h>

#include "group/schedule/trees.h"
#include "group_schedule.h"

/* ---- Rules that a schedule can be checked for as it is ---------------------------------------------- */

static void check_place(const trial *t, const member *m, rdt_group_place place, uint64_t count) {
  const uint64_t size = place.buffer == RDT_BUFFER_INPUT    ? t->input_count
                        : place.buffer == RDT_BUFFER_OUTPUT ? t->output_count
                                                            : m->schedule->scratch;
  EXPECT(place.at <= size && count <= size - place.at);
}

static void check_step(const trial *t, const member *m, uint32_t rank, const rdt_group_step *step) {
  EXPECT(step->count > 0 && step->lane < m->schedule->lanes);
  if (reads(step)) check_place(t, m, step->from, step->count);
  if (writes(step)) {
    check_place(t, m, step->to, step->count);
    EXPECT(step->to.buffer != RDT_BUFFER_INPUT);
  }
  if (step->kind == RDT_STEP_SEND || receives(step))
    EXPECT(step->peer < t->request.size && step->peer != rank);
}

/* What steps do to each element: the lane that writes it, or that alone reads it, and in which round it was
 * last sent, written, and read by a step that does not write it. */
typedef struct traces {
  uint32_t *writer, *reader, *sent, *written, *read;
} traces;
#define MANY UINT32_MAX

static void trace_lanes(const member *m, const rdt_group_step *step, traces *at) {
  const uint32_t lane = step->lane + 1;
  for (uint64_t i = 0; i < step->count; i++) {
    if (reads(step)) {
      uint32_t *reader = &at->reader[address(m, step->from) + i];
      *reader = *reader == 0 || *reader == lane ? lane : MANY;
    }
    if (!writes(step)) continue;
    uint32_t *writer = &at->writer[address(m, step->to) + i];
    EXPECT(*writer == 0 || *writer == lane);
    *writer = lane;
  }
}

/* `stamp` names the round. Finds conflicts whichever of two steps is listed first. */
static void trace_round(const member *m, const rdt_group_step *step, uint32_t stamp, traces *at) {
  const uint64_t from = address(m, step->from), to = address(m, step->to);
  for (uint64_t i = 0; i < step->count; i++) {
    if (step->kind == RDT_STEP_SEND) at->sent[from + i] = stamp;
    if (writes(step)) {
      EXPECT(at->sent[to + i] != stamp);
      EXPECT(at->read[to + i] != stamp);
      at->written[to + i] = stamp;
    }
    if (!reads(step)) continue;
    if (writes(step) && from == to) continue;
    EXPECT(at->written[from + i] != stamp);
    at->read[from + i] = stamp;
  }
}

static void check_schedule(const trial *t, const member *m, uint32_t rank) {
  const rdt_schedule *schedule = m->schedule;
  uint32_t *table = calloc(5 * m->size + 1, sizeof *table);
  EXPECT(table != NULL);
  traces at = {table, table + m->size, table + 2 * m->size, table + 3 * m->size,
               table + 4 * m->size};
  for (size_t i = 0; i < schedule->count; i++) {
    const rdt_group_step *step = &schedule->steps[i], *last = step - 1;
    check_step(t, m, rank, step);
    if (i > 0)
      EXPECT(last->lane < step->lane || (last->lane == step->lane && last->round <= step->round));
    trace_lanes(m, step, &at);
  }
  for (uint64_t i = 0; i < m->size; i++)
    EXPECT(at.writer[i] == 0 || at.reader[i] == 0 || at.reader[i] == at.writer[i]);
  uint32_t stamp = 0;
  for (size_t first = 0, end; first < schedule->count; first = end) {
    const rdt_group_step *steps = schedule->steps;
    stamp++;
    for (end = first; end < schedule->count && steps[end].lane == steps[first].lane &&
                      steps[end].round == steps[first].round;
         end++)
      trace_round(m, &steps[end], stamp, &at);
  }
  free(table);
}

/* ---- Who expects what of whom ------------------------------------------------------------------------ */

/* The first step from `i` on that is a message of the lane from `rank` to the peer, or back. */
static size_t next_message(const rdt_schedule *schedule, size_t i, uint32_t lane, uint32_t peer,
                           bool receive) {
  for (; i < schedule->count; i++) {
    const rdt_group_step *step = &schedule->steps[i];
    const bool right = receive ? receives(step) : step->kind == RDT_STEP_SEND;
    if (right && step->lane == lane && step->peer == peer) break;
  }
  return i;
}

/* The n-th receive of the lane expects the n-th send: of the same length, in the same round. */
static void match(trial *t, uint32_t rank, uint32_t peer, uint32_t lane) {
  const rdt_schedule *mine = t->members[rank].schedule, *theirs = t->members[peer].schedule;
  size_t i = next_message(mine, 0, lane, peer, true);
  size_t k = next_message(theirs, 0, lane, rank, false);
  while (i < mine->count && k < theirs->count) {
    EXPECT(mine->steps[i].count == theirs->steps[k].count);
    EXPECT(mine->steps[i].round == theirs->steps[k].round);
    t->members[rank].sends[i] = k;
    i = next_message(mine, i + 1, lane, peer, true);
    k = next_message(theirs, k + 1, lane, rank, false);
  }
  EXPECT(i == mine->count && k == theirs->count);
}

static void match_all(trial *t) {
  const uint32_t size = t->request.size, lanes = t->members[0].schedule->lanes;
  for (uint32_t rank = 0; rank < size; rank++) {
    EXPECT(t->members[rank].schedule->lanes == lanes);
    for (uint32_t peer = 0; peer < size; peer++) {
      for (uint32_t lane = 0; lane < lanes && peer != rank; lane++) match(t, rank, peer, lane);
    }
  }
}

/* ---- Execution ---------------------------------------------------------------------------------- */

/* When all of a round is done, the lane's next round begins; at the end, an empty one. */
static void next_round(member *m, uint32_t lane) {
  lane_round *now = &m->rounds[lane];
  const rdt_schedule *schedule = m->schedule;
  if (now->left > 0) return;
  now->begin = now->end;
  while (now->end < schedule->count && schedule->steps[now->end].lane == lane &&
         schedule->steps[now->end].round == schedule->steps[now->begin].round)
    now->end++;
  now->left = now->end - now->begin;
}

static void begin_lanes(member *m) {
  size_t begin = 0;
  for (uint32_t lane = 0; lane < m->schedule->lanes; lane++) {
    while (begin < m->schedule->count && m->schedule->steps[begin].lane < lane) begin++;
    m->rounds[lane] = (lane_round){begin, begin, 0};
    next_round(m, lane);
  }
}

static void finish(member *m, size_t index) {
  const uint32_t lane = m->schedule->steps[index].lane;
  m->done[index] = true;
  m->rounds[lane].left--;
  next_round(m, lane);
}

/* Earlier steps of the round that write the same elements come first. */
static bool in_turn(const member *m, size_t index) {
  const rdt_group_step *steps = m->schedule->steps, *step = &steps[index];
  for (size_t i = m->rounds[step->lane].begin; i < index; i++) {
    if (!m->done[i] && writes(&steps[i]) &&
        overlap(address(m, steps[i].to), address(m, step->to), steps[i].count, step->count))
      return false;
  }
  return true;
}

static element add(element a, element b) {
  EXPECT(a.completed + b.completed == 0);
  return (element){a.exact + b.exact, a.rounded + b.rounded, 0};
}

/* `sent` is the sender's memory: lent memory may be read at any time while its send is not over. */
static void execute(const member *m, const rdt_group_step *step, const element *sent) {
  element *to = m->memory + address(m, step->to);
  const element *from = m->memory + address(m, step->from);
  for (uint64_t i = 0; i < step->count; i++) {
    to[i] = step->kind == RDT_STEP_RECEIVE  ? sent[i]
            : step->kind == RDT_STEP_REDUCE ? add(from[i], sent[i])
            : step->kind == RDT_STEP_COPY   ? from[i]
                                            : add(to[i], from[i]);
    to[i].completed += step->completes;
  }
}

static bool try_step(trial *t, uint32_t rank, size_t index) {
  member *m = &t->members[rank];
  const rdt_group_step *step = &m->schedule->steps[index];
  if (m->done[index] || !writes(step) || !in_turn(m, index)) return false;
  if (!receives(step)) {
    execute(m, step, NULL);
    finish(m, index);
    return true;
  }
  member *peer = &t->members[step->peer];
  const size_t send = m->sends[index];
  const lane_round *theirs = &peer->rounds[step->lane];
  if (send < theirs->begin || send >= theirs->end) return false;
  execute(m, step, peer->memory + address(peer, peer->schedule->steps[send].from));
  finish(m, index);
  finish(peer, send);
  return true;
}

static bool try_lane(trial *t, uint32_t rank, uint32_t lane) {
  const lane_round now = t->members[rank].rounds[lane];
  const size_t count = now.end - now.begin, from = count ? next_random(&t->random) % count : 0;
  for (size_t i = 0; i < count; i++) {
    if (try_step(t, rank, now.begin + (from + i) % count)) return true;
  }
  return false;
}

/* One step, of a random lane of a random member, or of the next that has one. */
static bool run_step(trial *t) {
  const uint32_t lanes = t->members[0].schedule->lanes, all = t->request.size * lanes;
  const uint32_t from = (uint32_t)(next_random(&t->random) % all);
  for (uint32_t i = 0; i < all; i++) {
    const uint32_t k = (from + i) % all;
    if (try_lane(t, k / lanes, k % lanes)) return true;
  }
  return false;
}

static void run(trial *t) {
  for (uint32_t rank = 0; rank < t->request.size; rank++) begin_lanes(&t->members[rank]);
  while (run_step(t)) continue;
  for (uint32_t rank = 0; rank < t->request.size; rank++) {
    const member *m = &t->members[rank]; /* what is not done now never is */
    for (size_t i = 0; i < m->schedule->count; i++) EXPECT(m->done[i]);
  }
}

/* ---- Results ------------------------------------------------------------------------------------ */

static uint64_t sum_of(const trial *t, uint64_t i) {
  uint64_t sum = 0;
  for (uint32_t rank = 0; rank < t->request.size; rank++) sum += input_of(rank, i).exact;
  return sum;
}

static uint64_t wanted(const trial *t, uint32_t rank, uint64_t i) {
  const rdt_schedule_request *q = &t->request;
  const uint64_t part = q->count / q->size;
  switch (q->kind) {
    case RDT_ALL_REDUCE:
    case RDT_REDUCE:
      return sum_of(t, i);
    case RDT_REDUCE_SCATTER:
      return sum_of(t, rank * part + i);
    case RDT_ALL_GATHER:
    case RDT_GATHER:
      return input_of((uint32_t)(i / q->count), i % q->count).exact;
    case RDT_BROADCAST:
      return input_of(q->root, i).exact;
    case RDT_SCATTER:
      return input_of(q->root, rank * part + i).exact;
    default:
      return input_of((uint32_t)(i / part), rank * part + i % part).exact;
  }
}

static void check_results(const trial *t) {
  const rdt_schedule_request *q = &t->request;
  const bool reduces =
      q->kind == RDT_ALL_REDUCE || q->kind == RDT_REDUCE_SCATTER || q->kind == RDT_REDUCE;
  const bool rooted = q->kind == RDT_GATHER || q->kind == RDT_REDUCE;
  for (uint32_t rank = 0; rank < q->size; rank++) {
    const element *memory = t->members[rank].memory + t->members[rank].output_at;
    for (uint64_t i = 0; i < t->output_count && !(rooted && rank != q->root); i++) {
      EXPECT(memory[i].exact == wanted(t, rank, i));
      EXPECT(memory[i].completed == (reduces && q->size > 1));
      if (q->kind == RDT_ALL_REDUCE)
        EXPECT(memcmp(&memory[i].rounded, &t->members[0].memory[i].rounded, sizeof(float)) == 0);
    }
    for (uint64_t i = 0; i < t->input_count; i++) {
      const element input = t->members[rank].memory[t->members[rank].input_at + i];
      if (!q->input_is_output) EXPECT(input.exact == input_of(rank, i).exact);
    }
  }
}

static void try_request(const rdt_schedule_request *request, uint64_t seed) {
  trial t = {.request = *request, .random = seed * 2 + 1};
  set_up(&t);
  for (uint32_t rank = 0; rank < request->size; rank++) check_schedule(&t, &t.members[rank], rank);
  match_all(&t);
  run(&t);
  check_results(&t);
  tear_down(&t);
}

/* ---- What is tried ------------------------------------------------------------------------------ */

static uint32_t host_of(uint32_t pattern, uint32_t rank, uint64_t *random) {
  switch (pattern) {
    case 0:
      return 7; /* all on one */
    case 1:
      return rank;
    case 2:
      return rank / 2;
    case 3:
      return rank % 3;
    case 4:
      return rank == 1;
    default:
      return (uint32_t)(next_random(random) % 3);
  }
}
#define PATTERNS 6u

static uint64_t trials;

#define TREES_MOST (4 * MEMBERS_MOST)

/* Trees of random shapes: each member hangs below one that the tree has already. */
static rdt_trees *random_trees(const rdt_schedule_request *q, const uint32_t *hosts,
                               uint64_t *random) {
  static uint32_t parents[TREES_MOST][MEMBERS_MOST];
  rdt_group_tree given[TREES_MOST];
  const bool parts = q->kind == RDT_ALL_GATHER || q->kind == RDT_REDUCE_SCATTER;
  const size_t least = parts ? q->size : 1, count = least + next_random(random) % (2 * least + 1);
  for (size_t i = 0; i < count; i++) {
    uint32_t order[MEMBERS_MOST] = {0};
    for (uint32_t k = 1; k < q->size; k++) {
      const uint32_t at = (uint32_t)(next_random(random) % (k + 1));
      order[k] = order[at];
      order[at] = k;
    }
    const uint32_t root = parts                      ? (uint32_t)(i % q->size)
                          : q->kind == RDT_BROADCAST ? q->root
                                                     : order[0];
    for (uint32_t k = 0; k < q->size; k++)
      if (order[k] == root) order[k] = order[0];
    order[0] = parents[i][root] = root;
    for (uint32_t k = 1; k < q->size; k++) parents[i][order[k]] = order[next_random(random) % k];
    given[i] = (rdt_group_tree){q->kind, root, 1 + next_random(random) % 1000, parents[i]};
  }
  rdt_trees *trees;
  EXPECT_STATUS(RDT_OK, rdt_trees_make(given, count, NULL, q->size, hosts, &trees));
  return trees;
}

static void try_everywhere(rdt_schedule_request *q, uint64_t seed) {
  uint32_t hosts[MEMBERS_MOST];
  uint64_t random = seed;
  const uint32_t pattern = (uint32_t)(next_random(&random) % PATTERNS);
  for (uint32_t rank = 0; rank < q->size; rank++) hosts[rank] = host_of(pattern, rank, &random);
  q->hosts = hosts;
  q->root = (uint32_t)(next_random(&random) % q->size);
  q->input_is_output = next_random(&random) % 2;
  rdt_trees *trees = NULL;
  if (q->algorithm == RDT_ALGORITHM_TREES && q->kind < RDT_ALL_TO_ALL)
    q->trees = trees = random_trees(q, hosts, &random);
  try_request(q, random);
  rdt_trees_free(trees);
  trials++;
}

static void try_all(uint32_t size, uint64_t count, uint64_t chunk, uint64_t seed) {
  for (rdt_collective_kind kind = RDT_ALL_REDUCE; kind < RDT_BARRIER; kind++) {
    const bool parts = kind == RDT_REDUCE_SCATTER || kind == RDT_ALL_TO_ALL || kind == RDT_SCATTER;
    for (rdt_algorithm a = RDT_ALGORITHM_FLAT; a < RDT_ALGORITHM_COUNT; a++) {
      rdt_schedule_request q = {.kind = kind, .algorithm = a, .size = size, .chunk = chunk};
      q.count = parts ? count * size : count;
      try_everywhere(&q, ++seed);
    }
  }
}

static void test_small(void) {
  static const uint64_t counts[] = {0, 1, 2, 3, 5, 8, 13, 29};
  static const uint64_t chunks[] = {0, 1, 3};
  uint64_t seed = 1;
  for (uint32_t size = 1; size <= 9; size++) {
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
      for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
        for (int again = 0; again < 2; again++) try_all(size, counts[c], chunks[k], seed += 1000);
      }
    }
  }
}

static void test_large(void) {
  uint64_t random = 99;
  for (int i = 0; i < 12; i++) {
    const uint32_t size = 1 + (uint32_t)(next_random(&random) % MEMBERS_MOST);
    const uint64_t count = next_random(&random) % 600, chunk = next_random(&random) % 200;
    try_all(size, count, chunk, next_random(&random) | 1);
  }
}

int main(void) {
  test_small();
  test_large();
  printf("%llu schedules\n", (unsigned long long)trials);
  return 0;
}
