/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: collective operations among devices. rdmatensor.h includes this file, and says what holds for all
 * functions.
 */
#ifndef RDMATENSOR_GROUP_H
#define RDMATENSOR_GROUP_H

#include "rdmatensor/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group joins `size` devices, each with a rank, through a channel between every two of them. An
 * operation is started by every member with the same tag and the same kind, type, counts and algorithm;
 * operations of different tags run at the same time and may be started in any order. */
typedef struct rdt_group rdt_group;

typedef enum rdt_collective_kind {
  RDT_ALL_REDUCE = 1,     /* output = input[0] op input[1] op ..., everywhere the same bits */
  RDT_REDUCE_SCATTER = 2, /* member r has the r-th of `size` equal parts of that */
  RDT_ALL_GATHER = 3,     /* output = input[0], input[1], ... */
  RDT_BROADCAST = 4,      /* output = input of `root`; the others' input is not used */
  RDT_ALL_TO_ALL = 5,     /* the r-th part of output = this rank's part of input[r] */
  RDT_GATHER = 6,         /* as ALL_GATHER, at `root` only; the others' output is not used */
  RDT_SCATTER = 7,        /* output = this rank's part of the input of `root` */
  RDT_REDUCE = 8,         /* as ALL_REDUCE, at `root` only; the others' output is not used */
  RDT_BARRIER = 9,        /* complete when every member started it */
  RDT_SEND = 10,          /* input goes to member `root`, which receives it */
  RDT_RECEIVE =
      11 /* output = input of the SEND of member `root`, or of any, with the same tag[0] */
} rdt_collective_kind;

typedef enum rdt_dtype {
  RDT_FLOAT32 = 1,
  RDT_FLOAT64 = 2,
  RDT_FLOAT16 = 3,
  RDT_BFLOAT16 = 4,
  RDT_INT8 = 5,
  RDT_INT16 = 6,
  RDT_INT32 = 7,
  RDT_INT64 = 8,
  RDT_UINT8 = 9,
  RDT_UINT16 = 10,
  RDT_UINT32 = 11,
  RDT_UINT64 = 12
} rdt_dtype;

typedef enum rdt_reduction {
  RDT_SUM = 1,
  RDT_PRODUCT = 2,
  RDT_MIN = 3, /* NaN if any operand is */
  RDT_MAX = 4,
  RDT_MEAN = 5, /* the sum times 1 / size; floating point only */
  RDT_AND = 6,  /* bit by bit; integers only */
  RDT_OR = 7,
  RDT_XOR = 8,
  RDT_SCALED_SUM = 9 /* the sum times `factor`; floating point only */
} rdt_reduction;

#define RDT_ANY_MEMBER UINT32_MAX /* `root` of a RECEIVE: whoever sends */

typedef enum rdt_algorithm {
  RDT_ALGORITHM_AUTO = 0,    /* the cheapest by the group's measured costs, see GROUP_ALGORITHM */
  RDT_ALGORITHM_FLAT = 1,    /* everybody sends everything to all */
  RDT_ALGORITHM_HALVING = 2, /* recursive halving, then doubling */
  RDT_ALGORITHM_RING = 3,    /* pipelined ring */
  RDT_ALGORITHM_DIRECT = 4,  /* each member reduces one part, then hands it to all */
  RDT_ALGORITHM_HIERARCHICAL = 5, /* inside each host first, then one member of each host */
  RDT_ALGORITHM_TREES =
      6, /* along the trees of rdt_group_use_trees; without any for a kind and root, RING */
  RDT_ALGORITHM_COUNT = 7
} rdt_algorithm;

/* Returns a name, such as "flat"; "" for a number outside the table. Static storage. */
RDT_API const char *rdt_algorithm_name(rdt_algorithm algorithm);
/* Returns the bytes of one element; 0 for a number outside the table. */
RDT_API size_t rdt_dtype_size(rdt_dtype dtype);

typedef struct rdt_group_options {
  size_t struct_size;    /* sizeof(rdt_group_options) */
  const char *name;      /* the same for all members, 1..63 bytes; unique among their live groups */
  uint32_t rank, size;   /* 0 <= rank < size <= 1024 */
  const char *root;      /* address of rank 0's device; ignored at rank 0 */
  const char *root_name; /* that device's name, as for rdt_device_connect_to; NULL: any */
  int timeout_ms;
} rdt_group_options;

/* Joins the group: blocks until all members have, and every two of them are connected. Members meet at
 * rank 0, which measures what transfers and reductions cost and tells all. The handle is owned.
 * RDT_ERR_INVALID, RDT_ERR_DEADLINE (names the ranks that are missing), RDT_ERR_REFUSED (two members claim
 * one rank, or differ in size or settings), RDT_ERR_UNREACHABLE, RDT_ERR_CONNECTION_LOST. Not from a
 * handler. */
RDT_API rdt_status rdt_group_create(rdt_device *device, const rdt_group_options *options,
                                    rdt_group **group);
/* Makes a group of some members of another one, over the same channels and with what was measured for it. Blocks until
 * all of them have called it. `ranks` has the new group's members in the order of their new ranks, `size` numbers of
 * the other group, among them this member's; both are the same at all of them, and so is `name`, as in
 * rdt_group_options. The handle is owned, and lives on when the other group is closed. RDT_ERR_INVALID,
 * RDT_ERR_PROTOCOL (members differ in the ranks), and the errors of receiving from the members, which name who is
 * missing. Not from a handler. */
RDT_API rdt_status rdt_group_split(rdt_group *group, const char *name, const uint32_t *ranks,
                                   uint32_t size, int timeout_ms, rdt_group **part);
/* Fails what is under way with RDT_ERR_CANCELLED, here and at the other members, waits for its end, and
 * gives the handle up. Not from a handler or an operation's `done`. NULL is ignored. Before
 * rdt_device_close. */
RDT_API void rdt_group_close(rdt_group *group);

/* Whom an operation waited for: the member whose first message came last, and the time from the start here until
 * then; 0 and this rank if all were there before. Members that send nothing to this one do not count. */
typedef struct rdt_collective_report {
  int64_t waited_ns;
  uint32_t last;
} rdt_collective_report;

typedef struct rdt_collective {
  size_t struct_size; /* sizeof(rdt_collective) */
  rdt_collective_kind kind;
  rdt_dtype dtype;  /* not of BARRIER */
  rdt_reduction op; /* of ALL_REDUCE, REDUCE_SCATTER and REDUCE */
  double factor;    /* of SCALED_SUM; the same at all members */
  rdt_algorithm algorithm;
  uint32_t root;   /* of BROADCAST, GATHER, SCATTER, REDUCE; the other member of SEND, RECEIVE */
  uint64_t tag[2]; /* names the operation: never used twice in a group. Both 0: the number of the
                              call, where all members make the same calls in the same order. SEND, RECEIVE:
                              see below */
  const void *
      input; /* may be `output` (ALL_GATHER, GATHER: this member's part of it; SCATTER: `output` may
                              be the root's part of `input`) */
  void *output;   /* otherwise they must not overlap */
  uint64_t count; /* elements of input: ALL_REDUCE, REDUCE, BROADCAST (any number); REDUCE_SCATTER,
                              ALL_TO_ALL, SCATTER (a multiple of size); ALL_GATHER, GATHER (output has size
                              times as many); of what SEND and RECEIVE move */
  /* NULL: all parts are equal. Otherwise `size` numbers, the elements of each member's part, the same at all
   * members: of REDUCE_SCATTER, ALL_GATHER, GATHER and SCATTER, whose `count` must agree with them. In place of
   * ALL_TO_ALL's `count`: what this member sends to each, not in place. Copied. */
  const uint64_t *counts;
  const uint64_t *receive_counts; /* of ALL_TO_ALL with counts: what it receives from each */
  int timeout_ms;                 /* RDT_ERR_DEADLINE after that */
  /* NULL, or asked by rdt_group_run on the calling thread about every 100 ms of waiting: not 0
   * cancels the operation. */
  int (*stop)(void *context);
  void *context;
  /* NULL, or a text that must be equal at all members, such as the shapes of tensors. Messages carry its hash.
   * A member that disagrees learns at most the first 16,383 bytes of another member's text; the error quotes the first
   * line that differs. Copied. */
  const char *detail;
  rdt_collective_report *report; /* NULL, or filled until the end of the operation */
} rdt_collective;

/* SEND and RECEIVE concern two members. What one member sends to another with one tag[0] is received in the order in
 * which it was sent; a RECEIVE from any member takes what came first. Both must have the same type and count. A SEND
 * may complete before its RECEIVE begins. tag[1] names the call for rdt_group_cancel here, or is 0. The report of a
 * RECEIVE says who sent. A member that is gone fails the operations with it, and not the group. Source for the order
 * in which messages match: MPI 4.1, 3.5. */

/* Runs an operation on the calling thread, which polls for what it waits for. RDT_OK; else the operation
 * failed here and fails at the other members, and no member touches the buffers any more:
 * RDT_ERR_INVALID, RDT_ERR_DEADLINE, RDT_ERR_CANCELLED, RDT_ERR_CONNECTION_LOST (a member is gone),
 * RDT_ERR_PROTOCOL (members disagree about the operation: the text has both views), RDT_ERR_NO_MEMORY,
 * RDT_ERR_CORRUPTED (bytes changed on their way; with CHECKSUM, of when the group was created, at both members),
 * what a member gave rdt_group_abort. Buffers in regions of the device (READ and WRITE) move without a copy. Not
 * from a handler. */
RDT_API rdt_status rdt_group_run(rdt_group *group, const rdt_collective *collective);
/* Does the same without waiting. Returns RDT_IN_PROGRESS, and `done` runs once, on a thread of
 * the library; or returns an error, and nothing was started. */
RDT_API rdt_status rdt_group_start(rdt_group *group, const rdt_collective *collective,
                                   rdt_done_fn done, void *context);
/* Does the same, but drives a short operation on the calling thread until nothing has happened for `spin_us`. That
 * saves switches of threads if the other members are as far. RDT_OK: it is complete, and `done` does not run;
 * RDT_IN_PROGRESS: as rdt_group_start; an error: nothing was started, or it failed here and fails at the other
 * members. Not from a handler. */
RDT_API rdt_status rdt_group_try(rdt_group *group, const rdt_collective *collective, int spin_us,
                                 rdt_done_fn done, void *context);
/* Does the same as rdt_group_start with a waitable completion instead of a callback: a handle for
 * rdt_transfer_free. */
RDT_API rdt_status rdt_group_submit(rdt_group *group, const rdt_collective *collective,
                                    rdt_transfer **transfer);
/* Fails the operation with this tag, here and at the other members, with RDT_ERR_CANCELLED; also if it
 * starts later. NULL: all that are under way here. From any thread. */
RDT_API rdt_status rdt_group_cancel(rdt_group *group, const uint64_t tag[2]);
/* Does the same with `status`, an error, and a text that holds the first 511 bytes of `text`: a member that cannot
 * start its part calls this, so that the others do not wait for it. RDT_ERR_INVALID. From any thread. */
RDT_API rdt_status rdt_group_fail(rdt_group *group, const uint64_t tag[2], rdt_status status,
                                  const char *text);
/* Ends the group at every member: what is under way, and what starts later, fails with `status`, an error, and
 * a text that holds the first 511 bytes of `text`. The first call of any member counts. The handle remains to be
 * closed. RDT_ERR_INVALID. From any thread. */
RDT_API rdt_status rdt_group_abort(rdt_group *group, rdt_status status, const char *text);

typedef struct rdt_group_info {
  const char *name; /* valid while the group is */
  uint32_t rank, size;
  uint32_t hosts; /* different machines among the members */
  double latency_ns[2],
      byte_ns[2];        /* of a message: inside a host, between hosts; 0: no such pair */
  double reduce_byte_ns; /* of a reduction, for each byte of one operand */
  uint64_t
      operations[RDT_ALGORITHM_COUNT]; /* completed, by algorithm; [0]: of a kind with only one */
  uint64_t bytes[RDT_ALGORITHM_COUNT]; /* sent by this member */
  uint64_t copies;                     /* bytes staged because a buffer lies in no region */
} rdt_group_info;

RDT_API rdt_status rdt_group_get_info(const rdt_group *group, rdt_group_info *info);
/* A spanning tree: for BROADCAST and ALL_GATHER from the root, for REDUCE_SCATTER to it, for ALL_REDUCE to it and
 * back. Trees of one kind share the data in proportion to `rate`; those of BROADCAST, ALL_GATHER and
 * REDUCE_SCATTER do so with trees of the same root. */
typedef struct rdt_group_tree {
  rdt_collective_kind kind; /* ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER or BROADCAST */
  uint32_t root;
  uint64_t rate;           /* bytes per second, above 0 */
  const uint32_t *parents; /* of each member; the root's is itself */
} rdt_group_tree;

/* Gives the group trees for RDT_ALGORITHM_TREES, in place of those that it had; 0 trees take them away. Every
 * member calls it with the same arguments and without other operations under way, and waits until all have. AUTO
 * then chooses trees where they are expected to be the fastest. `pair_ns` is NULL, or has size * size numbers:
 * nanoseconds per byte from each member to each other one, 0 where no link leads; AUTO then expects of the other
 * algorithms what these links permit. Copies all. RDT_ERR_INVALID (also at the other members:
 * RDT_ERR_PROTOCOL), RDT_ERR_NO_MEMORY, the errors of a barrier. After an error members may have different trees,
 * and operations on trees fail with RDT_ERR_PROTOCOL: call it again. Not from a handler. */
RDT_API rdt_status rdt_group_use_trees(rdt_group *group, const rdt_group_tree *trees, size_t count,
                                       const double *pair_ns, int timeout_ms);
/* Returns what AUTO would choose (for BROADCAST, with root 0), or the error of rdt_group_abort if nothing can run any more. */
RDT_API rdt_status rdt_group_choose(const rdt_group *group, rdt_collective_kind kind,
                                    uint64_t bytes, rdt_algorithm *algorithm);

#ifdef __cplusplus
}
#endif

#endif
