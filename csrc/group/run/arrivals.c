/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles what channels bring: messages for operations, including those that have not started
 * here, and the events that a channel is up or down.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "core/post/channel.h"
#include "group/run/run.h"

#define EARLY_MESSAGES 65536u /* kept from one member for operations that have not started */

/* Finds the group with this number, and takes a reference. */
static rdt_group *find_group(rdt_groups *groups, uint64_t id) {
  pthread_mutex_lock(&groups->lock);
  rdt_group *group = groups->list;
  while (group && group->id != id) group = group->next;
  if (group) rdt_group_ref(group);
  pthread_mutex_unlock(&groups->lock);
  return group;
}

static void malformed(rdt_channel *channel) {
  rdt_fail(RDT_ERR_PROTOCOL, "%s sent a malformed message of a group", channel->peer_name);
  rdt_channel_break(channel);
}

/* Appends the part to the operation's inbox. Call it under group->lock. */
static void put(rdt_group_operation *operation, rdt_group_part *part) {
  part->next = NULL;
  *operation->inbox_tail = part;
  operation->inbox_tail = &part->next;
  if (operation->started && operation->report && !operation->seen[part->head.from]) {
    operation->seen[part->head.from] = 1;
    *operation->report = (rdt_collective_report){rdt_now_ns() - operation->began, part->head.from};
  }
  rdt_group_operation_wake(operation);
}

/* Takes an ABORT of an operation that has not started here. Keeps the first one of each member,
 * which tells what that member called. Returns true if it kept this one. Call it under
 * group->lock. */
static bool abort_early(rdt_group *group, rdt_group_operation *operation, rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  char why[RDT_GROUP_REASON + 64];
  snprintf(why, sizeof(why), "member %u failed: %.*s", head->from, (int)(part->size - head->size),
           (const char *)rdt_group_part_payload(part) + head->size);
  rdt_group_operation_mark_aborted(operation, (rdt_status)head->status, why, strlen(why));
  bool first = !operation->answered[head->from];
  operation->answered[head->from] = 1;
  if (!first || group->links[head->from].early >= EARLY_MESSAGES) return false;
  group->links[head->from].early++;
  put(operation, part);
  return true;
}

/* An operation that runs here answers through its driver. For others this answers at once,
 * because nobody accesses their memory. */
static void take_abort(rdt_group *group, rdt_group_part *part) {
  const rdt_group_message head = part->head; /* a part in an inbox belongs to the driver */
  bool asks = head.number == RDT_ABORT_OPERATION, runs = false, kept = false;
  pthread_mutex_lock(&group->lock);
  const bool enter =
      asks && head.shape.kind != RDT_SEND && !rdt_group_tag_finished(group, head.tag);
  rdt_group_operation *operation = rdt_group_operation_find(group, head.tag, enter);
  rdt_group_part *dropped = NULL;
  if (operation &&
      operation->queue == &group->unmatched) { /* a send that failed before anybody received it */
    dropped = rdt_group_operation_forget(operation);
    operation = NULL;
  }
  /* Elements may have come for it since, as if for another operation with this tag. */
  if ((!operation || !operation->started) && rdt_group_tag_completed(group, head.tag))
    rdt_group_agreement_regret(group, part);
  if (operation && operation->started) {
    put(operation, part);
    runs = kept = true;
  } else if (operation) {
    kept = abort_early(group, operation, part);
  }
  bool many = rdt_group_operations_many(group);
  pthread_mutex_unlock(&group->lock);
  rdt_group_operation_drop_parts(group, dropped);
  if (many) rdt_group_operations_expire(group);
  if (asks && !runs)
    rdt_group_abort_send(group, head.from, head.tag, (rdt_status)head.status, "", RDT_ABORT_ANSWER);
  if (!kept) rdt_group_part_free(group, part);
}

/* Returns true if such a message may come before the operation starts here. */
static bool may_be_early(rdt_group_message_kind kind) {
  return kind != RDT_GROUP_ACK && kind != RDT_GROUP_PUSHED;
}

/* Finds who receives a message of a send that is not known here: a posted receive, or nobody yet. Later parts of a
 * send whose receive has failed are for nobody. Sets *lost if there is no room to keep the message: without it, a
 * receive would take a later one. */
static rdt_group_operation *receiver(rdt_group *group, const rdt_group_part *part, bool *lost) {
  const rdt_group_message *head = &part->head;
  if (head->at != 0 || part->kind == RDT_GROUP_OFFER || rdt_group_tag_finished(group, head->tag))
    return NULL;
  rdt_group_operation *operation = rdt_group_pair_match(group, head);
  if (operation) return operation;
  operation = rdt_group_operation_find(group, head->tag, true);
  if (operation)
    rdt_group_pair_keep(operation, head->from);
  else
    *lost = group->aborted == RDT_OK;
  return operation;
}

/* Finds the operation that the message is for. Elements for one that was complete here without them show that their
 * sender called something else. */
static rdt_group_operation *addressee(rdt_group *group, const rdt_group_part *part, bool *lost) {
  rdt_group_operation *operation = rdt_group_operation_find(group, part->head.tag, false);
  bool elements = part->kind == RDT_GROUP_EAGER || part->kind == RDT_GROUP_LEND;
  if (operation || !may_be_early(part->kind)) return operation;
  if (elements && rdt_group_tag_counted(part->head.tag) &&
      rdt_group_tag_completed(group, part->head.tag)) {
    rdt_group_agreement_regret(group, part);
    return NULL;
  }
  if (part->head.shape.kind == RDT_SEND) return receiver(group, part, lost);
  return rdt_group_operation_find(group, part->head.tag, true);
}

static void break_crowded(rdt_channel *channel) {
  rdt_fail(RDT_ERR_LIMIT, "%s sends more than can be kept for operations that have not begun here",
           channel->peer_name);
  rdt_channel_break(channel);
}

static void take_message(rdt_group *group, rdt_channel *channel, rdt_group_part *part) {
  rdt_group_link *link = &group->links[part->head.from];
  bool good = true, lost = false;
  pthread_mutex_lock(&group->lock);
  if (part->kind == RDT_GROUP_EAGER) good = rdt_group_credit_charge(link, part->size);
  rdt_group_operation *operation = addressee(group, part, &lost);
  if (operation && !operation->started) lost |= ++link->early > EARLY_MESSAGES;
  if (operation && good && !lost) put(operation, part);
  bool many = rdt_group_operations_many(group);
  pthread_mutex_unlock(&group->lock);
  if (many) rdt_group_operations_expire(group);
  if (!good)
    malformed(channel);
  else if (lost)
    break_crowded(channel);
  if (operation && good && !lost) return;
  rdt_group_operation_drop_parts(group, part);
}

static void take_leave(rdt_group *group, uint32_t from) {
  atomic_store(&group->links[from].left, true);
  rdt_group_wake(group);
}

static void dispatch(rdt_group *group, rdt_channel *channel, rdt_group_message_kind kind,
                     const rdt_group_message *head, const void *payload, size_t size) {
  rdt_group_credit_learn(&group->links[head->from], head->credit);
  if (kind == RDT_GROUP_CREDIT) return;
  if (kind == RDT_GROUP_LEAVE) {
    take_leave(group, head->from);
    return;
  }
  rdt_group_part *part = rdt_group_part_new(group, size);
  if (!part) {
    rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a message from %s", channel->peer_name);
    rdt_channel_break(channel);
    return;
  }
  part->kind = kind;
  part->head = *head;
  if (size) memcpy(rdt_group_part_payload(part), payload, size);
  if (kind == RDT_GROUP_ABORT) {
    /* The detail has lines, and is cleaned where it is quoted. */
    rdt_text_clean((char *)rdt_group_part_payload(part) + head->size, size - head->size);
    if (head->number != RDT_ABORT_GROUP) {
      take_abort(group, part);
      return;
    }
    rdt_group_aborted(group, head->from, (rdt_status)head->status, rdt_group_part_payload(part),
                      size);
    rdt_group_part_free(group, part);
  } else {
    take_message(group, channel, part);
  }
}

static bool is_sound(const rdt_group *group, const rdt_channel *channel,
                     rdt_group_message_kind kind, const rdt_group_message *head, size_t payload) {
  if (head->from >= group->size || group->links[head->from].channel != channel) return false;
  if (kind == RDT_GROUP_ABORT)
    return head->status < 0 && head->size <= payload && head->size < RDT_GROUP_DETAIL &&
           payload - head->size < RDT_GROUP_REASON;
  return payload <= (kind == RDT_GROUP_EAGER ? group->eager : 256);
}

static void take_operation(rdt_channel *channel, rdt_group_message_kind kind, const void *data,
                           size_t size) {
  rdt_group_message head;
  if (size < sizeof(head)) {
    malformed(channel);
    return;
  }
  memcpy(&head, data, sizeof(head));
  if (head.group == 0) { /* a group that is being formed has no number yet */
    malformed(channel);
    return;
  }
  rdt_group *group = find_group(rdt_groups_of(channel->device), head.group);
  if (!group) return; /* closed here meanwhile */
  size_t payload = size - sizeof(head);
  if (is_sound(group, channel, kind, &head, payload))
    dispatch(group, channel, kind, &head, (const char *)data + sizeof(head), payload);
  else
    malformed(channel);
  rdt_group_unref(group);
}

void rdt_groups_take(rdt_channel *channel, uint64_t type, const void *data, size_t size) {
  if (type >= RDT_GROUP_EAGER && type < RDT_GROUP_WRITTEN)
    take_operation(channel, (rdt_group_message_kind)type, data, size);
  else if (type >= RDT_GROUP_JOIN && type <= RDT_GROUP_PONG)
    rdt_group_join_request_take(channel, (rdt_group_message_kind)type, data, size);
  else
    malformed(channel);
}

void rdt_groups_connected(rdt_channel *channel) {
  rdt_groups *groups = rdt_groups_of(channel->device);
  rdt_group_channel *entry = malloc(sizeof(*entry));
  if (!entry) return; /* without an entry, other groups do not use the channel */
  rdt_channel_ref(channel);
  entry->channel = channel;
  pthread_mutex_lock(&groups->lock);
  entry->next = groups->channels;
  groups->channels = entry;
  pthread_mutex_unlock(&groups->lock);
}

void rdt_groups_forget_channel(rdt_groups *groups, rdt_channel *channel) {
  rdt_group_channel **link = &groups->channels;
  while (*link && (*link)->channel != channel) link = &(*link)->next;
  rdt_group_channel *entry = *link;
  if (!entry) return;
  *link = entry->next;
  rdt_channel_unref(channel);
  free(entry);
}

/* Marks every link over the channel, in every group. Call it under groups->lock. */
static void mark_links(rdt_groups *groups, const rdt_channel *channel, bool released) {
  for (rdt_group *group = groups->list; group; group = group->next) {
    for (uint32_t i = 0; i < group->size; i++) {
      rdt_group_link *link = &group->links[i];
      if (link->channel != channel) continue;
      atomic_store(released ? &link->released : &link->down, true);
      if (!released) rdt_group_forget_regions(group, link);
    }
    rdt_group_wake(group);
  }
}

void rdt_groups_down(rdt_channel *channel) {
  rdt_groups *groups = rdt_groups_of(channel->device);
  pthread_mutex_lock(&groups->lock);
  mark_links(groups, channel, false);
  rdt_groups_forget_channel(groups, channel);
  rdt_group_join_requests_forget(groups);
  pthread_cond_broadcast(&groups->join_requested);
  pthread_mutex_unlock(&groups->lock);
}

void rdt_groups_released(rdt_channel *channel) {
  rdt_groups *groups = rdt_groups_of(channel->device);
  pthread_mutex_lock(&groups->lock);
  mark_links(groups, channel, true);
  pthread_mutex_unlock(&groups->lock);
}
