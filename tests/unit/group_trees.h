/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives the members of a group trees, each in a thread of its own.
 */
#ifndef RDT_TESTS_GROUP_TREES_H
#define RDT_TESTS_GROUP_TREES_H

#include "forest.h"
#include "group_members.h"

typedef struct {
  member *member;
  const forest *grown;
  int timeout_ms;
} planter;

static inline void *plant(void *argument) {
  planter *p = argument;
  member *m = p->member;
  m->status = rdt_group_use_trees(m->group, p->grown->trees, p->grown->count, NULL, p->timeout_ms);
  snprintf(m->error, sizeof(m->error), "%s", m->status == RDT_OK ? "" : rdt_last_error());
  return NULL;
}

/* How it ended is in each member's `status` and `error`. */
static inline void use_trees(member *members, uint32_t size, const forest *grown, int timeout_ms) {
  pthread_t threads[MEMBERS];
  planter planters[MEMBERS];
  for (uint32_t i = 0; i < size; i++) {
    planters[i] = (planter){&members[i], grown, timeout_ms};
    pthread_create(&threads[i], NULL, plant, &planters[i]);
  }
  for (uint32_t i = 0; i < size; i++) pthread_join(threads[i], NULL);
}

static inline void expect_trees(member *members, uint32_t size, const forest *grown) {
  use_trees(members, size, grown, PATIENCE_MS);
  for (uint32_t i = 0; i < size; i++) {
    if (members[i].status != RDT_OK) fprintf(stderr, "rank %u: %s\n", i, members[i].error);
    EXPECT_STATUS(RDT_OK, members[i].status);
  }
}

#endif
