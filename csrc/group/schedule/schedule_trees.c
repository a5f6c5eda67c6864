/* SPDX-License-Identifier: Apache-2.0
 *
 * TREES: each spanning tree carries a share of the data, piece by piece. A piece moves one level in a round,
 * while others move on other levels. Pieces of a tree take turns on several strands, each a lane: while the
 * messages of one strand's round are under way, another one has the link.
 */
#include <stdlib.h>

#include "base/status.h"
#include "group/schedule/schedule_algorithms.h"
#include "group/schedule/trees.h"

#define PIECES_MOST 1024u

/* What one strand of a tree does with the tree's share. */
typedef struct branch {
  const rdt_tree *tree;
  rdt_schedule_range range;
  uint32_t pieces, first,
      every;              /* of the tree; the strand's first one, and the distance to its next */
  uint32_t levels, depth; /* depth: of this member */
  bool root, leaf;
  uint64_t scratch; /* where its elements of scratch begin */
} branch;

/* Whether trees of other roots share the same data. */
static bool by_root(rdt_collective_kind kind) {
  return kind == RDT_ALL_GATHER || kind == RDT_REDUCE_SCATTER;
}

/* Returns the tree's share of the range. Shares end where the sums of rates do. `pieces` gets into how many pieces it is
 * cut: as many as the largest share, because a small share crosses slow links, where a large piece would take long. */
static rdt_schedule_range share_of(const rdt_schedule_builder *b, const rdt_tree *tree,
                                   rdt_schedule_range range, uint32_t *pieces) {
  const rdt_schedule_request *q = b->request;
  uint64_t before = 0, all = 0, most = 0;
  for (size_t i = 0; i < q->trees->count; i++) {
    const rdt_tree *each = &q->trees->trees[i];
    if (!rdt_tree_serves(each, q->kind, q->root) || (by_root(q->kind) && each->root != tree->root))
      continue;
    if (each < tree) before += each->rate;
    if (each->rate > most) most = each->rate;
    all += each->rate;
  }
  const double part = (double)range.count / (double)all;
  const uint64_t begin = (uint64_t)((double)before * part);
  const uint64_t end =
      before + tree->rate == all ? range.count : (uint64_t)((double)(before + tree->rate) * part);
  *pieces = rdt_schedule_chunks(b, (uint64_t)((double)most * part), PIECES_MOST);
  return (rdt_schedule_range){range.at + begin, end > begin ? end - begin : 0};
}

static bool is_child(const rdt_tree *tree, uint32_t rank, uint32_t other) {
  return other != tree->root && tree->parents[other] == rank;
}

static branch begin(const rdt_schedule_builder *b, const rdt_tree *tree, rdt_schedule_range range,
                    uint32_t strand, uint32_t strands) {
  const uint32_t rank = b->request->rank;
  branch at = {.tree = tree,
               .first = strand,
               .every = strands,
               .levels = tree->levels,
               .depth = tree->depths[rank],
               .root = tree->root == rank,
               .leaf = true};
  at.range = share_of(b, tree, range, &at.pieces);
  for (uint32_t other = 0; other < b->request->size; other++)
    if (is_child(tree, rank, other)) at.leaf = false;
  return at;
}

/* Returns the strand's piece that is `rounds` rounds under way; empty if there is none. */
static rdt_schedule_range piece_at(const branch *at, int64_t rounds) {
  const int64_t piece = at->first + rounds * at->every;
  return rounds < 0 || piece >= at->pieces
             ? (rdt_schedule_range){at->range.at, 0}
             : rdt_schedule_part(at->range, at->pieces, (uint64_t)piece);
}

/* Returns the rounds until the strand's last piece has passed so many levels. */
static int64_t rounds_of(const branch *at, int64_t levels) {
  return (at->pieces + at->every - 1) / at->every + levels;
}

static void send_down(rdt_schedule_builder *b, const branch *at, rdt_group_place from,
                      uint64_t count) {
  for (uint32_t other = 0; other < b->request->size; other++)
    if (is_child(at->tree, b->request->rank, other)) rdt_schedule_send(b, other, from, count);
}

/* Adds what the children send to `with`. */
static void reduce_up(rdt_schedule_builder *b, const branch *at, rdt_group_place with,
                      rdt_group_place to, uint64_t count) {
  uint32_t last = 0;
  for (uint32_t other = 0; other < b->request->size; other++)
    if (is_child(at->tree, b->request->rank, other)) last = other;
  for (uint32_t other = 0; other <= last; other++) {
    if (!is_child(at->tree, b->request->rank, other)) continue;
    rdt_schedule_reduce(b, other, with, to, count, at->root && other == last);
    with = to;
  }
}

/* The n-th tree of the operation. */
static const rdt_tree *tree_of(const rdt_schedule_builder *b, uint32_t n) {
  const rdt_schedule_request *q = b->request;
  for (size_t i = 0; i < q->trees->count; i++)
    if (rdt_tree_serves(&q->trees->trees[i], q->kind, q->root) && n-- == 0)
      return &q->trees->trees[i];
  return NULL;
}

/* The strand that is this lane's. */
static branch begin_lane(const rdt_schedule_builder *b, rdt_schedule_range range) {
  return begin(b, tree_of(b, b->lane / RDT_TREE_STRANDS), range, b->lane % RDT_TREE_STRANDS,
               RDT_TREE_STRANDS);
}

/* The root's elements go to the output from `output` on. */
static void list_down(rdt_schedule_builder *b, const branch *at, uint64_t output) {
  const uint32_t parent = at->tree->parents[b->request->rank];
  const int64_t rounds = rounds_of(at, at->levels);
  for (int64_t t = 0; t < rounds; t++) {
    const rdt_schedule_range sent = piece_at(at, t - at->depth);
    const rdt_schedule_range received = piece_at(at, t + 1 - at->depth);
    const rdt_group_place in = rdt_schedule_input(sent.at),
                          out = rdt_schedule_output(output + sent.at);
    b->round = (uint32_t)t;
    send_down(b, at, at->root ? in : out, sent.count);
    if (at->root && !b->request->input_is_output) rdt_schedule_copy(b, in, out, sent.count);
    if (!at->root)
      rdt_schedule_receive(b, parent, rdt_schedule_output(output + received.at), received.count);
  }
}

void rdt_schedule_trees_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const branch at = begin_lane(b, range);
  rdt_schedule_cut(b, 0);
  list_down(b, &at, 0);
}

void rdt_schedule_trees_all_gather(rdt_schedule_builder *b, rdt_schedule_range range) {
  const branch at = begin_lane(b, range);
  rdt_schedule_cut(b, 0);
  list_down(b, &at, at.tree->root * b->request->count);
}

/* A piece climbs to the root, and then descends behind others that still climb. */
void rdt_schedule_trees_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  const branch at = begin_lane(b, range);
  const uint32_t parent = at.tree->parents[b->request->rank];
  const int64_t up = (int64_t)at.levels - at.depth, down = (int64_t)at.levels + at.depth;
  rdt_schedule_cut(b, 0);
  for (int64_t t = 0; t < rounds_of(&at, 2 * (int64_t)at.levels); t++) {
    const rdt_schedule_range rises = piece_at(&at, t - up), sum = piece_at(&at, t - up + 1);
    const rdt_schedule_range falls = piece_at(&at, t - down),
                             received = piece_at(&at, t - down + 1);
    b->round = (uint32_t)t;
    if (!at.root)
      rdt_schedule_send(b, parent,
                        at.leaf ? rdt_schedule_input(rises.at) : rdt_schedule_output(rises.at),
                        rises.count);
    send_down(b, &at, rdt_schedule_output(falls.at), falls.count);
    reduce_up(b, &at, rdt_schedule_input(sum.at), rdt_schedule_output(sum.at), sum.count);
    if (!at.root) rdt_schedule_receive(b, parent, rdt_schedule_output(received.at), received.count);
  }
}

/* One round of a tree. Sums alternate between two places in scratch; in place, the root's wait there until
 * nobody reads its input. */
static void list_up(rdt_schedule_builder *b, const branch *at, int64_t t) {
  const rdt_schedule_request *q = b->request;
  const uint64_t input = at->tree->root * (q->count / q->size);
  const uint64_t longest = rdt_schedule_part(at->range, at->pieces, 0).count, scratch = at->scratch;
  const int64_t up = (int64_t)at->levels - at->depth, sent = t - up;
  const rdt_schedule_range rises = piece_at(at, sent), sum = piece_at(at, sent + 1);
  const rdt_group_place result = q->input_is_output
                                     ? rdt_schedule_scratch(scratch + sum.at - at->range.at)
                                     : rdt_schedule_output(sum.at);
  if (!at->root)
    rdt_schedule_send(b, at->tree->parents[q->rank],
                      at->leaf ? rdt_schedule_input(input + rises.at)
                               : rdt_schedule_scratch(scratch + (uint64_t)(sent & 1) * longest),
                      rises.count);
  reduce_up(
      b, at, rdt_schedule_input(input + sum.at),
      at->root ? result : rdt_schedule_scratch(scratch + (uint64_t)((sent + 1) & 1) * longest),
      sum.count);
}

/* Returns the elements of scratch that this member needs for the tree. */
static uint64_t scratch_of(const rdt_schedule_builder *b, const branch *at) {
  if (at->root) return b->request->input_is_output ? at->range.count : 0;
  return at->leaf ? 0 : 2 * rdt_schedule_part(at->range, at->pieces, 0).count;
}

/* All trees share one lane, because in place a result replaces input that trees of rank 0 read. */
void rdt_schedule_trees_reduce_scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  const bool in_place = b->request->input_is_output;
  int64_t rounds = 0;
  uint32_t count = 0;
  while (tree_of(b, count) != NULL) count++;
  branch *branches = calloc(count, sizeof *branches);
  if (branches == NULL) {
    b->status = rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a schedule");
    return;
  }
  rdt_schedule_cut(b, 0);
  uint64_t scratch = 0;
  for (uint32_t n = 0; n < count; n++) {
    branch *at = &branches[n];
    *at = begin(b, tree_of(b, n), range, 0, 1);
    at->scratch = scratch;
    scratch += scratch_of(b, at);
    if (rounds_of(at, at->levels) > rounds) rounds = rounds_of(at, at->levels);
  }
  rdt_schedule_need_scratch(b, scratch);
  for (int64_t t = 0; t < rounds; t++) {
    b->round = (uint32_t)t;
    for (uint32_t n = 0; n < count; n++) list_up(b, &branches[n], t);
  }
  b->round++;
  for (const branch *at = branches; in_place && at < branches + count; at++)
    if (at->root)
      rdt_schedule_copy(b, rdt_schedule_scratch(at->scratch), rdt_schedule_output(at->range.at),
                        at->range.count);
  free(branches);
}

uint32_t rdt_schedule_trees_lanes(const rdt_schedule_request *request) {
  uint32_t lanes = 0;
  for (size_t i = 0; i < request->trees->count; i++)
    lanes += rdt_tree_serves(&request->trees->trees[i], request->kind, request->root);
  return request->kind == RDT_REDUCE_SCATTER ? 1 : lanes * RDT_TREE_STRANDS;
}
