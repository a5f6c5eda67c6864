/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends and keeps the messages by which members meet.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "core/post/channel.h"
#include "group/meet/meet.h"

#define JOIN_REQUESTS 4096u /* kept by a device */

/* A group is known by its name until it has a number. */
static bool by_name(rdt_group_message_kind kind) {
  return kind == RDT_GROUP_JOIN || kind == RDT_GROUP_REFUSE || kind == RDT_GROUP_TABLE;
}

void rdt_group_meeting_begin(rdt_wire *wire, const rdt_group *group, rdt_group_message_kind kind) {
  rdt_wire_begin(wire, (rdt_message_type)0, 0);
  if (by_name(kind))
    rdt_wire_put_text(wire, group->name);
  else
    rdt_wire_put_u64(wire, group->id);
}

static void free_sent(void *context, rdt_status status) {
  (void)status;
  free(context);
}

rdt_status rdt_group_meeting_send(rdt_channel *channel, rdt_group_message_kind kind,
                                  const rdt_wire *wire) {
  size_t size;
  uint8_t *bytes = malloc(RDT_WIRE_MESSAGE_SIZE);
  if (!bytes) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_wire_unload(wire, bytes, RDT_WIRE_MESSAGE_SIZE, &size);
  if (status == RDT_OK) {
    rdt_op op = {.kind = RDT_OP_NOTIFY, .local = bytes, .size = size, .immediate = kind};
    status = rdt_channel_post(channel, &op, 1, free_sent, bytes);
  }
  if (status != RDT_IN_PROGRESS) free(bytes);
  return status < 0 ? status : RDT_OK;
}

void rdt_group_join_request_free(rdt_group_join_request *request) {
  if (!request) return;
  rdt_channel_unref(request->channel);
  free(request);
}

static rdt_group_join_request *unlink_request(rdt_groups *groups, rdt_group_join_request **link) {
  rdt_group_join_request *request = *link;
  *link = request->next;
  groups->join_request_count--;
  return request;
}

void rdt_group_join_requests_expire(rdt_groups *groups, int64_t now) {
  int64_t span = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  for (rdt_group_join_request **link = &groups->join_requests; *link;) {
    if (now - (*link)->came > span)
      rdt_group_join_request_free(unlink_request(groups, link));
    else
      link = &(*link)->next;
  }
}

void rdt_group_join_requests_forget(rdt_groups *groups) {
  if (groups->joining > 0) return; /* the last message of a lost peer may say why it left */
  for (rdt_group_join_request **link = &groups->join_requests; *link;) {
    if (atomic_load(&(*link)->channel->down))
      rdt_group_join_request_free(unlink_request(groups, link));
    else
      link = &(*link)->next;
  }
}

/* A complete group takes no more members, but the last may ask twice. Once a member has left, who asks
 * may mean the next group of this name. */
static bool is_complete(rdt_groups *groups, const rdt_channel *channel, const char *name) {
  const rdt_group *group = groups->list;
  while (group && strcmp(group->name, name) != 0) group = group->next;
  if (!group || group->id == 0 || group->rank != 0) return false;
  for (uint32_t i = 1; i < group->size; i++) {
    const rdt_group_link *link = &group->links[i];
    if (link->channel == channel || atomic_load(&link->left) || atomic_load(&link->down))
      return false;
  }
  return true;
}

static void refuse_late(rdt_channel *channel, const char *name) {
  rdt_wire wire;
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_text(&wire, name);
  rdt_wire_put_u32(&wire, (uint32_t)RDT_ERR_REFUSED);
  rdt_wire_put_text(&wire, "the group is complete: other devices have all its ranks");
  rdt_group_meeting_send(channel, RDT_GROUP_REFUSE, &wire);
}

static void keep(rdt_channel *channel, rdt_group_message_kind kind, const void *data, size_t size) {
  rdt_groups *groups = rdt_groups_of(channel->device);
  rdt_group_join_request *request = malloc(sizeof(*request) + size);
  if (!request) return; /* its sender repeats it, or its deadline passes */
  rdt_channel_ref(channel);
  *request = (rdt_group_join_request){
      .channel = channel, .kind = kind, .came = rdt_now_ms(), .size = size};
  memcpy(request->data, data, size);
  pthread_mutex_lock(&groups->lock);
  rdt_group_join_requests_expire(groups, request->came);
  bool room = groups->join_request_count < JOIN_REQUESTS && !groups->stopping;
  if (room) {
    rdt_group_join_request **link = &groups->join_requests; /* in the order of arrival */
    while (*link) link = &(*link)->next;
    *link = request;
    groups->join_request_count++;
    pthread_cond_broadcast(&groups->join_requested);
  }
  pthread_mutex_unlock(&groups->lock);
  if (!room) rdt_group_join_request_free(request);
}

static void answer_ping(rdt_channel *channel) {
  rdt_wire wire;
  rdt_wire_begin(&wire, (rdt_message_type)0, 0);
  rdt_wire_put_u64(&wire, 0);
  rdt_group_meeting_send(channel, RDT_GROUP_PONG, &wire);
}

/* Returns true for a JOIN to a group that has all its members. */
static bool comes_late(rdt_channel *channel, const void *data, size_t size, char *name) {
  rdt_groups *groups = rdt_groups_of(channel->device);
  rdt_wire wire;
  rdt_wire_load(&wire, data, size);
  rdt_wire_get_text(&wire, name, RDT_GROUP_NAME_SIZE);
  if (wire.bad) return false;
  pthread_mutex_lock(&groups->lock);
  bool late = is_complete(groups, channel, name);
  pthread_mutex_unlock(&groups->lock);
  return late;
}

void rdt_group_join_request_take(rdt_channel *channel, rdt_group_message_kind kind,
                                 const void *data, size_t size) {
  char name[RDT_GROUP_NAME_SIZE];
  if (size > RDT_WIRE_MESSAGE_SIZE - RDT_WIRE_HEADER_SIZE) {
    rdt_fail(RDT_ERR_PROTOCOL, "%s sent a malformed message of a group", channel->peer_name);
    rdt_channel_break(channel);
  } else if (kind == RDT_GROUP_PING) {
    answer_ping(channel);
  } else if (kind == RDT_GROUP_PONG) {
    atomic_fetch_add(&rdt_groups_of(channel->device)->pongs, 1);
  } else if (kind == RDT_GROUP_JOIN && comes_late(channel, data, size, name)) {
    refuse_late(channel, name);
  } else {
    keep(channel, kind, data, size);
  }
}

/* Loads the message behind the name of its group. Returns false if it is for another group. */
static bool is_for(const rdt_group *group, const rdt_group_join_request *request, rdt_wire *wire) {
  char name[RDT_GROUP_NAME_SIZE];
  rdt_wire_load(wire, request->data, request->size);
  if (!by_name(request->kind)) return rdt_wire_get_u64(wire) == group->id && !wire->bad;
  rdt_wire_get_text(wire, name, sizeof(name));
  return !wire->bad && strcmp(name, group->name) == 0;
}

static rdt_group_join_request *find_request(rdt_group *group, unsigned kinds, rdt_wire *wire) {
  rdt_groups *groups = group->groups;
  for (rdt_group_join_request **link = &groups->join_requests; *link; link = &(*link)->next)
    if ((kinds & RDT_MEETING_BIT((*link)->kind)) && is_for(group, *link, wire))
      return unlink_request(groups, link);
  return NULL;
}

static rdt_status check_members(const rdt_group *group) {
  for (uint32_t i = 0; i < group->size; i++)
    if (atomic_load(&group->links[i].down))
      return rdt_fail(RDT_ERR_CONNECTION_LOST, "group %s: member %u is gone", group->name, i);
  return RDT_OK;
}

rdt_status rdt_group_meeting_await(rdt_group *group, unsigned kinds, rdt_deadline until,
                                   rdt_group_join_request **request, rdt_wire *wire) {
  rdt_groups *groups = group->groups;
  rdt_status status = RDT_OK;
  pthread_mutex_lock(&groups->lock);
  for (;;) {
    *request = find_request(group, kinds, wire);
    if (*request) break;
    if (groups->stopping)
      status = rdt_fail(RDT_ERR_CLOSED, "device %s is closing", group->device->name);
    if (status == RDT_OK) status = check_members(group);
    if (status != RDT_OK) break;
    if (rdt_deadline_left(until) == 0) {
      status = RDT_ERR_DEADLINE;
      break;
    }
    rdt_cond_wait(&groups->join_requested, &groups->lock, until);
  }
  pthread_mutex_unlock(&groups->lock);
  return status;
}

static rdt_channel *find_channel(rdt_groups *groups, const char *address, rdt_expected expected) {
  rdt_channel *found = NULL;
  pthread_mutex_lock(&groups->lock);
  for (rdt_group_channel *each = groups->channels; each && !found; each = each->next) {
    rdt_channel *channel = each->channel;
    if (strcmp(channel->peer_address, address) == 0 && !atomic_load(&channel->down) &&
        !atomic_load(&channel->broken) && !atomic_load(&channel->close_requested) &&
        (expected.generation == 0 || channel->peer_generation == expected.generation) &&
        (!expected.name || strcmp(channel->peer_name, expected.name) == 0))
      found = channel;
  }
  if (found) rdt_channel_ref(found);
  pthread_mutex_unlock(&groups->lock);
  return found;
}

rdt_status rdt_group_meeting_connect(rdt_group *group, const char *address, rdt_expected expected,
                                     rdt_deadline deadline, rdt_channel **channel) {
  *channel = find_channel(group->groups, address, expected);
  if (*channel) return RDT_OK;
  return rdt_connect_for(group->device, address, expected, RDT_PURPOSE_GROUPS,
                         rdt_deadline_left(deadline), channel);
}

void rdt_group_meeting_link(rdt_group *group, uint32_t rank, rdt_channel *channel) {
  rdt_group_link *link = &group->links[rank];
  pthread_mutex_lock(&group->groups->lock);
  rdt_channel_ref(channel);
  link->channel = channel;
  link->maps = (channel->transport->capabilities & RDT_CAP_MAP) != 0;
  link->process = rdt_group_process_of(channel);
  if (atomic_load(&channel->down)) atomic_store(&link->down, true);
  pthread_mutex_unlock(&group->groups->lock);
}
