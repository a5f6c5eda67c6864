/* SPDX-License-Identifier: Apache-2.0
 *
 * The spanning trees that a group was given, and what operations on them cost. All members have the same.
 */
#ifndef RDT_GROUP_TREES_H
#define RDT_GROUP_TREES_H

#include <stdbool.h>
#include <stddef.h>

#include "group/schedule/costs.h"

/* Strands of a tree, whose pieces they take in turns. */
#define RDT_TREE_STRANDS 4u

typedef struct rdt_tree {
  rdt_collective_kind kind;
  uint32_t root, levels; /* edges from the root to the farthest member */
  uint64_t rate;         /* bytes per second */
  const uint32_t *parents;
  const uint32_t *depths;
} rdt_tree;

typedef struct rdt_trees {
  size_t count;
  uint32_t size;
  uint64_t hash;     /* of everything that the caller gave */
  double byte_ns[2]; /* between the two members whose link is the slowest, by rdt_group_pair; */
  double ring_ns[2]; /* the same for neighbours in a ring; 0: as measured */
  uint32_t *numbers; /* the trees' parents and depths */
  rdt_tree trees[];
} rdt_trees;

/* Checks the arguments of rdt_group_use_trees and copies them. `hosts` as in rdt_schedule_request. The caller
 * frees the result. RDT_ERR_INVALID, RDT_ERR_NO_MEMORY. */
rdt_status rdt_trees_make(const rdt_group_tree *given, size_t count, const double *pair_ns,
                          uint32_t size, const uint32_t *hosts, rdt_trees **trees);
void rdt_trees_free(rdt_trees *trees);

/* Returns true if the tree takes part in operations of this kind from this root (of BROADCAST). */
bool rdt_tree_serves(const rdt_tree *tree, rdt_collective_kind kind, uint32_t root);
/* Returns true if there are trees for such operations. `trees` may be NULL. */
bool rdt_trees_serve(const rdt_trees *trees, rdt_collective_kind kind, uint32_t root);
/* Returns the bytes that the tree with the largest share should carry at a time, for an operation of `bytes` (of input).
 * Other trees carry their shares in as many pieces. */
uint64_t rdt_trees_chunk(const rdt_trees *trees, const rdt_group_costs *costs,
                         rdt_collective_kind kind, uint32_t root, uint64_t bytes);
/* Returns the cheapest algorithm, as rdt_group_costs_choose, but also with trees. */
rdt_algorithm rdt_trees_choose(const rdt_trees *trees, const rdt_group_costs *costs,
                               rdt_collective_kind kind, uint32_t root, uint64_t bytes,
                               uint32_t size, const uint32_t *hosts);

#endif
