/* SPDX-License-Identifier: Apache-2.0
 *
 * The table in which messages find their operations, from the first message or the start to the end.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "group/run/run.h"

#define EARLY_LIMIT 65536u /* operations that others have started and this member has not */
#define EARLY_SWEEP 1024u  /* the number of these at which some are dropped */

static size_t hash(const uint64_t tag[2]) {
  uint64_t mixed = (tag[0] ^ (tag[1] << 1)) * 0x9e3779b97f4a7c15ull;
  return (size_t)(mixed >> 40);
}

static bool same_tag(const uint64_t a[2], const uint64_t b[2]) {
  return a[0] == b[0] && a[1] == b[1];
}

bool rdt_group_tag_finished(const rdt_group *group, const uint64_t tag[2]) {
  return same_tag(group->finished[hash(tag) % RDT_GROUP_FINISHED], tag);
}

bool rdt_group_tag_completed(const rdt_group *group, const uint64_t tag[2]) {
  return rdt_group_tag_finished(group, tag) && group->completed[hash(tag) % RDT_GROUP_FINISHED];
}

static rdt_group_operation *operation_new(rdt_group *group) {
  rdt_group_operation *operation = group->free_operations;
  if (operation) {
    group->free_operations = operation->next;
    return operation;
  }
  operation = calloc(1, sizeof(*operation));
  if (!operation) return NULL;
  operation->answered = calloc(group->size, 1);
  operation->seen = calloc(group->size, 1);
  if (!operation->answered || !operation->seen) {
    free(operation->answered);
    free(operation->seen);
    free(operation);
    return NULL;
  }
  operation->group = group;
  operation->inbox_tail = &operation->inbox;
  rdt_cond_init(&operation->wakes);
  return operation;
}

void rdt_group_operation_free(rdt_group_operation *operation) {
  pthread_cond_destroy(&operation->wakes);
  free(operation->answered);
  free(operation->seen);
  free(operation->detail.text);
  free(operation->other_detail.text);
  free(operation->steps);
  free(operation->lanes);
  free(operation->offsets);
  free(operation);
}

rdt_group_operation *rdt_group_operation_find(rdt_group *group, const uint64_t tag[2], bool enter) {
  rdt_group_operation **bucket = &group->table[hash(tag) % RDT_GROUP_BUCKETS];
  for (rdt_group_operation *each = *bucket; each; each = each->next)
    if (same_tag(each->tag, tag)) return each;
  if (!enter || group->aborted != RDT_OK || group->early >= EARLY_LIMIT) return NULL;
  rdt_group_operation *operation = operation_new(group);
  if (!operation) return NULL;
  memcpy(operation->tag, tag, sizeof(operation->tag));
  operation->started = operation->ended = false;
  operation->aborted = RDT_OK;
  operation->since = rdt_now_ms();
  operation->peer = RDT_GROUP_EVERYBODY;
  operation->handle = 0;
  memset(operation->answered, 0, group->size);
  operation->next = *bucket;
  *bucket = operation;
  group->early++;
  return operation;
}

/* Returns the credit of parts that no operation will take. */
void rdt_group_operation_drop_parts(rdt_group *group, rdt_group_part *parts) {
  while (parts) {
    rdt_group_part *next = parts->next;
    if (parts->kind == RDT_GROUP_EAGER)
      rdt_group_credit_return(group, parts->head.from, parts->size);
    rdt_group_part_free(group, parts);
    parts = next;
  }
}

static void take_out(rdt_group *group, rdt_group_operation *operation) {
  rdt_group_operation **link = &group->table[hash(operation->tag) % RDT_GROUP_BUCKETS];
  while (*link != operation) link = &(*link)->next;
  *link = operation->next;
}

void rdt_group_operation_rename(rdt_group_operation *operation, const uint64_t tag[2]) {
  rdt_group *group = operation->group;
  take_out(group, operation);
  memcpy(operation->tag, tag, sizeof(operation->tag));
  rdt_group_operation **bucket = &group->table[hash(tag) % RDT_GROUP_BUCKETS];
  operation->next = *bucket;
  *bucket = operation;
}

static bool sender_is_gone(const rdt_group_operation *operation) {
  const rdt_group_part *part = operation->inbox;
  while (part && atomic_load(&operation->group->links[part->head.from].down)) part = part->next;
  return !part;
}

rdt_group_part *rdt_group_operation_forget(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  rdt_group_part *parts = operation->inbox;
  for (const rdt_group_part *part = parts; part; part = part->next)
    group->links[part->head.from].early--;
  operation->inbox = NULL;
  operation->inbox_tail = &operation->inbox;
  rdt_group_pair_unlist(operation);
  take_out(group, operation);
  operation->next = group->free_operations;
  group->free_operations = operation;
  group->early--;
  return parts;
}

/* Drops operations of the bucket from before `until`, and puts their parts in front of `parts`. */
static rdt_group_part *sweep(rdt_group_operation **link, int64_t until, rdt_group_part *parts) {
  while (*link) {
    rdt_group_operation *each = *link;
    bool needless = each->aborted != RDT_OK || sender_is_gone(each);
    if (each->started || each->since > until || !needless) {
      link = &each->next;
      continue;
    }
    rdt_group_part **end = each->inbox ? each->inbox_tail : NULL;
    rdt_group_part *dropped = rdt_group_operation_forget(each);
    if (!dropped) continue;
    *end = parts;
    parts = dropped;
  }
  return parts;
}

bool rdt_group_operations_many(const rdt_group *group) { return group->early >= EARLY_SWEEP; }

void rdt_group_operations_expire(rdt_group *group) {
  rdt_group_part *parts = NULL;
  int64_t now = rdt_now_ms(), kept = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  pthread_mutex_lock(&group->lock);
  if (now - group->swept >= kept / 4) {
    for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++)
      parts = sweep(&group->table[i], now - kept, parts);
    group->swept = now;
  }
  pthread_mutex_unlock(&group->lock);
  rdt_group_operation_drop_parts(group, parts);
}

void rdt_group_operations_drop_early(rdt_group *group) {
  rdt_group_part *parts = NULL;
  pthread_mutex_lock(&group->lock);
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++) parts = sweep(&group->table[i], INT64_MAX, parts);
  pthread_mutex_unlock(&group->lock);
  rdt_group_operation_drop_parts(group, parts);
}

void rdt_group_operation_retire(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  pthread_mutex_lock(&group->lock);
  rdt_group_part *parts = operation->inbox;
  operation->inbox = NULL;
  operation->inbox_tail = &operation->inbox;
  take_out(group, operation);
  size_t slot = hash(operation->tag) % RDT_GROUP_FINISHED;
  memcpy(group->finished[slot], operation->tag, sizeof(operation->tag));
  group->completed[slot] = operation->status == RDT_OK;
  for (const rdt_group_part *part = parts; part && operation->status == RDT_OK; part = part->next)
    if (part->kind == RDT_GROUP_ABORT || part->kind == RDT_GROUP_EAGER ||
        part->kind == RDT_GROUP_LEND)
      rdt_group_agreement_regret(group, part);
  rdt_group_program_release(operation->program);
  operation->program = NULL;
  rdt_group_ready_drop(operation);
  operation->context = NULL; /* a waiter looks for its own */
  operation->next = group->free_operations;
  group->free_operations = operation;
  pthread_mutex_unlock(&group->lock);
  rdt_group_operation_drop_parts(group, parts);
}

void rdt_group_operation_over(rdt_group *group) {
  pthread_mutex_lock(&group->lock);
  group->started--;
  if (group->closing) pthread_cond_broadcast(&group->changed);
  pthread_mutex_unlock(&group->lock);
}
