/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives a group its trees. Two barriers make sure that all members have the same, and that nobody goes on before
 * all have them.
 */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "group/run/run.h"

/* Waits for all members, which must say the same. */
static rdt_status agree(rdt_group *group, const char *what, int timeout_ms) {
  const rdt_collective call = {
      .struct_size = sizeof call, .kind = RDT_BARRIER, .timeout_ms = timeout_ms, .detail = what};
  return rdt_group_run(group, &call);
}

static void install(rdt_group *group, rdt_trees *trees) {
  pthread_mutex_lock(&group->lock);
  rdt_trees *before = group->trees;
  group->trees = trees;
  rdt_group_programs_clear(&group->programs);
  pthread_mutex_unlock(&group->lock);
  rdt_trees_free(before);
}

rdt_status rdt_group_use_trees(rdt_group *group, const rdt_group_tree *given, size_t count,
                               const double *pair_ns, int timeout_ms) {
  if (!group) return rdt_fail(RDT_ERR_INVALID, "group must not be NULL");
  char what[128], reason[RDT_GROUP_REASON];
  rdt_trees *trees = NULL;
  rdt_status status = rdt_device_check(group->device);
  if (status == RDT_OK)
    status = rdt_trees_make(given, count, pair_ns, group->size, group->hosts, &trees);
  if (status != RDT_OK) { /* the others wait */
    snprintf(reason, sizeof reason, "%s", rdt_last_error());
    snprintf(what, sizeof what, "unusable trees: %.100s", reason);
    agree(group, what, timeout_ms);
    return rdt_fail(status, "%s", reason);
  }
  snprintf(what, sizeof what, "%zu trees, %016llx", count, (unsigned long long)trees->hash);
  status = agree(group, what, timeout_ms);
  if (status != RDT_OK) {
    rdt_trees_free(trees);
    return status;
  }
  if (count == 0) {
    rdt_trees_free(trees);
    trees = NULL;
  }
  install(group, trees);
  return agree(group, "trees are installed", timeout_ms);
}

rdt_algorithm rdt_group_trees_choose(const rdt_group *group, rdt_collective_kind kind,
                                     uint64_t bytes) {
  pthread_mutex_t *lock = (pthread_mutex_t *)&group->lock;
  pthread_mutex_lock(lock);
  const rdt_algorithm best =
      rdt_trees_choose(group->trees, &group->costs, kind, 0, bytes, group->size, group->hosts);
  pthread_mutex_unlock(lock);
  return best;
}
