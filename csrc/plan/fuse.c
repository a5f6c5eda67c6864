/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which tensors one operation sends, and one receives: those that become ready together,
 * are small, and certainly have a value, because such an operation sends all of them or none. What
 * makes groups safe (order.c) makes operations safe too: an operation waits for tensors of lower
 * levels only.
 */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/plan.h"

const char *rdt_plan_alone_text(rdt_plan_alone alone) {
  static const char *const texts[] = {
      [RDT_PLAN_ALONE_NOT] = "",
      [RDT_PLAN_ALONE_OFF] = "FUSE_BYTES is 0",
      [RDT_PLAN_ALONE_SIZE] = "it is not static, empty, or larger than 64 KiB",
      [RDT_PLAN_ALONE_LOOP] = "it is sent in a loop",
      [RDT_PLAN_ALONE_BRANCH] = "it comes after a condition",
      [RDT_PLAN_ALONE_WAITS] = "it depends on a feed, a loop or another node that may wait",
      [RDT_PLAN_ALONE_LAST] = "no other tensor becomes ready together with it",
      [RDT_PLAN_ALONE_DEVICE] = "it leaves or enters memory other than the host's",
  };
  size_t row = (size_t)alone;
  return row < sizeof(texts) / sizeof(texts[0]) ? texts[row] : "";
}

static rdt_plan_alone why_alone(const plan_entry *entry, const rdt_plan_options *options) {
  const rdt_plan_edge *edge = entry->edge;
  if (options->fuse_bytes == 0) return RDT_PLAN_ALONE_OFF;
  if (edge->flags & RDT_EDGE_DEVICE_MEMORY) return RDT_PLAN_ALONE_DEVICE;
  if (edge->flags & RDT_EDGE_LOOP) return RDT_PLAN_ALONE_LOOP;
  if (edge->order.may_die) return RDT_PLAN_ALONE_BRANCH;
  if (edge->order.ready < 0) return RDT_PLAN_ALONE_WAITS;
  if (entry->place.plan_class != RDT_PLAN_STATIC || entry->stride == 0 ||
      entry->place.bytes > PLAN_OPERATION_MEMBER_BYTES)
    return RDT_PLAN_ALONE_SIZE;
  return RDT_PLAN_ALONE_NOT;
}

static int by_way(const rdt_plan_edge *x, const rdt_plan_edge *y) {
  if (x->source != y->source) return x->source < y->source ? -1 : 1;
  if (x->destination != y->destination) return x->destination < y->destination ? -1 : 1;
  return (x->order.ready > y->order.ready) - (x->order.ready < y->order.ready);
}

static int by_way_and_name(const void *a, const void *b) {
  const rdt_plan_edge *x = ((const plan_entry *)a)->edge, *y = ((const plan_entry *)b)->edge;
  int order = by_way(x, y);
  return order ? order : strcmp(x->name, y->name);
}

/* Returns how many of the `count` sorted entries share an operation with the first. */
static size_t members_from(const plan_entry *entries, size_t count) {
  uint64_t bytes = entries[0].stride;
  size_t members = 1;
  while (members < count && by_way(entries[0].edge, entries[members].edge) == 0 &&
         bytes + entries[members].stride <= PLAN_OPERATION_BYTES)
    bytes += entries[members++].stride;
  return members;
}

static void number_operations(plan_entry *entries, size_t count, const rdt_plan_edge *edges,
                              rdt_plan_fusion *fusions) {
  int32_t operation = 0;
  for (size_t at = 0; at < count;) {
    size_t members = members_from(entries + at, count - at);
    rdt_plan_fusion fusion = {operation, RDT_PLAN_ALONE_NOT};
    if (members == 1)
      fusion = (rdt_plan_fusion){-1, RDT_PLAN_ALONE_LAST};
    else
      operation++;
    for (size_t i = 0; i < members; i++) fusions[entries[at + i].edge - edges] = fusion;
    at += members;
  }
}

rdt_status rdt_plan_fuse(const rdt_plan_edge *edges, size_t edge_count,
                         const rdt_plan_options *options, rdt_plan_fusion *fusions) {
  if (edge_count && (!edges || !fusions))
    return rdt_fail(RDT_ERR_INVALID, "no edges, or no place for the result");
  rdt_status status = plan_check_options(options);
  for (size_t i = 0; status == RDT_OK && i < edge_count; i++)
    status = plan_check_edge(&edges[i], i);
  if (status != RDT_OK) return status;
  plan_entry *entries = calloc(edge_count + 1, sizeof(*entries));
  if (!entries) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left to fuse operations");
  size_t count = 0;
  for (size_t i = 0; i < edge_count; i++) {
    entries[count] = (plan_entry){.edge = &edges[i]};
    plan_classify(&entries[count], options);
    fusions[i] = (rdt_plan_fusion){-1, why_alone(&entries[count], options)};
    if (fusions[i].alone == RDT_PLAN_ALONE_NOT) count++;
  }
  qsort(entries, count, sizeof(*entries), by_way_and_name);
  number_operations(entries, count, edges, fusions);
  free(entries);
  return RDT_OK;
}
