/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions by which groups run their operations, file by file.
 */
#ifndef RDT_GROUP_RUN_H
#define RDT_GROUP_RUN_H

#include "group/meet/meet.h"

/* state.c */

void rdt_group_ref(rdt_group *group);
void rdt_group_unref(rdt_group *group);
/* Tells the driver to look at the operation. Call it under group->lock. */
void rdt_group_operation_wake(rdt_group_operation *operation);
/* Notes why the operation fails, unless it has a reason already. Its driver sees it when
 * woken. Call it under group->lock. */
void rdt_group_operation_mark_aborted(rdt_group_operation *operation, rdt_status status,
                                      const char *text, size_t length);
/* Fails a running operation, unless it has failed already. Only the driver may call it. */
void rdt_group_operation_fail(rdt_group_operation *operation, rdt_status status, const char *format,
                              ...) __attribute__((format(printf, 3, 4)));
/* Queues an operation for whoever drives it. */
void rdt_group_ready_put(rdt_group_operation *operation);
void rdt_group_ready_put_locked(rdt_groups *groups, rdt_group_operation *operation);
/* Lets the calling thread drive the operation. Returns false if another thread does. Call it under group->lock. */
bool rdt_group_ready_take(rdt_group_operation *operation);
/* Only the driver may call it. */
void rdt_group_operation_set_driver(rdt_group_operation *operation, rdt_group_driver driver);
/* Keeps an operation that ended out of the queue. */
void rdt_group_ready_drop(rdt_group_operation *operation);

/* group.c */

/* Returns a group that knows nobody yet, or NULL if there is no memory. */
rdt_group *rdt_group_new(rdt_device *device, const rdt_group_options *options);
/* Lists the group before its members meet, so that its links learn what happens to their channels.
 * rdt_group_end_joining is called when they have met or failed to. RDT_ERR_INVALID if the device has a group of this
 * name, RDT_ERR_CLOSED. */
rdt_status rdt_group_enlist(rdt_group *group);
void rdt_group_end_joining(rdt_groups *groups);
void rdt_group_delist(rdt_group *group);
/* Makes every operation look at what happened to the links. */
void rdt_group_wake(rdt_group *group);
/* Fails all operations with `status` and waits until they are over. None starts any more. */
void rdt_group_end(rdt_group *group, rdt_status status, const char *text);
/* Closes the peer's regions, which must happen before the peer learns that nobody uses them. */
void rdt_group_forget_regions(rdt_group *group, rdt_group_link *link);
/* Call it under groups->lock. arrivals.c */
void rdt_groups_forget_channel(rdt_groups *groups, rdt_channel *channel);

/* use_trees.c */

/* Returns what AUTO chooses, for broadcasts from rank 0. */
rdt_algorithm rdt_group_trees_choose(const rdt_group *group, rdt_collective_kind kind,
                                     uint64_t bytes);

/* messages.c */

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

/* pushes.c */

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

/* table.c */

/* Finds the operation with this tag and, with `enter`, creates it if there is none. Returns NULL
 * if there are too many, or no memory. Call it under group->lock. */
rdt_group_operation *rdt_group_operation_find(rdt_group *group, const uint64_t tag[2], bool enter);
/* Returns true if so many operations have not started here that some should be dropped. Call it
 * under group->lock. */
bool rdt_group_operations_many(const rdt_group *group);
/* Drops operations that have not started and that failed elsewhere, or have messages of lost
 * members only, DEADLINE_MS ago. Not under group->lock. */
void rdt_group_operations_expire(rdt_group *group);
/* Takes an operation that has not started out of the table. The caller drops the parts that it had. Call it under
 * group->lock. */
rdt_group_part *rdt_group_operation_forget(rdt_group_operation *operation);
/* Drops all operations that have not started, which must have been aborted. Not under group->lock. */
void rdt_group_operations_drop_early(rdt_group *group);
/* Gives an operation in the table another tag. Call it under group->lock. */
void rdt_group_operation_rename(rdt_group_operation *operation, const uint64_t tag[2]);
/* Takes an ended operation out of the table, for reuse. */
void rdt_group_operation_retire(rdt_group_operation *operation);
/* Counts the operation as over. Closing the group waits for that. */
void rdt_group_operation_over(rdt_group *group);
bool rdt_group_tag_finished(const rdt_group *group, const uint64_t tag[2]);
/* Returns true if it finished without an error. */
bool rdt_group_tag_completed(const rdt_group *group, const uint64_t tag[2]);
void rdt_group_operation_free(rdt_group_operation *operation);
void rdt_group_operation_drop_parts(rdt_group *group, rdt_group_part *parts);

/* call.c */

/* Checks a call. Returns RDT_ERR_INVALID with the reason, or why the device or group no longer
 * works. The other functions need a checked call. */
rdt_status rdt_group_operation_check(const rdt_group *group, const rdt_collective *call);
bool rdt_group_call_reduces(rdt_collective_kind kind);
bool rdt_group_call_is_pair(rdt_collective_kind kind);
bool rdt_group_call_has_root(rdt_collective_kind kind);
/* Returns the elements that this member reads. */
uint64_t rdt_group_call_input(const rdt_group *group, const rdt_collective *call);
/* Returns true if the input is already in its place in the output. */
bool rdt_group_call_in_place(const rdt_group *group, const rdt_collective *call, size_t element);
/* Returns the sum, or UINT64_MAX if it is not below that. */
uint64_t rdt_group_call_sum(const uint64_t *counts, uint32_t size);

/* operation.c */

/* Sets an operation up for a checked call. The calling thread drives it first. */
rdt_status rdt_group_operation_start(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                                     void *context, rdt_group_operation **operation);
/* Returns true if one of our APIs counted it: callers may use tags of their own again. */
bool rdt_group_tag_counted(const uint64_t tag[2]);
/* Fails an operation at all members, whether it runs here or has not started here. */
void rdt_group_operation_abort(rdt_group *group, const uint64_t tag[2], rdt_status status,
                               const char *text);

/* pairs.c: sends and receives. Call all but the first under group->lock. */

/* Returns the tag of a SEND, or of a RECEIVE until a message matches it. From any thread. */
void rdt_group_pair_number(rdt_group *group, const rdt_collective *call, uint64_t tag[2]);
/* Lets a receive wait for a message from `source`, which may be RDT_ANY_MEMBER. */
void rdt_group_pair_post(rdt_group_operation *operation, uint32_t source);
/* Lets a new early operation wait for a receive. */
void rdt_group_pair_keep(rdt_group_operation *operation, uint32_t sender);
/* Returns the oldest early operation that fits a receive, or NULL. The caller starts it. */
rdt_group_operation *rdt_group_pair_claim(rdt_group *group, uint32_t source, uint64_t tag);
/* Returns the oldest posted receive that fits the first message of a send, or NULL. The receive has the send's tag
 * from then on. */
rdt_group_operation *rdt_group_pair_match(rdt_group *group, const rdt_group_message *head);
/* Takes the operation out of its queue, if it is in one. */
void rdt_group_pair_unlist(rdt_group_operation *operation);
/* Tells the driver of a posted receive who sends, once a message matched. */
void rdt_group_pair_adopt(rdt_group_operation *operation);

/* agreement.c */

/* Returns a hash that is the same at every member, and never 0. */
uint64_t rdt_group_agreement_hash(const void *bytes, size_t size);

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

/* cancel.c */

/* Fails the operations that run here and, with `early`, those that only others have started.
 * Call it under group->lock. */
void rdt_group_abort_all(rdt_group *group, rdt_status status, const char *text, bool early);
/* Returns RDT_OK, or the status that a member passed to rdt_group_abort. */
rdt_status rdt_group_usable(const rdt_group *group);
/* Another member aborted the group. */
void rdt_group_aborted(rdt_group *group, uint32_t from, rdt_status status, const char *text,
                       size_t length);

/* engine.c */

/* Moves the operation as far as it goes. Returns true when it has ended. Only the driver may
 * call it. */
bool rdt_group_operation_advance(rdt_group_operation *operation);
/* Moves a started operation for the first time on the calling thread, if that does not take long. Sends announce
 * themselves so in the order in which they are started. */
void rdt_group_operation_advance_first(rdt_group_operation *operation);
/* Fails the operation if its deadline has passed. */
void rdt_group_operation_check_time(rdt_group_operation *operation);

/* moves.c: one step's */

/* Moves the step as far as it goes. Returns true if anything moved. */
bool rdt_group_step_send(rdt_group_operation *operation, uint32_t index);
bool rdt_group_step_receive(rdt_group_operation *operation, uint32_t index);
/* Begins a receiving step early: offers memory to the sender, if it needs that. Returns true if it did. The caller
 * knows that nobody uses the place meanwhile. */
bool rdt_group_step_offer(rdt_group_operation *operation, uint32_t index);
void rdt_group_step_local(rdt_group_operation *operation, uint32_t index);
char *rdt_group_place_address(const rdt_group_operation *operation, const rdt_group_place *place);

/* messages.c */

/* Stores the checksum of head->size bytes in their message, if the group uses checksums. */
void rdt_group_checksum_set(const rdt_group *group, rdt_group_message *head, const void *bytes);
/* Returns true if the message has a checksum to compare. */
bool rdt_group_checksum_present(const rdt_group_operation *operation,
                                const rdt_group_message *head);
/* Compares the checksum with the CRC32C of what came, and fails the operation if they differ. */
void rdt_group_checksum_compare(rdt_group_operation *operation, const rdt_group_message *head,
                                uint32_t crc);
/* Does the same for the bytes at `bytes`. Returns false if the operation fails. */
bool rdt_group_checksum_verify(rdt_group_operation *operation, const rdt_group_message *head,
                               const void *bytes);

/* drivers.c */

/* Counts an operation that is over, and takes it out of the table. Returns its status, which is the thread's last
 * error. */
rdt_status rdt_group_operation_conclude(rdt_group_operation *operation);
/* Does the same for a started operation, and calls its `done`. */
void rdt_group_operation_end(rdt_group_operation *operation);
/* Leaves an operation to the threads of the device: when it has events, or at once. */
void rdt_group_operation_put_aside(rdt_group_operation *operation, bool at_once);
/* Runs a runner, whose argument is the device's rdt_groups. */
void *rdt_group_run_runner(void *groups);
void rdt_group_runners_stop(rdt_groups *groups);

/* arrivals.c: see core/client.h for the threads that call these. */
void rdt_groups_connected(rdt_channel *channel);
void rdt_groups_down(rdt_channel *channel);
void rdt_groups_released(rdt_channel *channel);
void rdt_groups_take(rdt_channel *channel, uint64_t type, const void *data, size_t size);
/* drivers.c: drives what the progress thread drives, and looks after deadlines. Returns the number of operations
 * that moved. */
int rdt_groups_progress(rdt_device *device);

#endif
