/* SPDX-License-Identifier: Apache-2.0
 *
 * How the members of a group meet before it has a number. Their messages are encoded field by field
 * (base/wire.h), and kept until the thread that creates the group asks for them.
 */
#ifndef RDT_GROUP_MEET_H
#define RDT_GROUP_MEET_H

#include "group/objects.h"

/* join.c */

/* Makes the group's links. On success, group->id is known. */
rdt_status rdt_group_meet(rdt_group *group, const char *root, rdt_expected expected,
                          rdt_deadline deadline);
/* Takes a message of members that meet. */
void rdt_group_join_request_take(rdt_channel *channel, rdt_group_message_kind kind,
                                 const void *data, size_t size);
/* Drops messages that nobody asked for in time; with `now` INT64_MAX, all. Call it under
 * groups->lock. */
void rdt_group_join_requests_expire(rdt_groups *groups, int64_t now);
/* Drops messages from peers that are gone, unless a group is being made. Otherwise they would
 * keep their channels until the next message. Call it under groups->lock. */
void rdt_group_join_requests_forget(rdt_groups *groups);

/* meeting.c */

/* Begins a message that the group's members recognise. */
void rdt_group_meeting_begin(rdt_wire *wire, const rdt_group *group, rdt_group_message_kind kind);
/* Sends what was put into `wire`. */
rdt_status rdt_group_meeting_send(rdt_channel *channel, rdt_group_message_kind kind,
                                  const rdt_wire *wire);

#define RDT_MEETING_BIT(kind) (1u << ((kind) - RDT_GROUP_JOIN))

/* Waits for a message of the group, of one of the kinds in `kinds` (RDT_MEETING_BIT), and loads
 * it behind the name of the group. The caller frees the request with rdt_group_join_request_free. Returns
 * RDT_ERR_DEADLINE after `until`, RDT_ERR_CONNECTION_LOST if a member is gone, or
 * RDT_ERR_CLOSED. */
rdt_status rdt_group_meeting_await(rdt_group *group, unsigned kinds, rdt_deadline until,
                                   rdt_group_join_request **request, rdt_wire *wire);
void rdt_group_join_request_free(rdt_group_join_request *request);

/* Finds or opens a channel of groups to the expected device at `address`, and takes a reference. */
rdt_status rdt_group_meeting_connect(rdt_group *group, const char *address, rdt_expected expected,
                                     rdt_deadline deadline, rdt_channel **channel);

/* Sets what a link to this member can do, once it has its channel. */
void rdt_group_meeting_link(rdt_group *group, uint32_t rank, rdt_channel *channel);

/* What rank 0 knows about a member, and tells the others. */
typedef struct rdt_group_member {
  rdt_channel *channel; /* held; NULL until the member joined; at rank 0 only */
  char address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
  uint64_t generation;
  uint64_t mark; /* address of its generation in its process */
  uint32_t host;
} rdt_group_member;

/* table.c: rank 0 sends the table to all. The others add each part; *known counts the members
 * they know. Adding returns false if the part is malformed, or not the next one. */
rdt_status rdt_group_table_send(const rdt_group *group, const rdt_group_member *members);
bool rdt_group_table_get(rdt_group *group, rdt_wire *wire, rdt_group_member *members,
                         uint32_t *known);

/* measure.c: rank 0 fills in group->costs. `places` tells where each member has
 * RDT_MEASURE_BYTES. */
#define RDT_MEASURE_BYTES (1024u * 1024)
typedef struct rdt_group_measure_place {
  uint64_t key, offset;
} rdt_group_measure_place;
rdt_status rdt_group_measure(rdt_group *group, const rdt_group_measure_place *places,
                             rdt_deadline deadline);

/* process.c */

/* Returns the process at the other end of a channel of a local transport; 0 if it is unknown. */
pid_t rdt_group_process_of(const rdt_channel *channel);
/* Copies [address, address + size) of the process to `to`. Returns RDT_ERR_CONNECTION_LOST with
 * the cause. */
rdt_status rdt_group_process_read(pid_t process, uint64_t address, void *to, uint64_t size);

#endif
