/* SPDX-License-Identifier: Apache-2.0
 *
 * The placed graph, as order.c reads it and lifetimes.c searches it.
 */
#ifndef RDT_PLAN_ORDER_H
#define RDT_PLAN_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* Properties of a node (bits). */
typedef enum plan_mark {
  PLAN_LOOP = 1,  /* runs more than once, or lies on or behind a cycle */
  PLAN_WAITS = 2, /* it or an ancestor may wait for something that is not its input, or is a loop */
  PLAN_DIES = 4,  /* it or an ancestor is a branch */
} plan_mark;

typedef struct plan_graph {
  const rdt_plan_node *nodes;
  size_t node_count, arc_count;
  size_t *starts;   /* node_count + 1: successors of n are next[starts[n]] .. next[starts[n+1]-1] */
  uint32_t *next;   /* arc_count */
  uint32_t *sorted; /* nodes that are on no cycle and behind none, each after its predecessors */
  size_t sorted_count; /* at most node_count */
  int32_t *level;      /* most arcs between tasks on any path to the node */
  int32_t *depth;      /* most nodes that take time on any path to it, itself included */
  uint8_t *marks;      /* plan_mark */
} plan_graph;

/* Sets `last` of every use whose `first` is set; see rdt_plan_order. RDT_ERR_NO_MEMORY. */
rdt_status plan_find_last(const plan_graph *graph, const rdt_plan_use *uses, size_t use_count,
                          rdt_plan_order *orders);

#endif
