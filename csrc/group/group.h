/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of groups. One thread at a time *drives* an operation, and only it accesses what is
 * marked as the driver's. Others put messages for it into its inbox. The locks are groups->lock
 * (groups, channels, visitors), group->lock (table of operations, inboxes, programs, links' remote
 * regions) and groups->ready_lock. They are taken in this order, possibly under a channel's
 * poll_lock, and never held while waiting.
 */
#ifndef RDT_GROUP_GROUP_H
#define RDT_GROUP_GROUP_H

#include "base/clock.h"
#include "core/meet/connect.h"
#include "group/groups.h"
#include "group/process.h"
#include "group/schedule/costs.h"
#include "group/schedule/program.h"
#include "group/schedule/trees.h"

#define RDT_GROUP_NAME_SIZE 64
#define RDT_GROUP_MAX_SIZE 1024
#define RDT_GROUP_BUCKETS 1024 /* of the table of operations; a power of two */
#define RDT_GROUP_FINISHED 1024
#define RDT_LINK_REMOTES 32 /* regions of a peer to keep open */
#define RDT_GROUP_DETAIL \
  16384u /* of a caller's detail, what others learn, with its terminating zero */
#define RDT_GROUP_REASON 512u /* likewise of the reason why an operation or a group ended */

/* ---- messages ------------------------------------------------------------------------------------- */

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
  uint16_t trees; /* of TREES: hash of the group's trees; otherwise 0 */
  uint64_t count;
  uint64_t detail; /* hash of the caller's detail; 0 for none */
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
      status; /* ABORT: the reason. EAGER, LEND, PUSHED: checksum of the bytes, 0 for none; seal.c */
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

/* ---- scratch ----------------------------------------------------------------------------------------- */

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

/* ---- operations -------------------------------------------------------------------------------------- */

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
  atomic_uint news; /* counts parts in the inbox, and other reasons to look at the operation */
  int64_t since; /* ms: when it was entered before it started here, or when it failed elsewhere */
  bool sleeps;
  pthread_cond_t wakes;
  rdt_status aborted; /* set before it started, or by rdt_group_cancel and rdt_group_abort */
  char abort_text[RDT_GROUP_REASON + 128];
  rdt_collective_report *report; /* NULL, or the caller's */
  int64_t began;                 /* ns, with a report */
  uint8_t *heard;                /* for each member: a message came from it; only with a report */
  uint8_t *
      answered; /* for each member: it failed, and no longer accesses our memory; the driver's once started */

  /* Under groups->ready_lock. */
  struct rdt_group_operation *next_ready;
  rdt_group_ready ready;

  /* The driver's. */
  rdt_group_driver driver;
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
  const char *input;
  char *output;
  char *scratch;
  rdt_group_block *scratch_block;
  size_t element;
  rdt_group_step_state *steps;
  rdt_group_lane_state *lanes;
  size_t step_capacity, lane_capacity;
  size_t left;           /* steps that are not done */
  unsigned seen, posted; /* pushes under way */
  bool fresh;            /* was never advanced */
  bool reads_loans, needs_runner, over;
  bool regrets;      /* it failed because of an earlier one */
  rdt_status status; /* RDT_IN_PROGRESS, RDT_OK, or why it failed */
  char text[1280];
  bool aborting, closing;
  uint64_t sent, copied;
} rdt_group_operation;

/* ---- groups ------------------------------------------------------------------------------------------ */

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
  _Atomic uint64_t eager_sent, eager_returned; /* to it */
  _Atomic uint64_t eager_taken, eager_told;    /* from it */
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
  _Atomic uint64_t calls;

  pthread_mutex_t lock;
  pthread_cond_t changed; /* an operation ended, a link changed */
  bool closing;
  rdt_status aborted; /* RDT_OK, or why there are no more operations; abort_text has the text */
  char abort_text[RDT_GROUP_REASON + 160];
  bool regrets; /* an operation shall fail for the reason `regret`: members disagreed before */
  uint64_t regretted[2]; /* the tag of the last one about which they did */
  char regret[RDT_GROUP_REASON + 64];
  rdt_group_operation *table[RDT_GROUP_BUCKETS];
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
typedef struct rdt_group_visitor {
  struct rdt_group_visitor *next;
  rdt_channel *channel; /* held */
  rdt_group_message_kind kind;
  int64_t came; /* ms */
  size_t size;
  uint8_t data[];
} rdt_group_visitor;

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
  pthread_cond_t visited;
  rdt_group *list;
  rdt_group_channel *channels;
  rdt_group_visitor *visitors;
  unsigned visitor_count;
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

/* ---- state.c ----------------------------------------------------------------------------------------- */

void rdt_group_ref(rdt_group *group);
void rdt_group_unref(rdt_group *group);
/* Tells the driver to look at the operation. Call it under group->lock. */
void rdt_group_operation_stir(rdt_group_operation *operation);
/* Notes why the operation fails, unless it has a reason already. Its driver sees it when
 * stirred. Call it under group->lock. */
void rdt_group_operation_mark_aborted(rdt_group_operation *operation, rdt_status status,
                                      const char *text, size_t length);
/* Fails a running operation, unless it has failed already. Only the driver may call it. */
void rdt_group_operation_fail(rdt_group_operation *operation, rdt_status status, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));
/* Queues an operation for whoever drives it. */
void rdt_group_ready_put(rdt_group_operation *operation);
void rdt_group_ready_put_locked(rdt_groups *groups, rdt_group_operation *operation);
/* Keeps an operation that ended out of the queue. */
void rdt_group_ready_drop(rdt_group_operation *operation);

/* ---- group.c ----------------------------------------------------------------------------------------- */

/* Makes every operation look at what happened to the links. */
void rdt_group_stir(rdt_group *group);
/* Fails all operations with `status` and waits until they are over. None starts any more. */
void rdt_group_end(rdt_group *group, rdt_status status, const char *text);
/* Closes the peer's regions, which must happen before the peer learns that nobody uses them. */
void rdt_group_forget_regions(rdt_group *group, rdt_group_link *link);
/* Call it under groups->lock. arrivals.c */
void rdt_groups_forget_channel(rdt_groups *groups, rdt_channel *channel);

/* ---- use_trees.c -------------------------------------------------------------------------------------- */

/* Returns what AUTO chooses, for broadcasts from rank 0. */
rdt_algorithm rdt_group_trees_choose(const rdt_group *group, rdt_collective_kind kind,
                                     uint64_t bytes);

/* ---- join.c ------------------------------------------------------------------------------------------ */

/* Makes the group's links. On success, group->id is known. */
rdt_status rdt_group_meet(rdt_group *group, const char *root, rdt_expected expected,
                          rdt_deadline deadline);
/* Takes a message of members that meet. */
void rdt_group_visit(rdt_channel *channel, rdt_group_message_kind kind, const void *data,
                     size_t size);
/* Drops messages that nobody asked for in time; with `now` INT64_MAX, all. Call it under
 * groups->lock. */
void rdt_group_visitors_expire(rdt_groups *groups, int64_t now);
/* Drops messages from peers that are gone, unless a group is being made. Otherwise they would
 * keep their channels until the next message. Call it under groups->lock. */
void rdt_group_visitors_forget(rdt_groups *groups);

/* ---- messages.c -------------------------------------------------------------------------------------- */

/* Creates a part with room for `payload` bytes. Returns NULL if there is no memory. */
rdt_group_part *rdt_group_part_new(rdt_group *group, uint64_t payload);
void rdt_group_part_free(rdt_group *group, rdt_group_part *part);
/* Fills in the fields that all messages of the operation have. */
void rdt_group_message_begin(rdt_group_operation *operation, rdt_group_part *part,
                             rdt_group_message_kind kind, const rdt_group_program_step *step);
/* Sends the part and frees it when it has left. */
rdt_status rdt_group_part_send(rdt_group *group, uint32_t peer, rdt_group_part *part);
/* Takes `bytes` from the credit for eager messages to the peer. Returns false if there is not
 * enough, unless `always`. */
bool rdt_group_credit_take(rdt_group_link *link, uint64_t bytes, bool always);
/* Notes how many bytes the peer is done with. */
void rdt_group_credit_learn(rdt_group_link *link, uint64_t returned);
/* Lets a message tell the peer how many bytes of its eager messages are done with. */
void rdt_group_credit_tell(rdt_group *group, uint32_t peer, rdt_group_message *message);
/* Counts an eager message that came. Returns false if the peer sends more than its credit. Call
 * it under group->lock. */
bool rdt_group_credit_charge(rdt_group_link *link, uint64_t bytes);
/* Returns the credit of a peer's eager message that is done with. */
void rdt_group_credit_return(rdt_group *group, uint32_t peer, uint64_t bytes);
/* Sends an ABORT for an operation that does not run here, or for the group. */
void rdt_group_abort_send(rdt_group *group, uint32_t peer, const uint64_t tag[2], rdt_status status,
                          const char *text, rdt_group_abort_kind which);
/* Sends the ABORT of an operation that failed here. */
void rdt_group_operation_abort_send(const rdt_group_operation *operation, uint32_t peer);
/* Opens the peer's region and takes a reference for the caller. On the progress thread, returns
 * RDT_IN_PROGRESS if that would wait. */
rdt_status rdt_group_link_open(rdt_group *group, uint32_t peer, uint64_t key,
                               rdt_remote_region **region);
void rdt_group_link_forget(rdt_group_link *link);

/* ---- pushes.c ---------------------------------------------------------------------------------------- */

/* Writes head.size bytes at `from` to head.offset in the peer's region, and then sends the part's
 * head. `message` is the size of the whole message, of which these may be a part: short ones go
 * first. In the end the part comes back into its operation's inbox as WRITTEN, with
 * the status in its head. Takes a reference to the region. From any thread. */
void rdt_group_part_push(rdt_group *group, uint32_t peer, rdt_group_part *part, const void *from,
                         rdt_remote_region *to, uint64_t message);
/* Drops what the operation has not posted yet, and what it would push from now on: without bytes that
 * are missing, the peer would find the next ones malformed. Parts come back as if they were done,
 * because the operation has failed, or will when the part comes back whose write failed. */
void rdt_group_pushes_end(rdt_group_operation *operation);

/* ---- operation.c ------------------------------------------------------------------------------------- */

/* Finds the operation with this tag and, with `enter`, creates it if there is none. Returns NULL
 * if there are too many, or no memory. Call it under group->lock. */
rdt_group_operation *rdt_group_operation_find(rdt_group *group, const uint64_t tag[2], bool enter);
/* Returns true if so many operations have not started here that some should be dropped. Call it
 * under group->lock. */
bool rdt_group_operations_many(const rdt_group *group);
/* Drops operations that have not started and that failed elsewhere, or have messages of lost
 * members only, DEADLINE_MS ago. Not under group->lock. */
void rdt_group_operations_expire(rdt_group *group);
/* Drops all operations that have not started, which must have been aborted. Not under group->lock. */
void rdt_group_operations_drop_early(rdt_group *group);
/* Checks a call. Returns RDT_ERR_INVALID with the reason, or why the device or group no longer
 * works. */
rdt_status rdt_group_operation_check(const rdt_group *group, const rdt_collective *call);
/* Sets an operation up for a checked call. The calling thread drives it first. */
rdt_status rdt_group_operation_start(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                                     void *context, rdt_group_operation **operation);
/* Takes an ended operation out of the table, for reuse. */
void rdt_group_operation_retire(rdt_group_operation *operation);
/* Counts the operation as over. Closing the group waits for that. */
void rdt_group_operation_over(rdt_group *group);
bool rdt_group_tag_finished(const rdt_group *group, const uint64_t tag[2]);
/* Returns true if it finished without an error. */
bool rdt_group_tag_completed(const rdt_group *group, const uint64_t tag[2]);
/* Returns true if one of our APIs counted it: callers may use tags of their own again. */
bool rdt_group_tag_counted(const uint64_t tag[2]);
/* Fails an operation at all members, whether it runs here or has not started here. */
void rdt_group_operation_abort(rdt_group *group, const uint64_t tag[2], rdt_status status,
                               const char *text);
void rdt_group_operation_free(rdt_group_operation *operation);
void rdt_group_operation_drop_parts(rdt_group *group, rdt_group_part *parts);

/* ---- agreement.c -------------------------------------------------------------------------------------- */

/* Stores the caller's detail, which may be NULL, in the operation and its shape. RDT_ERR_NO_MEMORY. */
rdt_status rdt_group_agreement_begin(rdt_group_operation *operation, const char *detail);
/* Fails the operation because of a message of another shape. */
void rdt_group_agreement_fail(rdt_group_operation *operation, const rdt_group_message *head);
/* Learns from another member's ABORT what that one called. */
void rdt_group_agreement_learn(rdt_group_operation *operation, const rdt_group_part *part);
/* Writes both views into the text of an operation that failed because they differ. Call it when
 * the operation ends. */
void rdt_group_agreement_tell(rdt_group_operation *operation);
/* Takes a message of an operation that was complete here: an ABORT, or elements that nobody waits for. If members
 * disagree about it, one operation that runs here fails, or the next one does. Call it under group->lock. */
void rdt_group_agreement_regret(rdt_group *group, const rdt_group_part *part);

/* ---- cancel.c ---------------------------------------------------------------------------------------- */

/* Fails the operations that run here and, with `early`, those that only others have started.
 * Call it under group->lock. */
void rdt_group_abort_all(rdt_group *group, rdt_status status, const char *text, bool early);
/* Returns RDT_OK, or the status that a member passed to rdt_group_abort. */
rdt_status rdt_group_usable(const rdt_group *group);
/* Another member aborted the group. */
void rdt_group_aborted(rdt_group *group, uint32_t from, rdt_status status, const char *text,
                       size_t length);

/* ---- engine.c ---------------------------------------------------------------------------------------- */

/* Moves the operation as far as it goes. Returns true when it has ended. Only the driver may
 * call it. */
bool rdt_group_operation_advance(rdt_group_operation *operation);
/* Fails the operation if its deadline has passed. */
void rdt_group_operation_check_time(rdt_group_operation *operation);

/* ---- moves.c: one step's ------------------------------------------------------------------------------- */

/* Moves the step as far as it goes. Returns true if anything moved. */
bool rdt_group_step_send(rdt_group_operation *operation, uint32_t index);
bool rdt_group_step_receive(rdt_group_operation *operation, uint32_t index);
/* Begins a receiving step early: offers memory to the sender, if it needs that. Returns true if it did. The caller
 * knows that nobody uses the place meanwhile. */
bool rdt_group_step_offer(rdt_group_operation *operation, uint32_t index);
void rdt_group_step_local(rdt_group_operation *operation, uint32_t index);
char *rdt_group_place_address(const rdt_group_operation *operation, const rdt_group_place *place);

/* ---- seal.c ----------------------------------------------------------------------------------------- */

/* Stores the checksum of head->size bytes in their message, if the group uses checksums. */
void rdt_group_seal(const rdt_group *group, rdt_group_message *head, const void *bytes);
/* Returns true if the message has a checksum to compare. */
bool rdt_group_seal_matters(const rdt_group_operation *operation, const rdt_group_message *head);
/* Compares the checksum with the CRC32C of what came, and fails the operation if they differ. */
void rdt_group_seal_compare(rdt_group_operation *operation, const rdt_group_message *head,
                            uint32_t crc);
/* Does the same for the bytes at `bytes`. Returns false if the operation fails. */
bool rdt_group_seal_holds(rdt_group_operation *operation, const rdt_group_message *head,
                          const void *bytes);

/* ---- drivers.c --------------------------------------------------------------------------------------- */

/* Runs a runner, whose argument is the device's rdt_groups. */
void *rdt_group_run_runner(void *groups);
void rdt_group_runners_stop(rdt_groups *groups);

#endif
