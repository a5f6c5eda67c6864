/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects members that call different operations. Every message of an operation carries its
 * sender's view, with a hash of the caller's detail, so the receiver notices a difference. The
 * details follow in ABORTs. A member ends the operation only when it has those of all others, so
 * each member can report its own view and a differing one, whoever noticed.
 */
#include <stdio.h>
#include <string.h>

#include "group/group.h"

/* FNV-1a, which gives every member the same hash and is quick for short texts. */
static uint64_t hash_of(const char *text, size_t length) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3ull;
  return hash ? hash : 1;
}

void rdt_group_agreement_begin(rdt_group_operation *operation, const char *detail) {
  size_t length = detail ? strlen(detail) : 0;
  size_t kept = length < RDT_GROUP_DETAIL ? length : RDT_GROUP_DETAIL - 1;
  operation->differs = false;
  operation->shape.detail = detail ? hash_of(detail, length) : 0;
  if (kept) memcpy(operation->detail, detail, kept);
  operation->detail[kept] = '\0';
}

static bool is_own(const rdt_group_operation *operation, const rdt_group_shape *shape) {
  return memcmp(shape, &operation->shape, sizeof(*shape)) == 0;
}

/* Notes the first view that differs. Its detail comes later. */
static void note(rdt_group_operation *operation, const rdt_group_message *head,
                 const char *detail) {
  if (operation->differs && operation->other_rank != head->from) return;
  operation->differs = true;
  operation->other_rank = head->from;
  operation->other = head->shape;
  snprintf(operation->other_detail, sizeof(operation->other_detail), "%.*s", (int)head->size,
           detail);
}

void rdt_group_agreement_fail(rdt_group_operation *operation, const rdt_group_message *head) {
  if (operation->status == RDT_IN_PROGRESS) {
    rdt_group_message view = *head;
    view.size = 0;
    note(operation, &view, "");
  }
  rdt_group_operation_fail(operation, RDT_ERR_PROTOCOL, "members disagree about the operation");
}

void rdt_group_agreement_learn(rdt_group_operation *operation, const rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  bool runs_there = head->number == RDT_ABORT_OPERATION && head->shape.kind != 0;
  if (!runs_there || is_own(operation, &head->shape)) return;
  note(operation, head, (const char *)(part + 1));
  /* Each member waited for a message that the other would not send. */
  if (operation->status == RDT_ERR_DEADLINE) operation->status = RDT_ERR_PROTOCOL;
}

static void describe(char *out, size_t size, const rdt_group_shape *shape, const char *detail) {
  snprintf(out, size,
           "kind %u, type %u, reduction %u, algorithm %u, trees %#x, root %u, %llu elements%s%s",
           shape->kind, shape->dtype, shape->reduction, shape->algorithm, shape->trees, shape->root,
           (unsigned long long)shape->count, detail[0] ? ", " : "", detail);
}

void rdt_group_agreement_tell(rdt_group_operation *operation) {
  char own[RDT_GROUP_DETAIL + 128], other[RDT_GROUP_DETAIL + 128];
  if (!operation->differs || operation->status != RDT_ERR_PROTOCOL) return;
  describe(own, sizeof(own), &operation->shape, operation->detail);
  describe(other, sizeof(other), &operation->other, operation->other_detail);
  snprintf(operation->text, sizeof(operation->text),
           "group %s: members disagree about the operation: %s here; %s at member %u",
           operation->group->name, own, other, operation->other_rank);
}
