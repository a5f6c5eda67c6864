/* SPDX-License-Identifier: Apache-2.0
 *
 * The planner: where every tensor of a dataflow graph will lie, before the first step. rdmatensor.h includes this
 * file, and says what holds for all functions.
 */
#ifndef RDMATENSOR_PLAN_H
#define RDMATENSOR_PLAN_H

#include "rdmatensor/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ways in which a tensor can travel. */
typedef enum rdt_plan_class {
  RDT_PLAN_STATIC = 0,  /* size known: written into its place at the receiver */
  RDT_PLAN_BOUNDED = 1, /* largest size known: the same, with its shape beside it */
  RDT_PLAN_DYNAMIC = 2, /* described, then fetched */
  RDT_PLAN_RPC = 3      /* TensorFlow's own RecvTensor */
} rdt_plan_class;

/* The reasons for which a tensor does not travel in the static way. */
typedef enum rdt_plan_reason {
  RDT_PLAN_BECAUSE_NONE = 0,
  RDT_PLAN_BECAUSE_TYPE = 1,      /* element_size 0: strings, variants, resources */
  RDT_PLAN_BECAUSE_RANK = 2,      /* the rank is unknown */
  RDT_PLAN_BECAUSE_DIMENSION = 3, /* a dimension is unknown, and nothing bounds it */
  RDT_PLAN_BECAUSE_BATCH = 4,     /* only the first dimension is unknown; the batch bounds it */
  RDT_PLAN_BECAUSE_BUDGET = 5,    /* its places would exceed the receiver's budget */
  RDT_PLAN_BECAUSE_SIZE = 6       /* its size exceeds 64 bits */
} rdt_plan_reason;

/* Returns a name, such as "static"; "" for a number outside the table. Static storage. */
RDT_API const char *rdt_plan_class_name(rdt_plan_class plan_class);
/* Returns one clause, such as "the rank is unknown"; "" if there is no reason. Static storage. */
RDT_API const char *rdt_plan_reason_text(rdt_plan_reason reason);

/* A node of the placed graph of all tasks. */
typedef enum rdt_node_flag {
  RDT_NODE_LOOP = 1,   /* runs more than once in a step */
  RDT_NODE_BLOCKS = 2, /* may wait for something that is not its input (queues, fed values) */
  RDT_NODE_FREE = 4,   /* takes no time: variable reads, constants, reshapes */
  RDT_NODE_ANY = 8,    /* runs when one of its inputs came (Merge), not all */
  RDT_NODE_BRANCH = 16 /* may leave what follows it without a value (Switch) */
} rdt_node_flag;

typedef struct rdt_plan_node {
  uint32_t task;
  uint32_t flags;
} rdt_plan_node;

/* `to` runs after `from`, by data or control. Leave out the arcs that close a loop. */
typedef struct rdt_plan_arc {
  uint32_t from, to;
} rdt_plan_arc;

/* One tensor that travels: made by one node, used by nodes of another task. */
typedef struct rdt_plan_use {
  uint32_t producer;
  const uint32_t *consumers;
  size_t consumer_count;
} rdt_plan_use;

typedef struct rdt_plan_order {
  int32_t ready; /* tensors of one link with the same value >= 0 become ready together, and none
                    needs another one's arrival; -1: not known */
  int32_t first; /* a tensor of the same link whose `first` is greater than this one's `last` is */
  int32_t last;  /* made only after all consumers of this one ran; INT32_MAX: never known */
  int32_t may_die; /* 1: it may have no value in a step, because it comes after a branch */
} rdt_plan_order;

/* Finds out what the graph proves about the order of `use_count` tensors, and writes an entry for each into
 * `orders`. Nodes in cycles count as loops. Deterministic; O(nodes + arcs) plus a bounded effort for lifetimes, which are
 * left unknown in graphs too large for it. RDT_ERR_INVALID for an index out of range,
 * RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_plan_find_order(const rdt_plan_node *nodes, size_t node_count,
                                       const rdt_plan_arc *arcs, size_t arc_count,
                                       const rdt_plan_use *uses, size_t use_count,
                                       rdt_plan_order *orders);

typedef enum rdt_edge_flag {
  RDT_EDGE_LOOP = 1,         /* sent more than once in a step */
  RDT_EDGE_DEVICE_MEMORY = 2 /* leaves or enters memory other than the host's */
} rdt_edge_flag;

typedef struct rdt_plan_edge {
  const char *name; /* unique within its link, the pair (source, destination) */
  uint32_t source, destination;
  uint32_t dtype;        /* compared, never interpreted */
  uint32_t element_size; /* bytes; 0: elements are no plain bytes */
  int32_t rank;          /* -1: unknown */
  uint32_t flags;        /* rdt_edge_flag bits */
  const int64_t *dims;   /* `rank` of them; -1: unknown */
  rdt_plan_order order;
} rdt_plan_edge;

typedef struct rdt_plan_options {
  size_t struct_size;        /* sizeof(rdt_plan_options) */
  uint32_t slots;            /* places of each tensor, 1..64 */
  uint32_t loop_slots;       /* places of a tensor sent inside a loop, 1..64 */
  uint64_t batch;            /* bound of an unknown first dimension; 0: none */
  uint64_t fuse_bytes;       /* largest tensor that travels in a group; 0: no groups */
  uint64_t fuse_group_bytes; /* largest group */
  const uint64_t *budgets;   /* bytes of places each task may hold; NULL: no limits */
} rdt_plan_options;

/* Places are rings of equal slots: tensors of one group lie in one slot side by side, tensors of
 * disjoint lifetimes take turns in the same ring. */
typedef struct rdt_plan_place {
  rdt_plan_class plan_class;
  rdt_plan_reason reason;
  uint64_t bytes;  /* size of the tensor, or its bound; 0 when unknown */
  int32_t ring;    /* number within its link; -1: none (not static or bounded, or empty) */
  int32_t group;   /* number within its link of the group it travels in; -1: alone */
  uint64_t offset; /* in the slot */
} rdt_plan_place;

typedef struct rdt_plan_ring {
  uint64_t offset; /* of the first slot in the link's memory, a multiple of 64 */
  uint64_t stride; /* from slot to slot, a multiple of 64 */
  uint32_t slots;
  uint32_t members; /* edges that use it */
} rdt_plan_ring;

typedef struct rdt_plan_link {
  uint32_t source, destination;
  uint64_t bytes; /* of the memory that the destination registers for it */
  uint32_t ring_count, group_count;
  uint64_t hash; /* of its edges and their places; does not depend on the numbers of tasks */
} rdt_plan_link;

typedef struct rdt_plan rdt_plan;

/* Plans `edge_count` edges between `task_count` tasks. Pure and deterministic: the order of the edges
 * and the numbers of tasks do not matter. Where a budget is exceeded, the edges that save most time per
 * byte stay. The caller owns *plan; nothing of the arguments is kept. RDT_ERR_INVALID (task out of range,
 * negative dimension other than -1, two edges of one name, no options), RDT_ERR_NO_MEMORY. Source: the
 * static placement of Xue et al., EuroSys'19, section 3.2. */
RDT_API rdt_status rdt_plan_make(const rdt_plan_edge *edges, size_t edge_count, size_t task_count,
                                 const rdt_plan_options *options, rdt_plan **plan);
/* NULL is ignored. */
RDT_API void rdt_plan_free(rdt_plan *plan);
/* Describes edge `index`, as given to rdt_plan_make. RDT_ERR_INVALID past the last. This and all
 * functions below may run on any thread. */
RDT_API rdt_status rdt_plan_get_place(const rdt_plan *plan, size_t index, rdt_plan_place *place);
/* Returns the number of links that have edges. They are ordered by source and destination. */
RDT_API size_t rdt_plan_link_count(const rdt_plan *plan);
RDT_API rdt_status rdt_plan_get_link(const rdt_plan *plan, size_t index, rdt_plan_link *link);
/* Describes ring `ring` of link `index`. RDT_ERR_INVALID past the last. */
RDT_API rdt_status rdt_plan_get_ring(const rdt_plan *plan, size_t index, uint32_t ring,
                                     rdt_plan_ring *out);
/* The reasons for which an operation of its own sends a tensor, and another one receives it. */
typedef enum rdt_plan_alone {
  RDT_PLAN_ALONE_NOT = 0,    /* it shares them */
  RDT_PLAN_ALONE_OFF = 1,    /* fuse_bytes is 0 */
  RDT_PLAN_ALONE_SIZE = 2,   /* its size is not known, or too large to wait for others */
  RDT_PLAN_ALONE_LOOP = 3,   /* RDT_EDGE_LOOP */
  RDT_PLAN_ALONE_BRANCH = 4, /* it may have no value, and such an operation sends all or nothing */
  RDT_PLAN_ALONE_WAITS = 5,  /* what makes it may wait for more than its inputs */
  RDT_PLAN_ALONE_LAST = 6,   /* no other one becomes ready together with it */
  RDT_PLAN_ALONE_DEVICE = 7  /* RDT_EDGE_DEVICE_MEMORY */
} rdt_plan_alone;

/* One clause, such as "it is sent in a loop"; "" for none. Static storage. */
RDT_API const char *rdt_plan_alone_text(rdt_plan_alone alone);

typedef struct rdt_plan_fusion {
  int32_t operation; /* the number of the operation that sends it, from 0; -1: its own */
  rdt_plan_alone alone;
} rdt_plan_fusion;

/* Decides which edges share operations; `fusions` has as many entries as `edges`. `source` and
 * `destination` may be any numbers: an operation runs from one to one other. Its members have equal
 * `ready`, so that it waits for nothing that waits for it. Of `options`, only fuse_bytes counts. Pure and
 * deterministic. RDT_ERR_INVALID as rdt_plan_make, RDT_ERR_NO_MEMORY. */
RDT_API rdt_status rdt_plan_fuse(const rdt_plan_edge *edges, size_t edge_count,
                                 const rdt_plan_options *options, rdt_plan_fusion *fusions);
/* Returns a hash of what an edge is (name, dtype, shape, loop), not of its place. */
RDT_API uint64_t rdt_plan_edge_hash(const rdt_plan_edge *edge);

#ifdef __cplusplus
}
#endif

#endif
