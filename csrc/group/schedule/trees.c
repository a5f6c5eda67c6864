/* SPDX-License-Identifier: Apache-2.0 */
#include "group/schedule/trees.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define TREES_MOST 65536u
/* Messages that one round of a tree waits for: an offer, the bytes, and their acknowledgement. */
#define ROUND_LATENCIES 3.0
#define CHUNKS_MOST 1024.0
#define CHUNK_LEAST 16384.0 /* bytes */
#define UNLINKED_NS 1e3     /* each byte between members without a link: never the cheapest way */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 32;
}

/* Counts each member's edges to the root. Returns false if a way does not lead there. */
static bool measure_depths(const uint32_t *parents, uint32_t size, uint32_t root, uint32_t *depths,
                           uint32_t *levels) {
  *levels = 0;
  for (uint32_t rank = 0; rank < size; rank++) {
    uint32_t at = rank, depth = 0;
    while (at != root) {
      if (depth == size || parents[at] >= size) return false;
      at = parents[at];
      depth++;
    }
    depths[rank] = depth;
    if (depth > *levels) *levels = depth;
  }
  return parents[root] == root;
}

static bool has_trees(rdt_collective_kind kind) {
  return kind >= RDT_ALL_REDUCE && kind <= RDT_BROADCAST;
}

static rdt_status add(rdt_trees *trees, size_t i, const rdt_group_tree *given) {
  const uint32_t size = trees->size;
  uint32_t *parents = trees->numbers + 2 * i * size, *depths = parents + size;
  rdt_tree *tree = &trees->trees[i];
  if (!has_trees(given->kind))
    return rdt_fail(RDT_ERR_INVALID, "tree %zu: there are no trees for operations of kind %d", i,
                    (int)given->kind);
  if (given->root >= size || given->rate == 0 || given->parents == NULL)
    return rdt_fail(RDT_ERR_INVALID, "tree %zu needs a root below %u, a rate above 0 and parents",
                    i, size);
  memcpy(parents, given->parents, size * sizeof *parents);
  *tree = (rdt_tree){.kind = given->kind,
                     .root = given->root,
                     .rate = given->rate,
                     .parents = parents,
                     .depths = depths};
  if (!measure_depths(parents, size, given->root, depths, &tree->levels))
    return rdt_fail(RDT_ERR_INVALID,
                    "tree %zu: the parents do not lead every member to the root %u", i,
                    given->root);
  trees->hash = mix(mix(mix(trees->hash, given->kind), given->root), given->rate);
  for (uint32_t rank = 0; rank < size; rank++) trees->hash = mix(trees->hash, parents[rank]);
  return RDT_OK;
}

/* Every member is the root of a part, or nobody is. */
static rdt_status check_roots(const rdt_trees *trees, rdt_collective_kind kind) {
  uint32_t roots = 0;
  for (uint32_t root = 0; root < trees->size; root++) {
    bool found = false;
    for (size_t i = 0; i < trees->count && !found; i++)
      found = trees->trees[i].kind == kind && trees->trees[i].root == root;
    roots += found;
  }
  return roots == 0 || roots == trees->size
             ? RDT_OK
             : rdt_fail(RDT_ERR_INVALID,
                        "only %u of %u members are roots of trees for operations of kind %d", roots,
                        trees->size, (int)kind);
}

static void note_slowest(double *slowest, double byte_ns) {
  const double cost = byte_ns > 0 ? byte_ns : UNLINKED_NS;
  if (cost > *slowest) *slowest = cost;
}

static rdt_status note_pairs(rdt_trees *trees, const double *pair_ns, const uint32_t *hosts) {
  const uint32_t size = trees->size;
  for (uint32_t from = 0; from < size; from++) {
    for (uint32_t to = 0; to < size; to++) {
      const double byte_ns = pair_ns[(size_t)from * size + to];
      const int pair = hosts[from] != hosts[to];
      if (from == to) continue;
      if (!(byte_ns >= 0 && byte_ns <= DBL_MAX))
        return rdt_fail(RDT_ERR_INVALID, "the cost of a byte from member %u to %u is no number",
                        from, to);
      trees->hash = mix(trees->hash, (uint64_t)(byte_ns * 1e6));
      note_slowest(&trees->byte_ns[pair], byte_ns);
      if (to == (from + 1) % size) note_slowest(&trees->ring_ns[pair], byte_ns);
    }
  }
  return RDT_OK;
}

rdt_status rdt_trees_make(const rdt_group_tree *given, size_t count, const double *pair_ns,
                          uint32_t size, const uint32_t *hosts, rdt_trees **trees_out) {
  if (count > TREES_MOST || (count > 0 && given == NULL))
    return rdt_fail(RDT_ERR_INVALID, "%zu trees: a group has at most %u, and they must not be NULL",
                    count, TREES_MOST);
  rdt_trees *trees = calloc(1, sizeof *trees + count * sizeof *trees->trees);
  if (trees) trees->numbers = calloc(2 * count * size + 1, sizeof *trees->numbers);
  rdt_status status = trees && trees->numbers ? RDT_OK : RDT_ERR_NO_MEMORY;
  if (status != RDT_OK) {
    free(trees);
    return rdt_fail(status, "no memory for %zu trees", count);
  }
  trees->count = count;
  trees->size = size;
  for (size_t i = 0; i < count && status == RDT_OK; i++) status = add(trees, i, &given[i]);
  if (status == RDT_OK) status = check_roots(trees, RDT_ALL_GATHER);
  if (status == RDT_OK) status = check_roots(trees, RDT_REDUCE_SCATTER);
  if (status == RDT_OK && pair_ns) status = note_pairs(trees, pair_ns, hosts);
  if (status != RDT_OK) {
    rdt_trees_free(trees);
    return status;
  }
  *trees_out = trees;
  return RDT_OK;
}

void rdt_trees_free(rdt_trees *trees) {
  if (trees == NULL) return;
  free(trees->numbers);
  free(trees);
}

bool rdt_tree_serves(const rdt_tree *tree, rdt_collective_kind kind, uint32_t root) {
  return tree->kind == kind && (kind != RDT_BROADCAST || tree->root == root);
}

bool rdt_trees_serve(const rdt_trees *trees, rdt_collective_kind kind, uint32_t root) {
  for (size_t i = 0; trees && i < trees->count; i++)
    if (rdt_tree_serves(&trees->trees[i], kind, root)) return true;
  return false;
}

/* A tree's way through an operation. */
typedef struct trip {
  double whole_ns; /* to move all bytes over one edge */
  double bytes;    /* of the tree with the most */
  double rounds;   /* until the first piece has arrived everywhere */
  double strands;  /* whose pieces are under way at the same time */
  double round_ns; /* what a round costs beside the bytes */
} trip;

static trip trip_of(const rdt_trees *trees, const rdt_group_costs *costs, rdt_collective_kind kind,
                    uint32_t root, uint64_t bytes) {
  const bool parts = kind == RDT_ALL_GATHER || kind == RDT_REDUCE_SCATTER;
  const double share = kind == RDT_REDUCE_SCATTER ? (double)bytes / trees->size : (double)bytes;
  double sum = 0, most = 0, slowest = 0;
  uint32_t levels = 1;
  for (uint32_t owner = 0; owner < (parts ? trees->size : 1); owner++) {
    sum = most = 0;
    for (size_t i = 0; i < trees->count; i++) {
      const rdt_tree *tree = &trees->trees[i];
      if (!rdt_tree_serves(tree, kind, root) || (parts && tree->root != owner)) continue;
      sum += (double)tree->rate;
      if ((double)tree->rate > most) most = (double)tree->rate;
      if (tree->levels > levels) levels = tree->levels;
    }
    if (1 / sum > slowest) slowest = 1 / sum;
  }
  const double remote = costs->latency_ns[RDT_PAIR_REMOTE];
  trip found = {share * slowest * 1e9, share * most / sum,
                kind == RDT_ALL_REDUCE ? 2.0 * levels : levels,
                kind == RDT_REDUCE_SCATTER ? 1.0 : RDT_TREE_STRANDS,
                ROUND_LATENCIES * (remote > 0 ? remote : costs->latency_ns[RDT_PAIR_LOCAL])};
  if (kind == RDT_ALL_REDUCE || kind == RDT_REDUCE_SCATTER) {
    const double reduction = costs->reduce_byte_ns * (double)bytes;
    if (reduction > found.whole_ns) found.whole_ns = reduction;
  }
  return found;
}

/* In a round each strand moves a piece. It takes the time of one piece with its messages, or that of all strands' bytes. */
static double time_of(const trip *way, double pieces) {
  const double strands = pieces < way->strands ? pieces : way->strands;
  const double piece_ns = way->whole_ns / pieces;
  double round_ns = way->round_ns + piece_ns;
  if (round_ns < strands * piece_ns) round_ns = strands * piece_ns;
  return (way->rounds + pieces / strands - 1) * round_ns;
}

/* The number of pieces that ends soonest: more of them fill the tree sooner, but cost more messages. */
static double pieces_of(const trip *way) {
  double best = 1;
  for (double pieces = 2; pieces <= CHUNKS_MOST && way->bytes / pieces >= CHUNK_LEAST; pieces *= 2)
    if (time_of(way, pieces) < time_of(way, best)) best = pieces;
  return best;
}

uint64_t rdt_trees_chunk(const rdt_trees *trees, const rdt_group_costs *costs,
                         rdt_collective_kind kind, uint32_t root, uint64_t bytes) {
  const trip way = trip_of(trees, costs, kind, root, bytes);
  return (uint64_t)(way.bytes / pieces_of(&way)) + 1;
}

static double predict(const rdt_trees *trees, const rdt_group_costs *costs,
                      rdt_collective_kind kind, uint32_t root, uint64_t bytes) {
  const trip way = trip_of(trees, costs, kind, root, bytes);
  return time_of(&way, pieces_of(&way));
}

/* What the links tell about pairs counts for the other algorithms too: the slowest one holds them up. */
static rdt_group_costs with_links(const rdt_group_costs *costs, const double *slowest) {
  rdt_group_costs adjusted = *costs;
  for (int pair = 0; pair < 2; pair++)
    if (slowest[pair] > 0) adjusted.byte_ns[pair] = slowest[pair];
  return adjusted;
}

rdt_algorithm rdt_trees_choose(const rdt_trees *trees, const rdt_group_costs *costs,
                               rdt_collective_kind kind, uint32_t root, uint64_t bytes,
                               uint32_t size, const uint32_t *hosts) {
  if (!rdt_trees_serve(trees, kind, root))
    return rdt_group_costs_choose(costs, kind, bytes, size, hosts);
  const rdt_group_costs all = with_links(costs, trees->byte_ns);
  const rdt_group_costs ring = with_links(costs, trees->ring_ns);
  rdt_algorithm best = rdt_group_costs_choose(&all, kind, bytes, size, hosts);
  double least = rdt_group_costs_predict(&all, kind, best, bytes, size, hosts);
  const double round = rdt_group_costs_predict(&ring, kind, RDT_ALGORITHM_RING, bytes, size, hosts);
  if (round < least) {
    best = RDT_ALGORITHM_RING;
    least = round;
  }
  return predict(trees, costs, kind, root, bytes) < least ? RDT_ALGORITHM_TREES : best;
}
