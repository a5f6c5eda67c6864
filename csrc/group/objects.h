/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of groups. One thread at a time *drives* an operation, and only it accesses what is
 * marked as the driver's. Others put messages for it into its inbox. The locks are groups->lock
 * (groups, channels, join requests), group->lock (table of operations, inboxes, programs, links' remote
 * regions) and groups->ready_lock. They are taken in this order, possibly under a channel's
 * poll_lock, and never held while waiting.
 */
#ifndef RDT_GROUP_OBJECTS_H
#define RDT_GROUP_OBJECTS_H

#include "base/clock.h"
#include "core/client.h"
#include "core/meet/connect.h"
#include "group/schedule/costs.h"
#include "group/schedule/program.h"
#include "group/schedule/trees.h"

typedef struct rdt_groups rdt_groups;

static inline rdt_groups *rdt_groups_of(const rdt_device *device) {
  return rdt_client_state(device, RDT_PURPOSE_GROUPS);
}

#define RDT_GROUP_NAME_SIZE 64
#define RDT_GROUP_MAX_SIZE 1024
#define RDT_GROUP_BUCKETS 1024 /* of the table of operations; a power of two */
#define RDT_GROUP_FINISHED 1024
#define RDT_LINK_REMOTES 32 /* regions of a peer to keep open */
#define RDT_GROUP_DETAIL \
  16384u /* of a caller's detail, what others learn, with its terminating zero */
#define RDT_GROUP_REASON 512u /* likewise of the reason why an operation or a group ended */

/* Messages */

/* A notification's immediate. Messages of operations carry an rdt_group_message; the others carry
 * fields (join.c). */
typedef enum rdt_group_message_kind {
  RDT_GROUP_EAGER = 1, /* the elements follow */
  RDT_GROUP_LEND = 2,  /* the elements are in the sender's memory: read them, then ACK */
  RDT_GROUP_ACK = 3,
  RDT_GROUP_ASK = 4,   /* make an OFFER, because a short message could not be sent at once */
  RDT_GROUP_OFFER = 5, /* write the elements into the receiver's region, then PUSHED */
  RDT_GROUP_PUSHED = 6,
  /* The sender's operation failed, and the sender no longer accesses memory for it. The number
   * is an rdt_group_abort_kind. The payload is the caller's detail, then the text. */
  RDT_GROUP_ABORT = 7,
  RDT_GROUP_CREDIT = 8,   /* only returns credit */
  RDT_GROUP_LEAVE = 9,    /* the sender closed the group */
  RDT_GROUP_WRITTEN = 10, /* never sent: a push has completed */
  RDT_GROUP_JOIN = 32,
  RDT_GROUP_REFUSE = 33,
  RDT_GROUP_TABLE = 34,
  RDT_GROUP_LINK = 35,
  RDT_GROUP_READY = 36,
  RDT_GROUP_GO = 37,
  RDT_GROUP_PING = 38,
  RDT_GROUP_PONG = 39
} rdt_group_message_kind;

/* The number of an ABORT. */
typedef enum rdt_group_abort_kind {
  RDT_ABORT_OPERATION = 0,
  RDT_ABORT_ANSWER = 1, /* the answer to an ABORT from a member where the operation does not run */
  RDT_ABORT_GROUP = 2   /* all operations, including later ones; the tag is 0 */
} rdt_group_abort_kind;

/* The arguments that must be the same at all members; see agreement.c. */
typedef struct rdt_group_shape {
  uint8_t kind, dtype, reduction, algorithm;
  uint16_t root;
  uint16_t trees;  /* of TREES: hash of the group's trees; otherwise 0 */
  uint64_t count;  /* with unequal parts: of all; 0 where members know their own only */
  uint64_t detail; /* hash of the caller's detail; 0 for none */
  uint64_t more;   /* hash of unequal parts, or of the factor; 0 for none */
} rdt_group_shape;

/* The header of a message, in the sender's byte order: members with another one are not
 * admitted. */
typedef struct rdt_group_message {
  uint64_t group;
  uint64_t tag[2];
  rdt_group_shape shape;
  uint32_t from;         /* rank */
  uint32_t lane, number; /* the message's number in the lane between these two members */
  int32_t
      status; /* ABORT: the reason. EAGER, LEND, PUSHED: checksum of the bytes, 0 for none; messages.c */
  uint64_t at,
      size; /* the part of the message that this is about, in bytes. ABORT: size of the detail */
  uint64_t key,
      offset; /* LEND, OFFER: where the bytes are; with key 0, at this address of the process */
  uint64_t credit; /* bytes of the addressee's eager messages that the sender is done with */
} rdt_group_message;

/* A write of a message's elements, under group->lock; pushes.c. */
typedef struct rdt_group_push {
  const char *from;
  rdt_remote_region *to; /* held */
  uint64_t at;           /* bytes that were posted */
  uint64_t message;      /* bytes of the whole message, which decides who goes first */
  uint32_t peer;
  unsigned open;     /* pieces under way */
  rdt_status status; /* RDT_OK, or why it failed */
  bool waits;        /* it is in the link's list */
} rdt_group_push;

/* A message that arrived, or one to send. */
typedef struct rdt_group_part {
  struct rdt_group_part *next;
  rdt_group_message_kind kind;
  uint64_t size, capacity; /* bytes behind the header */
  struct rdt_group *group; /* of one to send */
  struct rdt_group_operation *operation;
  uint32_t step;
  rdt_group_push push;
  rdt_group_message head; /* the payload follows */
} rdt_group_part;

static inline void *rdt_group_part_payload(rdt_group_part *part) { return part + 1; }

/* Scratch */

/* Registered memory for buffers that are in no region. */
typedef struct rdt_group_block {
  struct rdt_group_block *next;
  char *address;
  uint64_t size, key, offset; /* in the region with this key */
} rdt_group_block;

/* A region from which blocks are cut. */
typedef struct rdt_group_slab {
  char *address;
  uint64_t size, key, used;
} rdt_group_slab;

/* Takes at least `size` bytes that peers may read and write. Returns the errors of
 * rdt_region_alloc. */
rdt_status rdt_group_scratch_take(rdt_groups *groups, uint64_t size, rdt_group_block **block);
void rdt_group_scratch_give(rdt_groups *groups, rdt_group_block *block);

/* Operations */

typedef struct rdt_group_step_state {
  rdt_group_part *parts, **parts_tail; /* messages for this step that wait for their turn */
  unsigned waiting;                    /* how many */
  uint64_t moved;                      /* bytes sent or taken */
  uint64_t acked;                      /* sends: bytes that the peer is done with */
  uint64_t offered;                    /* receives: bytes that were offered to the sender */
  uint64_t key, offset;                /* where the local elements are, if `direct` */
  rdt_group_block *block;              /* otherwise the elements pass through here */
  bool begun, done, direct, eager, asked;
} rdt_group_step_state;

typedef struct rdt_group_lane_state {
  uint32_t begin, end, left; /* the round's steps, and how many are not done */
} rdt_group_lane_state;

/* Sends that no receive matches yet, or receives that no message matches yet; under group->lock. */
typedef struct rdt_group_pair_queue {
  struct rdt_group_operation *head, **tail;
} rdt_group_pair_queue;

/* The partner of an operation: a rank, or one of these. */
#define RDT_GROUP_EVERYBODY (UINT32_MAX - 1)
#define RDT_GROUP_NOBODY (UINT32_MAX - 2) /* of a receive that no message matches yet */

/* A caller's detail, in memory that the next operation uses again. */
typedef struct rdt_group_detail {
  char *text;
  size_t room;
} rdt_group_detail;

typedef enum rdt_group_driver {
  RDT_DRIVER_CALLER,
  RDT_DRIVER_PROGRESS,
  RDT_DRIVER_RUNNER
} rdt_group_driver;
typedef enum rdt_group_ready {
  RDT_READY_NOT,
  RDT_READY_QUEUED,
  RDT_READY_DRIVEN,
  RDT_READY_AGAIN
} rdt_group_ready;

typedef struct rdt_group_operation {
  struct rdt_group_operation *next; /* in its bucket, or free */
  struct rdt_group *group;
  uint64_t tag[2];

  /* Under group->lock. */
  bool started, ended;
  bool writes_ended; /* nothing more is pushed */
  rdt_group_part *inbox, **inbox_tail;
  atomic_uint
      pending_events; /* counts parts in the inbox, and other reasons to look at the operation */
  int64_t since; /* ms: when it was entered before it started here, or when it failed elsewhere */
  bool sleeps;
  pthread_cond_t wakes;
  rdt_status aborted; /* set before it started, or by rdt_group_cancel and rdt_group_abort */
  char abort_text[RDT_GROUP_REASON + 128];
  rdt_collective_report *report; /* NULL, or the caller's */
  int64_t began;                 /* ns, with a report */
  /* These are for sends and receives. `peer` is the other member, RDT_ANY_MEMBER until it is known; of other operations it is
   * RDT_GROUP_EVERYBODY. */
  uint32_t peer;
  rdt_group_pair_queue *queue; /* NULL, or where it waits to be matched */
  struct rdt_group_operation *next_pair;
  uint64_t handle; /* tag[1] of the caller; 0 for none */
  uint8_t *seen;   /* for each member: a message came from it; only with a report */
  uint8_t *
      answered; /* for each member: it failed, and no longer accesses our memory; the driver's once started */

  /* Under groups->ready_lock. */
  struct rdt_group_operation *next_ready;
  rdt_group_ready ready;

  /* The driver's. */
  rdt_group_driver driver;
  rdt_group_driver before; /* of one that a waiter drives */
  rdt_done_fn done;
  void *context;
  rdt_deadline deadline, grace;
  rdt_group_shape shape;
  rdt_group_detail detail;
  bool differs; /* another member called something else, which is: */
  uint32_t other_rank;
  rdt_group_shape other;
  rdt_group_detail other_detail; /* empty until it is known */
  rdt_group_program *program;
  rdt_group_single single; /* the program of a send or receive */
  uint32_t partner;        /* who takes part */
  uint64_t *offsets;       /* of unequal parts */
  size_t offset_capacity;
  double factor; /* by which MEAN and SCALED_SUM multiply the sum */
  const char *input;
  char *output;
  char *scratch;
  rdt_group_block *scratch_block;
  size_t element;
  rdt_group_step_state *steps;
  rdt_group_lane_state *lanes;
  size_t step_capacity, lane_capacity;
  size_t left;                     /* steps that are not done */
  unsigned handled_events, posted; /* pushes under way */
  bool fresh;                      /* was never advanced */
  bool reads_loans, needs_runner, over;
  bool by_pair;      /* each message's shape has its own count: parts that only two members know */
  bool regrets;      /* it failed because of an earlier one */
  rdt_status status; /* RDT_IN_PROGRESS, RDT_OK, or why it failed */
  char text[1280];
  bool aborting, closing;
  uint64_t sent, copied;
} rdt_group_operation;

/* Groups */

typedef struct rdt_group_link_remote {
  uint64_t key, used;
  rdt_remote_region *region;
} rdt_group_link_remote;

/* Another member. */
typedef struct rdt_group_link {
  rdt_channel *channel; /* held; NULL for this member itself */
  bool maps;            /* this process can read its memory in place */
  pid_t process;        /* its process on this host; 0: unknown */
  atomic_bool down, released, left;
  _Atomic uint64_t eager_sent, eager_returned;   /* to it */
  _Atomic uint64_t eager_taken, eager_announced; /* from it */
  rdt_group_link_remote remotes[RDT_LINK_REMOTES];
  uint64_t clock;
  rdt_group_part *pushes; /* with bytes to post, the oldest first; under lock, as the next three */
  unsigned pieces;        /* under way */
  unsigned turn;
  bool pumping; /* a thread posts */
  uint64_t eager_received;
  unsigned early; /* messages kept for operations that have not started */
} rdt_group_link;

struct rdt_group {
  rdt_group *next;
  atomic_int refs;
  void (*free)(rdt_group *group);
  rdt_groups *groups;
  rdt_device *device; /* held */
  char name[RDT_GROUP_NAME_SIZE];
  uint64_t id; /* 0 until it is known */
  uint32_t rank, size;
  uint32_t *hosts;
  rdt_group_link *links;
  rdt_group_costs costs;
  uint64_t eager; /* bytes of the longest eager message */
  uint64_t chunk;
  int64_t spin_us;
  bool checks;          /* CHECKSUM: messages carry checksums, which are compared */
  rdt_algorithm forced; /* AUTO: none */
  rdt_trees *trees;     /* NULL: none; under lock */
  bool reads;           /* members on one host can also read memory that is in no region */
  _Atomic uint64_t calls, pairs;

  pthread_mutex_t lock;
  pthread_cond_t changed; /* an operation ended, a link changed */
  bool closing;
  rdt_status aborted; /* RDT_OK, or why there are no more operations; abort_text has the text */
  char abort_text[RDT_GROUP_REASON + 160];
  bool regrets; /* an operation shall fail for the reason `regret`: members disagreed before */
  uint64_t regretted[2]; /* the tag of the last one about which they did */
  char regret[RDT_GROUP_REASON + 64];
  rdt_group_operation *table[RDT_GROUP_BUCKETS];
  rdt_group_pair_queue posted, unmatched;
  rdt_group_operation *free_operations;
  rdt_group_part *free_parts[2]; /* short ones, and ones for a whole eager message */
  unsigned free_counts[2];
  unsigned started, early; /* numbers of operations; started ones are not over */
  int64_t swept;           /* ms: when expired early operations were last dropped */
  uint64_t finished[RDT_GROUP_FINISHED][2];
  bool completed[RDT_GROUP_FINISHED]; /* whether those of `finished` ended without an error */
  rdt_group_programs programs;
  _Atomic uint64_t operations[RDT_ALGORITHM_COUNT], bytes[RDT_ALGORITHM_COUNT], copies;
};

/* A joining member's message until somebody asks for it. */
typedef struct rdt_group_join_request {
  struct rdt_group_join_request *next;
  rdt_channel *channel; /* held */
  rdt_group_message_kind kind;
  int64_t came; /* ms */
  size_t size;
  uint8_t data[];
} rdt_group_join_request;

typedef struct rdt_group_channel {
  struct rdt_group_channel *next;
  rdt_channel *channel; /* held */
} rdt_group_channel;

typedef struct rdt_group_ready_queue {
  rdt_group_operation *head, **tail;
} rdt_group_ready_queue;

struct rdt_groups {
  rdt_device *device;
  pthread_mutex_t lock;
  pthread_cond_t join_requested;
  rdt_group *list;
  rdt_group_channel *channels;
  rdt_group_join_request *join_requests;
  unsigned join_request_count;
  bool stopping;
  unsigned joining; /* threads in rdt_group_create */
  atomic_uint pongs;

  pthread_mutex_t ready_lock;
  pthread_cond_t ready;
  rdt_group_ready_queue queues[2]; /* for the progress thread, for the runners */
  atomic_uint light;               /* operations in the first queue */
  pthread_t runners[4];
  rdt_group_block *blocks[64]; /* free blocks, by the logarithm of their size */
  unsigned runner_count, idle_runners;
  void *(*run_runner)(void *groups);
  bool runners_stop;
  int64_t next_tick;

  pthread_mutex_t slab_lock;
  rdt_group_slab slab;
};

#endif
