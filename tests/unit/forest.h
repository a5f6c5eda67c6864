/* SPDX-License-Identifier: Apache-2.0
 *
 * Random spanning trees for a group: of every kind, from every root. Equal seeds give equal trees.
 */
#ifndef RDT_TESTS_FOREST_H
#define RDT_TESTS_FOREST_H

#include <stdlib.h>

#include "rdmatensor/group.h"

#define FOREST_MEMBERS 5u
#define FOREST_KINDS 4u
#define FOREST_EACH 2u /* trees of a kind from a root, at most */
#define FOREST_TREES (FOREST_KINDS * FOREST_MEMBERS * FOREST_EACH)

typedef struct forest {
  size_t count;
  rdt_group_tree trees[FOREST_TREES];
  uint32_t parents[FOREST_TREES][FOREST_MEMBERS];
} forest;

/* Members join the tree in a random order, each below one that is in it. */
static inline void forest_add(forest *f, uint32_t size, rdt_collective_kind kind, uint32_t root,
                              unsigned *seed) {
  uint32_t order[FOREST_MEMBERS], *parents = f->parents[f->count];
  for (uint32_t i = 0; i < size; i++) order[i] = i;
  order[0] = root;
  order[root] = 0;
  parents[root] = root;
  for (uint32_t i = 1; i < size; i++) {
    const uint32_t other = i + (uint32_t)rand_r(seed) % (size - i), rank = order[other];
    order[other] = order[i];
    order[i] = rank;
    parents[rank] = order[(uint32_t)rand_r(seed) % i];
  }
  f->trees[f->count++] = (rdt_group_tree){
      .kind = kind, .root = root, .rate = 1 + (uint64_t)rand_r(seed) % 100, .parents = parents};
}

static inline void forest_grow(forest *f, uint32_t size, unsigned seed) {
  f->count = 0;
  for (int kind = RDT_ALL_REDUCE; kind <= RDT_BROADCAST; kind++)
    for (uint32_t root = 0; root < size; root++)
      for (uint32_t n = 1 + (uint32_t)rand_r(&seed) % FOREST_EACH; n > 0; n--)
        forest_add(f, size, (rdt_collective_kind)kind, root, &seed);
}

#endif
