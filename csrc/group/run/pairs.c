/* SPDX-License-Identifier: Apache-2.0
 *
 * Matches sends with receives. A SEND gives its operation a tag that no other has: the caller's, its rank and a
 * number. A RECEIVE learns this tag from the first message that fits. Until then, it waits among the group's posted
 * receives, in the order in which they were posted; a message that no posted receive fits waits as an early operation
 * among the unmatched ones, in the order of arrival. So what fits matches in order, as in MPI 4.1, 3.5.
 */
#include "group/run/run.h"

#define SEND_TAG 0xa800000000000000ull   /* second half of the tags of sends */
#define POSTED_TAG 0xb000000000000000ull /* of receives that wait for a message */
#define RANK_SHIFT 48
#define NUMBERS ((1ull << RANK_SHIFT) - 1)

void rdt_group_pair_number(rdt_group *group, const rdt_collective *call, uint64_t tag[2]) {
  const uint64_t number = atomic_fetch_add(&group->pairs, 1) & NUMBERS;
  const uint64_t kind = call->kind == RDT_SEND ? SEND_TAG : POSTED_TAG;
  tag[0] = call->tag[0];
  tag[1] = kind | (uint64_t)group->rank << RANK_SHIFT | number;
}

static void append(rdt_group_pair_queue *queue, rdt_group_operation *operation) {
  operation->queue = queue;
  operation->next_pair = NULL;
  *queue->tail = operation;
  queue->tail = &operation->next_pair;
}

void rdt_group_pair_unlist(rdt_group_operation *operation) {
  rdt_group_pair_queue *queue = operation->queue;
  if (!queue) return;
  rdt_group_operation **link = &queue->head;
  while (*link != operation) link = &(*link)->next_pair;
  *link = operation->next_pair;
  if (!*link) queue->tail = link;
  operation->queue = NULL;
}

void rdt_group_pair_post(rdt_group_operation *operation, uint32_t source) {
  operation->peer = source;
  append(&operation->group->posted, operation);
}

void rdt_group_pair_keep(rdt_group_operation *operation, uint32_t sender) {
  operation->peer = sender;
  append(&operation->group->unmatched, operation);
}

rdt_group_operation *rdt_group_pair_claim(rdt_group *group, uint32_t source, uint64_t tag) {
  for (rdt_group_operation *each = group->unmatched.head; each; each = each->next_pair) {
    if (each->tag[0] != tag || (source != RDT_ANY_MEMBER && each->peer != source)) continue;
    rdt_group_pair_unlist(each);
    return each;
  }
  return NULL;
}

rdt_group_operation *rdt_group_pair_match(rdt_group *group, const rdt_group_message *head) {
  for (rdt_group_operation *each = group->posted.head; each; each = each->next_pair) {
    if (each->tag[0] != head->tag[0] || (each->peer != RDT_ANY_MEMBER && each->peer != head->from))
      continue;
    rdt_group_pair_unlist(each);
    rdt_group_operation_rename(each, head->tag);
    each->peer = head->from;
    return each;
  }
  return NULL;
}

void rdt_group_pair_adopt(rdt_group_operation *operation) {
  if (operation->partner != RDT_GROUP_NOBODY || operation->queue) return;
  operation->partner = operation->peer;
  operation->single.step.step.peer = operation->peer;
}
