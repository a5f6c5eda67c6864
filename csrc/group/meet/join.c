/* SPDX-License-Identifier: Apache-2.0
 *
 * How members meet. Each member sends JOIN to rank 0. When all have come, rank 0 measures costs
 * and sends all the TABLE of members. Then each member connects to those of lower rank (LINK), and
 * sends READY to rank 0 when it has all its links. When all are ready, rank 0 sends GO. So nobody
 * uses a group that a member does not know yet.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/random.h"
#include "base/status.h"
#include "core/post/channel.h"
#include "group/meet/meet.h"

#define AGAIN_MS \
  500 /* interval of sending JOIN again, because rank 0 forgets JOINs of groups it does not know yet */
#define FAR_CHUNK (512u * 1024) /* room for transfers to continue while others are reduced */
/* Its last digit is the version of operations' messages. */
#define BYTE_ORDER_MARK 0x01020306u

typedef struct {
  uint32_t rank, size, forced, order;
  uint64_t generation, mark, eager;
  rdt_group_measure_place place;
  char address[RDT_ADDRESS_SIZE], host_id[RDT_HOST_ID_SIZE];
} join_fields;

static uint64_t mark_of(const rdt_group *group) { return (uintptr_t)&group->device->generation; }

static rdt_status send_join(const rdt_group *group, rdt_channel *channel,
                            const rdt_group_block *block) {
  rdt_wire wire;
  uint32_t order = BYTE_ORDER_MARK;
  rdt_group_meeting_begin(&wire, group, RDT_GROUP_JOIN);
  rdt_wire_put_bytes(&wire, &order, sizeof(order)); /* in memory order */
  rdt_wire_put_u32(&wire, group->rank);
  rdt_wire_put_u32(&wire, group->size);
  rdt_wire_put_u32(&wire, group->forced);
  rdt_wire_put_u64(&wire, group->device->generation);
  rdt_wire_put_u64(&wire, mark_of(group));
  rdt_wire_put_u64(&wire, group->eager);
  rdt_wire_put_u64(&wire, block->key);
  rdt_wire_put_u64(&wire, block->offset);
  rdt_wire_put_text(&wire, group->device->address);
  rdt_wire_put_text(&wire, group->device->host_id);
  return rdt_group_meeting_send(channel, RDT_GROUP_JOIN, &wire);
}

static bool get_join(rdt_wire *wire, join_fields *fields) {
  rdt_wire_get_bytes(wire, &fields->order, sizeof(fields->order));
  fields->rank = rdt_wire_get_u32(wire);
  fields->size = rdt_wire_get_u32(wire);
  fields->forced = rdt_wire_get_u32(wire);
  fields->generation = rdt_wire_get_u64(wire);
  fields->mark = rdt_wire_get_u64(wire);
  fields->eager = rdt_wire_get_u64(wire);
  fields->place.key = rdt_wire_get_u64(wire);
  fields->place.offset = rdt_wire_get_u64(wire);
  rdt_wire_get_text(wire, fields->address, sizeof(fields->address));
  rdt_wire_get_text(wire, fields->host_id, sizeof(fields->host_id));
  return rdt_wire_close(wire) == RDT_OK;
}

static rdt_status check_join(const rdt_group *group, const rdt_group_member *members,
                             const join_fields *fields) {
  if (fields->order != BYTE_ORDER_MARK)
    return rdt_fail(RDT_ERR_REFUSED,
                    "group %s: member %u has another byte order, or another version of rdmatensor",
                    group->name, fields->rank);
  if (fields->size != group->size)
    return rdt_fail(RDT_ERR_REFUSED, "group %s: rank 0 has %u members, rank %u at %s has %u",
                    group->name, group->size, fields->rank, fields->address, fields->size);
  if (fields->rank == 0 || fields->rank >= group->size)
    return rdt_fail(RDT_ERR_REFUSED, "group %s: the device at %s cannot have rank %u of %u",
                    group->name, fields->address, fields->rank, group->size);
  if (fields->forced != group->forced)
    return rdt_fail(RDT_ERR_REFUSED, "group %s: rank 0 and rank %u differ in %sGROUP_ALGORITHM",
                    group->name, fields->rank, RDT_ENV_PREFIX);
  for (uint32_t i = 0; i < group->size; i++)
    if (i != fields->rank && members[i].generation == fields->generation)
      return rdt_fail(RDT_ERR_REFUSED, "group %s: the device at %s claims the ranks %u and %u",
                      group->name, fields->address, i, fields->rank);
  return RDT_OK;
}

static void seat(rdt_group_member *seat, rdt_channel *channel, const join_fields *fields) {
  rdt_channel_unref(seat->channel);
  rdt_channel_ref(channel);
  seat->channel = channel;
  seat->generation = fields->generation;
  seat->mark = fields->mark;
  memcpy(seat->address, fields->address, sizeof(seat->address));
  memcpy(seat->host_id, fields->host_id, sizeof(seat->host_id));
}

/* Returns true for a new member, and false for one that asks again. */
static rdt_status admit(rdt_group *group, rdt_group_member *members,
                        rdt_group_join_request *request, rdt_wire *wire,
                        rdt_group_measure_place *places, uint32_t *missing) {
  join_fields fields = {0};
  if (!get_join(wire, &fields)) {
    rdt_channel_break(request->channel);
    return RDT_OK;
  }
  rdt_status status = check_join(group, members, &fields);
  if (status != RDT_OK) return status;
  rdt_group_member *own = &members[fields.rank];
  bool taken = own->channel && !atomic_load(&own->channel->down);
  if (taken && own->generation != fields.generation)
    return rdt_fail(RDT_ERR_REFUSED, "group %s: the devices at %s and %s both claim rank %u",
                    group->name, own->address, fields.address, fields.rank);
  if (!own->channel) --*missing;
  seat(own, request->channel, &fields);
  places[fields.rank] = fields.place;
  if (fields.eager < group->eager) group->eager = fields.eager;
  return RDT_OK;
}

static void refuse(const rdt_group *group, rdt_channel *channel, rdt_status status,
                   const char *text) {
  rdt_wire wire;
  rdt_group_meeting_begin(&wire, group, RDT_GROUP_REFUSE);
  rdt_wire_put_u32(&wire, (uint32_t)status);
  rdt_wire_put_text(&wire, text);
  rdt_group_meeting_send(channel, RDT_GROUP_REFUSE, &wire);
}

/* Tells the members that have come why there will be no group. */
static rdt_status refuse_all(const rdt_group *group, const rdt_group_member *members,
                             rdt_channel *last, rdt_status status) {
  char text[384];
  snprintf(text, sizeof(text), "%s", rdt_last_error());
  for (uint32_t i = 1; i < group->size; i++)
    if (members[i].channel) refuse(group, members[i].channel, status, text);
  if (last) refuse(group, last, status, text);
  return rdt_fail(status, "%s", text);
}

static rdt_status fail_missing(const rdt_group *group, const rdt_group_member *members) {
  char ranks[128] = "";
  size_t used = 0;
  for (uint32_t i = 1; i < group->size && used < sizeof(ranks) - 16; i++)
    if (!members[i].channel)
      used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%u", used ? ", " : "", i);
  return rdt_fail(RDT_ERR_DEADLINE, "group %s: no member came within the deadline for rank %s",
                  group->name, ranks);
}

static rdt_status gather(rdt_group *group, rdt_group_member *members,
                         rdt_group_measure_place *places, rdt_deadline deadline) {
  uint32_t missing = group->size - 1;
  while (missing > 0) {
    rdt_group_join_request *request;
    rdt_wire wire;
    rdt_status status =
        rdt_group_meeting_await(group, RDT_MEETING_BIT(RDT_GROUP_JOIN), deadline, &request, &wire);
    if (status == RDT_ERR_DEADLINE) fail_missing(group, members);
    if (status != RDT_OK) return refuse_all(group, members, NULL, status);
    status = admit(group, members, request, &wire, places, &missing);
    if (status != RDT_OK) status = refuse_all(group, members, request->channel, status);
    rdt_group_join_request_free(request);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static void number_hosts(rdt_group *group, rdt_group_member *members) {
  uint32_t hosts = 0;
  for (uint32_t i = 0; i < group->size; i++) {
    uint32_t same = 0;
    while (same < i && strcmp(members[same].host_id, members[i].host_id) != 0) same++;
    members[i].host = same < i ? members[same].host : hosts++;
    group->hosts[i] = members[i].host;
  }
}

static rdt_status new_id(rdt_group *group) {
  uint64_t id = 0;
  rdt_status status = rdt_random_id(&id);
  if (status != RDT_OK) return status;
  pthread_mutex_lock(&group->groups->lock);
  group->id = id;
  pthread_mutex_unlock(&group->groups->lock);
  return RDT_OK;
}

/* Checks whether this member can read the memory of all members whose regions it maps. A wrong
 * value means another process. */
static bool can_read(const rdt_group *group, const rdt_group_member *members) {
  for (uint32_t i = 0; i < group->size; i++) {
    const rdt_group_link *link = &group->links[i];
    uint64_t found = 0;
    if (!link->channel || !link->maps) continue;
    if (link->process == 0 ||
        rdt_group_process_read(link->process, members[i].mark, &found, sizeof(found)) != RDT_OK ||
        found != members[i].generation)
      return false;
  }
  return true;
}

static rdt_status send_rank(const rdt_group *group, rdt_channel *channel,
                            rdt_group_message_kind kind) {
  rdt_wire wire;
  rdt_group_meeting_begin(&wire, group, kind);
  rdt_wire_put_u32(&wire, group->rank);
  rdt_wire_put_u32(&wire, group->reads);
  return rdt_group_meeting_send(channel, kind, &wire);
}

static rdt_status await_rank(rdt_group *group, rdt_group_message_kind kind, rdt_deadline deadline,
                             rdt_group_join_request **request, uint32_t *rank, bool *reads) {
  rdt_wire wire;
  rdt_status status =
      rdt_group_meeting_await(group, RDT_MEETING_BIT(kind), deadline, request, &wire);
  if (status == RDT_ERR_DEADLINE)
    return rdt_fail(status, "group %s: its members did not connect within the deadline",
                    group->name);
  if (status != RDT_OK) return status;
  *rank = rdt_wire_get_u32(&wire);
  *reads = rdt_wire_get_u32(&wire) != 0;
  if (rdt_wire_close(&wire) == RDT_OK && *rank < group->size) return RDT_OK;
  rdt_group_join_request_free(*request);
  return rdt_fail(RDT_ERR_PROTOCOL, "group %s: a malformed message came", group->name);
}

static rdt_status await_all_ready(rdt_group *group, rdt_deadline deadline) {
  for (uint32_t left = group->size - 1; left > 0; left--) {
    rdt_group_join_request *request;
    uint32_t rank;
    bool reads;
    rdt_status status = await_rank(group, RDT_GROUP_READY, deadline, &request, &rank, &reads);
    if (status != RDT_OK) return status;
    group->reads &= reads;
    rdt_group_join_request_free(request);
  }
  return RDT_OK;
}

static rdt_status say_go(const rdt_group *group) {
  rdt_status status = RDT_OK;
  for (uint32_t i = 1; i < group->size && status == RDT_OK; i++)
    status = send_rank(group, group->links[i].channel, RDT_GROUP_GO);
  return status;
}

static void describe_self(const rdt_group *group, rdt_group_member *self) {
  snprintf(self->address, sizeof(self->address), "%s", group->device->address);
  snprintf(self->host_id, sizeof(self->host_id), "%s", group->device->host_id);
  self->generation = group->device->generation;
  self->mark = mark_of(group);
}

/* If the receiver reads the bytes itself, cutting messages up saves nothing. */
static void choose_chunk(rdt_group *group) {
  for (uint32_t i = 1; i < group->size; i++)
    if (group->chunk == 0 && !group->links[i].maps) group->chunk = FAR_CHUNK;
}

static rdt_status meet_as_root(rdt_group *group, rdt_group_member *members, rdt_deadline deadline) {
  rdt_group_measure_place *places = calloc(group->size, sizeof(*places));
  if (!places) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  describe_self(group, &members[0]);
  rdt_status status = gather(group, members, places, deadline);
  if (status != RDT_OK) {
    free(places);
    return status;
  }
  number_hosts(group, members);
  for (uint32_t i = 1; i < group->size; i++) rdt_group_meeting_link(group, i, members[i].channel);
  choose_chunk(group);
  status = rdt_group_measure(group, places, deadline);
  free(places);
  if (status == RDT_OK) status = new_id(group);
  if (status == RDT_OK) status = rdt_group_table_send(group, members);
  group->reads = can_read(group, members);
  if (status == RDT_OK) status = await_all_ready(group, deadline);
  if (status == RDT_OK) status = say_go(group);
  return status == RDT_OK ? RDT_OK : refuse_all(group, members, NULL, status);
}

static rdt_status read_refusal(const rdt_group *group, rdt_wire *wire) {
  char who[RDT_GROUP_NAME_SIZE + 16];
  snprintf(who, sizeof(who), "group %s: rank 0", group->name);
  return rdt_wire_get_refusal(wire, who);
}

/* Receives the whole table, or the reason why there will be none. */
static rdt_status await_table(rdt_group *group, rdt_channel *root, const rdt_group_block *block,
                              rdt_group_member *members, rdt_deadline deadline) {
  const unsigned kinds = RDT_MEETING_BIT(RDT_GROUP_TABLE) | RDT_MEETING_BIT(RDT_GROUP_REFUSE);
  for (uint32_t known = 0; known < group->size;) {
    rdt_group_join_request *request;
    rdt_wire wire;
    rdt_deadline again = rdt_now_ms() + AGAIN_MS;
    rdt_status status =
        known == 0 && atomic_load(&root->down) == false ? send_join(group, root, block) : RDT_OK;
    if (status != RDT_OK) return status;
    status =
        rdt_group_meeting_await(group, kinds, again < deadline ? again : deadline, &request, &wire);
    if (atomic_load(&root->down)) return rdt_channel_fail_down(root);
    if (status == RDT_ERR_DEADLINE && rdt_deadline_left(deadline) > 0) continue;
    if (status == RDT_ERR_DEADLINE)
      return rdt_fail(status,
                      "group %s: rank 0 at %s waits for other members, or has not created it",
                      group->name, root->peer_address);
    if (status != RDT_OK) return status;
    if (request->channel != root)
      status = RDT_OK; /* a stranger's */
    else if (request->kind == RDT_GROUP_REFUSE)
      status = read_refusal(group, &wire);
    else if (!rdt_group_table_get(group, &wire, members, &known))
      status = rdt_fail(RDT_ERR_PROTOCOL, "group %s: rank 0 sent a malformed table", group->name);
    rdt_group_join_request_free(request);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static rdt_status link_lower(rdt_group *group, const rdt_group_member *members,
                             rdt_deadline deadline) {
  for (uint32_t i = 1; i < group->rank; i++) {
    rdt_channel *channel;
    const rdt_expected member = {.generation = members[i].generation};
    rdt_status status =
        rdt_group_meeting_connect(group, members[i].address, member, deadline, &channel);
    if (status != RDT_OK) return status;
    rdt_group_meeting_link(group, i, channel);
    rdt_channel_unref(channel);
    status = send_rank(group, group->links[i].channel, RDT_GROUP_LINK);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static rdt_status await_higher(rdt_group *group, const rdt_group_member *members,
                               rdt_deadline deadline) {
  for (uint32_t left = group->size - 1 - group->rank; left > 0;) {
    rdt_group_join_request *request;
    uint32_t rank;
    bool unused;
    rdt_status status = await_rank(group, RDT_GROUP_LINK, deadline, &request, &rank, &unused);
    if (status != RDT_OK) return status;
    if (rank > group->rank && !group->links[rank].channel &&
        request->channel->peer_generation == members[rank].generation) {
      rdt_group_meeting_link(group, rank, request->channel);
      left--;
    }
    rdt_group_join_request_free(request);
  }
  return RDT_OK;
}

static rdt_status await_go(rdt_group *group, rdt_deadline deadline) {
  const unsigned kinds = RDT_MEETING_BIT(RDT_GROUP_GO) | RDT_MEETING_BIT(RDT_GROUP_REFUSE);
  rdt_group_join_request *request;
  rdt_wire wire;
  rdt_status status = rdt_group_meeting_await(group, kinds, deadline, &request, &wire);
  if (status == RDT_ERR_DEADLINE)
    return rdt_fail(status, "group %s: its members did not connect within the deadline",
                    group->name);
  if (status != RDT_OK) return status;
  if (request->kind == RDT_GROUP_REFUSE) {
    status = read_refusal(group, &wire);
  } else {
    rdt_wire_get_u32(&wire); /* rank 0 */
    group->reads = rdt_wire_get_u32(&wire) != 0;
    status = rdt_wire_close(&wire);
  }
  rdt_group_join_request_free(request);
  return status;
}

static rdt_status meet_as_member(rdt_group *group, const char *root, rdt_expected expected,
                                 rdt_group_member *members, rdt_deadline deadline) {
  rdt_channel *channel;
  rdt_group_block *block;
  rdt_status status = rdt_group_scratch_take(group->groups, RDT_MEASURE_BYTES, &block);
  if (status != RDT_OK) return status;
  status = rdt_group_meeting_connect(group, root, expected, deadline, &channel);
  if (status == RDT_OK) {
    status = await_table(group, channel, block, members, deadline);
    if (status == RDT_OK) rdt_group_meeting_link(group, 0, channel);
    rdt_channel_unref(channel);
  }
  if (status == RDT_OK) status = link_lower(group, members, deadline);
  if (status == RDT_OK) status = await_higher(group, members, deadline);
  if (status == RDT_OK) group->reads = can_read(group, members);
  if (status == RDT_OK) status = send_rank(group, group->links[0].channel, RDT_GROUP_READY);
  if (status == RDT_OK) status = await_go(group, deadline);
  rdt_group_scratch_give(group->groups, block);
  return status;
}

rdt_status rdt_group_meet(rdt_group *group, const char *root, rdt_expected expected,
                          rdt_deadline deadline) {
  rdt_group_member *members = calloc(group->size, sizeof(*members));
  if (!members) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = group->rank == 0 ? meet_as_root(group, members, deadline)
                                       : meet_as_member(group, root, expected, members, deadline);
  for (uint32_t i = 0; i < group->size; i++) rdt_channel_unref(members[i].channel);
  free(members);
  return status;
}
