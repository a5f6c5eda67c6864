/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of some members of a group. They meet by sends and receives of the group that they have: each tells the first
 * of them which members it means, and learns the new group's number. When all know the group, the first one says so.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/random.h"
#include "base/status.h"
#include "group/run/run.h"

#define SPLIT_TAG (1ull << 63) /* apart from the tags of callers, which do not have this bit */

typedef struct word {
  uint64_t ranks; /* hash of the members; 0: somebody means others */
  uint64_t id;    /* of the new group; 0 until it is known */
  uint64_t
      call; /* names the call of rdt_group_split: what is left of one that failed counts no more */
} word;

/* The exchange by which the members of a new group agree. */
typedef struct talk {
  rdt_group *group; /* that they have */
  const char *name;
  uint64_t tag;
  rdt_deadline deadline;
} talk;

static rdt_status pass(const talk *t, rdt_collective_kind kind, uint32_t peer, word *what) {
  rdt_collective call = {.struct_size = sizeof(call),
                         .kind = kind,
                         .dtype = RDT_UINT64,
                         .root = peer,
                         .tag = {t->tag, 0},
                         .count = sizeof(*what) / sizeof(uint64_t),
                         .timeout_ms = rdt_deadline_left(t->deadline)};
  if (kind == RDT_SEND)
    call.input = what;
  else
    call.output = what;
  return rdt_group_run(t->group, &call);
}

static rdt_status fail_different(const talk *t) {
  return rdt_fail(RDT_ERR_PROTOCOL, "group %s: the callers of split differ in its members",
                  t->name);
}

/* Hears a member's first word. */
static rdt_status hear(const talk *t, uint32_t peer, word *heard) {
  rdt_status status = RDT_OK;
  do status = pass(t, RDT_RECEIVE, peer, heard);
  while (status == RDT_OK && heard->id != 0);
  return status;
}

/* Hears that a member knows the group. One that begins anew meanwhile is answered anew. */
static rdt_status hear_ready(const talk *t, uint32_t peer, word said, word *heard) {
  for (;;) {
    rdt_status status = pass(t, RDT_RECEIVE, peer, heard);
    if (status != RDT_OK || heard->id == said.id) return status;
    if (heard->id != 0) continue;
    if (heard->ranks != said.ranks) return fail_different(t);
    word answer = {said.ranks, said.id, heard->call};
    status = pass(t, RDT_SEND, peer, &answer);
    if (status != RDT_OK) return status;
  }
}

/* Answers what the others said with `said`, or, if members differ, with nothing. */
static rdt_status tell_all(const talk *t, const uint32_t *ranks, uint32_t size, const word *heard,
                           word said) {
  for (uint32_t i = 1; i < size; i++) {
    word answer = {said.ranks, said.id, heard[i].call};
    const rdt_status status = pass(t, RDT_SEND, ranks[i], &answer);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

static void set_id(rdt_group *part, uint64_t id) {
  pthread_mutex_lock(&part->groups->lock);
  part->id = id;
  pthread_mutex_unlock(&part->groups->lock);
}

static rdt_status lead_all(const talk *t, const uint32_t *ranks, uint32_t size, word said,
                           word *heard) {
  bool same = true;
  rdt_status status = RDT_OK;
  for (uint32_t i = 1; i < size && status == RDT_OK; i++) {
    status = hear(t, ranks[i], &heard[i]);
    same &= heard[i].ranks == said.ranks;
  }
  if (status == RDT_OK) status = tell_all(t, ranks, size, heard, same ? said : (word){0});
  if (status == RDT_OK && !same) return fail_different(t);
  for (uint32_t i = 1; i < size && status == RDT_OK; i++)
    status = hear_ready(t, ranks[i], said, &heard[i]);
  return status == RDT_OK ? tell_all(t, ranks, size, heard, said) : status;
}

static rdt_status lead(const talk *t, rdt_group *part, const uint32_t *ranks, word said) {
  rdt_status status = rdt_random_id(&said.id);
  if (status != RDT_OK) return status;
  set_id(part, said.id);
  word *heard = calloc(part->size, sizeof(*heard));
  if (!heard) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  status = lead_all(t, ranks, part->size, said, heard);
  free(heard);
  return status;
}

/* Waits for an answer to this call. */
static rdt_status answer_of(const talk *t, uint32_t first, uint64_t call, word *heard) {
  rdt_status status = RDT_OK;
  do status = pass(t, RDT_RECEIVE, first, heard);
  while (status == RDT_OK && heard->call != call);
  return status;
}

static rdt_status follow(const talk *t, rdt_group *part, uint32_t first, word said) {
  word heard = {0};
  rdt_status status = rdt_random_id(&said.call);
  if (status == RDT_OK) status = pass(t, RDT_SEND, first, &said);
  if (status == RDT_OK) status = answer_of(t, first, said.call, &heard);
  if (status != RDT_OK) return status;
  if (heard.ranks != said.ranks) return fail_different(t);
  set_id(part, heard.id);
  status = pass(t, RDT_SEND, first, &heard);
  return status == RDT_OK ? answer_of(t, first, said.call, &heard) : status;
}

/* Takes over what the members know of each other. */
static void inherit(rdt_group *part, const rdt_group *group, const uint32_t *ranks) {
  uint32_t hosts = 0;
  part->eager = group->eager;
  part->chunk = group->chunk;
  part->costs = group->costs;
  part->reads = group->reads;
  part->checks = group->checks;
  part->forced = group->forced;
  for (uint32_t i = 0; i < part->size; i++) {
    uint32_t same = 0;
    while (same < i && group->hosts[ranks[same]] != group->hosts[ranks[i]]) same++;
    part->hosts[i] = same < i ? part->hosts[same] : hosts++;
    if (i != part->rank) rdt_group_meeting_link(part, i, group->links[ranks[i]].channel);
  }
}

/* Finds this member's rank in the new group. */
static rdt_status check(const rdt_group *group, const uint32_t *ranks, uint32_t size,
                        uint32_t *own) {
  bool found = false;
  for (uint32_t i = 0; i < size; i++) {
    if (ranks[i] >= group->size)
      return rdt_fail(RDT_ERR_INVALID, "%u is no member: there are %u", ranks[i], group->size);
    for (uint32_t k = 0; k < i; k++)
      if (ranks[k] == ranks[i])
        return rdt_fail(RDT_ERR_INVALID, "member %u is listed twice", ranks[i]);
    if (ranks[i] != group->rank) continue;
    *own = i;
    found = true;
  }
  if (!found) return rdt_fail(RDT_ERR_INVALID, "this member, %u, is not listed", group->rank);
  return RDT_OK;
}

static rdt_status meet(rdt_group *part, rdt_group *group, const uint32_t *ranks,
                       rdt_deadline deadline) {
  const talk t = {group, part->name,
                  SPLIT_TAG | rdt_group_agreement_hash(part->name, strlen(part->name)), deadline};
  const word said = {.ranks = rdt_group_agreement_hash(ranks, part->size * sizeof(*ranks))};
  inherit(part, group, ranks);
  return part->rank == 0 ? lead(&t, part, ranks, said) : follow(&t, part, ranks[0], said);
}

rdt_status rdt_group_split(rdt_group *group, const char *name, const uint32_t *ranks, uint32_t size,
                           int timeout_ms, rdt_group **part_out) {
  uint32_t own = 0;
  if (!group || !ranks || !part_out || size == 0)
    return rdt_fail(RDT_ERR_INVALID, "group, ranks and part must not be NULL, nor size 0");
  if (!name || !name[0] || strlen(name) >= RDT_GROUP_NAME_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "a group's name has 1 to %d bytes", RDT_GROUP_NAME_SIZE - 1);
  rdt_status status = rdt_device_check(group->device);
  if (status == RDT_OK) status = rdt_group_usable(group);
  if (status == RDT_OK) status = check(group, ranks, size, &own);
  if (status != RDT_OK) return status;
  const rdt_group_options options = {.name = name, .rank = own, .size = size};
  rdt_group *part = rdt_group_new(group->device, &options);
  if (!part) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  status = rdt_group_enlist(part);
  if (status == RDT_OK) {
    status = meet(part, group, ranks, rdt_deadline_after(timeout_ms));
    rdt_group_end_joining(part->groups);
    if (status != RDT_OK) rdt_group_delist(part);
  }
  if (status == RDT_OK)
    *part_out = part;
  else
    rdt_group_unref(part);
  return status;
}
