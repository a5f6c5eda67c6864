/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes messages into peers' memory piece by piece. A connection carries bytes in the order in which
 * they were posted. A long message that is posted as a whole therefore holds up all others, also
 * those that are needed first: the weights of a network's large last layers, for example, those of
 * its small first ones. Here a link has little under way, and the shortest message goes first.
 * See "Priority-based Parameter Propagation" (Jayarajan et al., arXiv 1905.03960), whose
 * priorities are those of layers.
 */
#include "group/run/run.h"

/* A link has as many bytes under way as it carries in this time plus a round trip. Even if the group
 * measured a tenth of the link's speed, the link stays busy. */
#define AHEAD_NS 2e6
#define PIECES 2u /* of which it consists */
#define SHORTEST_PIECE (64u * 1024)
#define LONGEST_PIECE (1ull << 30)
#define PAGE 4096u
#define OLDEST_EVERY 4u /* pieces; one is of the oldest message, so that every message goes on */

static uint64_t piece_of(const rdt_group *group, uint32_t peer) {
  const rdt_group_pair pair =
      group->hosts[peer] == group->hosts[group->rank] ? RDT_PAIR_LOCAL : RDT_PAIR_REMOTE;
  const rdt_group_costs *costs = &group->costs;
  const double carries_ns = AHEAD_NS + 2 * costs->latency_ns[pair];
  const double byte_ns = costs->byte_ns[pair] * PIECES;
  if (byte_ns * LONGEST_PIECE <= carries_ns) return LONGEST_PIECE;
  if (byte_ns * SHORTEST_PIECE >= carries_ns) return SHORTEST_PIECE;
  return (uint64_t)(carries_ns / byte_ns) / PAGE * PAGE;
}

static void finish_locked(rdt_group_part *part) {
  rdt_group_operation *operation = part->operation;
  part->kind = RDT_GROUP_WRITTEN;
  part->head.status = part->push.status;
  part->next = NULL;
  *operation->inbox_tail = part;
  operation->inbox_tail = &part->next;
  rdt_group_operation_wake(operation);
}

static void append_locked(rdt_group_link *link, rdt_group_part *part) {
  rdt_group_part **tail = &link->pushes;
  while (*tail) tail = &(*tail)->next;
  part->next = NULL;
  *tail = part;
}

static void remove_locked(rdt_group_link *link, rdt_group_part *part) {
  rdt_group_part **place = &link->pushes;
  while (*place != part) place = &(*place)->next;
  *place = part->next;
}

/* Writes of one message stay in their order: they are equally long, and the oldest is the first. */
static rdt_group_part *choose_locked(rdt_group_link *link) {
  rdt_group_part *chosen = link->pushes;
  if (link->turn++ % OLDEST_EVERY == 0) return chosen;
  for (rdt_group_part *each = chosen; each; each = each->next)
    if (each->push.message < chosen->push.message) chosen = each;
  return chosen;
}

static rdt_status post(rdt_group_part *part, uint64_t at, uint64_t size);

static void account(rdt_group_part *part, rdt_status status) {
  rdt_group *group = part->group;
  if (status < 0) rdt_group_pushes_end(part->operation);
  pthread_mutex_lock(&group->lock);
  group->links[part->push.peer].pieces--;
  if (status < 0 && part->push.status == RDT_OK) part->push.status = status;
  rdt_remote_region *done = --part->push.open == 0 && !part->push.waits ? part->push.to : NULL;
  if (done) finish_locked(part);
  pthread_mutex_unlock(&group->lock);
  rdt_remote_region_unref(done);
}

/* Posts pieces while the link may have more under way. A thread that finds another one here leaves
 * that to it, so pieces of a message are posted in their order. */
static void pump(rdt_group *group, uint32_t peer) {
  rdt_group_link *link = &group->links[peer];
  const uint64_t piece = piece_of(group, peer);
  pthread_mutex_lock(&group->lock);
  while (!link->pumping && link->pieces < PIECES && link->pushes) {
    rdt_group_part *part = choose_locked(link);
    const uint64_t at = part->push.at, left = part->head.size - at;
    const uint64_t size = left < piece ? left : piece;
    part->push.at += size;
    part->push.open++;
    link->pieces++;
    if (size == left) {
      remove_locked(link, part);
      part->push.waits = false;
    }
    link->pumping = true;
    pthread_mutex_unlock(&group->lock);
    rdt_group_ref(group);
    const rdt_status status = post(part, at, size);
    if (status != RDT_IN_PROGRESS) {
      account(part, status);
      rdt_group_unref(group);
    }
    pthread_mutex_lock(&group->lock);
    link->pumping = false;
  }
  pthread_mutex_unlock(&group->lock);
}

static void piece_done(void *context, rdt_status status) {
  rdt_group_part *part = context;
  rdt_group *group = part->group;
  const uint32_t peer = part->push.peer;
  account(part, status);
  pump(group, peer);
  rdt_group_unref(group);
}

/* The last piece of a message carries its head. */
static rdt_status post(rdt_group_part *part, uint64_t at, uint64_t size) {
  rdt_group *group = part->group;
  rdt_op ops[2] = {{.kind = RDT_OP_WRITE,
                    .local = (void *)(part->push.from + at),
                    .size = size,
                    .remote = part->push.to,
                    .remote_offset = part->head.offset + at},
                   {.kind = RDT_OP_NOTIFY,
                    .local = &part->head,
                    .size = sizeof(part->head),
                    .immediate = RDT_GROUP_PUSHED}};
  const bool last = at + size == part->head.size;
  if (last) rdt_group_credit_tell(group, part->push.peer, &part->head);
  return rdt_channel_post(group->links[part->push.peer].channel, ops, last ? 2 : 1, piece_done,
                          part);
}

void rdt_group_part_push(rdt_group *group, uint32_t peer, rdt_group_part *part, const void *from,
                         rdt_remote_region *to, uint64_t message) {
  rdt_remote_region_ref(to);
  part->group = group;
  part->push =
      (rdt_group_push){.from = from, .to = to, .message = message, .peer = peer, .status = RDT_OK};
  pthread_mutex_lock(&group->lock);
  const bool ended = part->operation->writes_ended;
  part->push.waits = !ended;
  if (ended)
    finish_locked(part);
  else
    append_locked(&group->links[peer], part);
  pthread_mutex_unlock(&group->lock);
  if (ended)
    rdt_remote_region_unref(to);
  else
    pump(group, peer);
}

void rdt_group_pushes_end(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  rdt_group_part *dropped = NULL;
  pthread_mutex_lock(&group->lock);
  operation->writes_ended = true;
  for (uint32_t peer = 0; peer < group->size; peer++) {
    rdt_group_part **place = &group->links[peer].pushes;
    while (*place) {
      rdt_group_part *part = *place;
      if (part->operation != operation) {
        place = &part->next;
        continue;
      }
      *place = part->next;
      part->push.waits = false;
      if (part->push.open > 0) continue; /* it ends with its last piece */
      part->next = dropped;
      dropped = part;
    }
  }
  pthread_mutex_unlock(&group->lock);
  while (dropped) {
    rdt_group_part *part = dropped;
    dropped = part->next;
    rdt_remote_region_unref(part->push.to);
    pthread_mutex_lock(&group->lock);
    finish_locked(part);
    pthread_mutex_unlock(&group->lock);
  }
}
