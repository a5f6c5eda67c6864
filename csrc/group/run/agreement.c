/* SPDX-License-Identifier: Apache-2.0
 *
 * Detects members that call different operations. Every message of an operation carries its
 * sender's view, with a hash of the caller's detail, so the receiver notices a difference. The
 * details follow in ABORTs. A member ends the operation only when it has those of all others, so
 * each member can report its own view and a differing one, whoever noticed. A detail may have
 * many lines: the report shows the first one that differs. A member where the operation was
 * complete before another one noticed learns it from the ABORT, and its next operation fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"
#include "group/run/run.h"

#define LINE 160 /* bytes that a report quotes of a line */
#define VIEW 400 /* of an operation: its arguments, and a line */

static const char *const kind_names[] = {
    "",       "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
    "gather", "scatter",    "reduce",         "barrier",    "send"};
static const char *const dtype_names[] = {"",       "float32", "float64", "float16", "bfloat16",
                                          "int8",   "int16",   "int32",   "int64",   "uint8",
                                          "uint16", "uint32",  "uint64"};
static const char *const reduction_names[] = {"",     "sum", "product", "min", "max",
                                              "mean", "and", "or",      "xor", "scaled sum"};

#define NAME_OF(names, number) \
  ((number) < sizeof(names) / sizeof((names)[0]) ? (names)[number] : "unknown")

/* Takes eight bytes at a time, because a list of all variables of a model is long and every step
 * hashes it. Gives every member the same hash. */
uint64_t rdt_group_agreement_hash(const void *bytes, size_t length) {
  const char *text = bytes;
  uint64_t hash = 0xcbf29ce484222325ull ^ length;
  while (length > 0) {
    size_t taken = length < sizeof(uint64_t) ? length : sizeof(uint64_t);
    uint64_t word = 0;
    memcpy(&word, text, taken);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
    text += taken;
    length -= taken;
  }
  return hash ? hash : 1;
}

/* Replaces the text. RDT_ERR_NO_MEMORY. */
static rdt_status keep(rdt_group_detail *detail, const char *text, size_t length) {
  if (length >= RDT_GROUP_DETAIL) length = RDT_GROUP_DETAIL - 1;
  if (length >= detail->room) {
    size_t room = length < 240 ? 256 : length + 1 + length / 4;
    char *grown = realloc(detail->text, room);
    if (!grown) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
    detail->text = grown;
    detail->room = room;
  }
  if (length) memcpy(detail->text, text, length);
  detail->text[length] = '\0';
  return RDT_OK;
}

rdt_status rdt_group_agreement_begin(rdt_group_operation *operation, const char *detail) {
  size_t length = detail ? strlen(detail) : 0;
  operation->differs = false;
  operation->shape.detail = detail ? rdt_group_agreement_hash(detail, length) : 0;
  return keep(&operation->detail, detail, length);
}

static bool is_own(const rdt_group_operation *operation, const rdt_group_shape *shape) {
  return memcmp(shape, &operation->shape, sizeof(*shape)) == 0;
}

/* Notes the first view that differs. Its detail comes later. */
static void note(rdt_group_operation *operation, const rdt_group_message *head,
                 const char *detail) {
  if (operation->differs && operation->other_rank != head->from) return;
  if (keep(&operation->other_detail, detail, head->size) != RDT_OK) return;
  operation->differs = true;
  operation->other_rank = head->from;
  operation->other = head->shape;
}

void rdt_group_agreement_learn(rdt_group_operation *operation, const rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  bool runs_there = head->number == RDT_ABORT_OPERATION && head->shape.kind != 0;
  if (!runs_there || is_own(operation, &head->shape)) return;
  note(operation, head, (const char *)(part + 1));
  /* Each member waited for a message that the other would not send. */
  if (operation->status == RDT_ERR_DEADLINE) operation->status = RDT_ERR_PROTOCOL;
}

typedef struct line {
  const char *text; /* NULL: there is none */
  size_t length;
} line;

static line first_line(const char *text) { return (line){text, strcspn(text, "\n")}; }

static line next_line(line before) {
  if (!before.text || before.text[before.length] != '\n') return (line){NULL, 0};
  return first_line(before.text + before.length + 1);
}

static bool same_line(line a, line b) {
  return a.length == b.length && !a.text == !b.text &&
         (a.length == 0 || memcmp(a.text, b.text, a.length) == 0);
}

/* Quotes a line that another member may have sent. */
static void quote(char out[LINE + 1], line what) {
  const char *text = what.text ? what.text : "nothing";
  size_t length = what.text ? what.length : strlen(text);
  if (length > LINE) length = LINE;
  memcpy(out, text, length);
  out[length] = '\0';
  rdt_text_clean(out, length);
}

/* Describes what a member does. Algorithm and trees are named only where they differ from those of `other`. */
static void describe(char out[VIEW], const rdt_group_shape *shape, const rdt_group_shape *other,
                     line heading) {
  char quoted[LINE + 1];
  size_t used = 0;
#define ADD(...) used += (size_t)snprintf(out + used, VIEW - used, __VA_ARGS__)
  ADD("%s", NAME_OF(kind_names, shape->kind));
  if (shape->kind != RDT_BARRIER)
    ADD(" of %s [%llu]", NAME_OF(dtype_names, shape->dtype), (unsigned long long)shape->count);
  if (shape->reduction) ADD(" (%s)", NAME_OF(reduction_names, shape->reduction));
  if (shape->kind == RDT_BROADCAST || shape->kind == RDT_SCATTER)
    ADD(" from member %u", shape->root);
  if (shape->kind == RDT_GATHER || shape->kind == RDT_REDUCE) ADD(" to member %u", shape->root);
  if (shape->more != other->more)
    ADD(shape->reduction == RDT_SCALED_SUM ? ", factor %#llx" : ", parts %#llx",
        (unsigned long long)shape->more);
  if (shape->kind == other->kind && shape->algorithm != other->algorithm)
    ADD(", algorithm %s", rdt_algorithm_name(shape->algorithm));
  if (shape->trees != other->trees) ADD(", trees %#x", shape->trees);
  quote(quoted, heading);
  if (heading.length) ADD(", %s", quoted);
#undef ADD
}

void rdt_group_agreement_tell(rdt_group_operation *operation) {
  if (!operation->differs || operation->status != RDT_ERR_PROTOCOL) return;
  char own[VIEW], other[VIEW], mine[LINE + 1], theirs[LINE + 1];
  line here = first_line(operation->detail.text), there = first_line(operation->other_detail.text);
  bool same_heading = same_line(here, there);
  describe(own, &operation->shape, &operation->other, here);
  describe(other, &operation->other, &operation->shape, there);
  unsigned number = 0;
  if (same_heading) do {
      number++;
      here = next_line(here);
      there = next_line(there);
    } while (here.text && same_line(here, there));
  char *text = operation->text;
  const size_t size = sizeof(operation->text);
  const char *name = operation->group->name;
  quote(mine, here);
  quote(theirs, there);
  if (!same_heading || same_line(here, there)) /* also where the texts were cut */
    snprintf(text, size, "group %s: members disagree about the operation: %s here; %s at member %u",
             name, own, other, operation->other_rank);
  else if (strcmp(own, other) == 0)
    snprintf(text, size,
             "group %s: members disagree about the operation: %s: number %u is %s here; %s at "
             "member %u",
             name, own, number, mine, theirs, operation->other_rank);
  else
    snprintf(text, size,
             "group %s: members disagree about the operation: %s: number %u is %s here; %s: number "
             "%u is %s at member %u",
             name, own, number, mine, other, number, theirs, operation->other_rank);
}

void rdt_group_agreement_fail(rdt_group_operation *operation, const rdt_group_message *head) {
  if (operation->status != RDT_IN_PROGRESS) return;
  rdt_group_message view = *head;
  view.size = 0;
  note(operation, &view, "");
  rdt_group_operation_fail(operation, RDT_ERR_PROTOCOL, "members disagree about the operation");
  rdt_group_agreement_tell(operation); /* for members that learn of it from this one */
}

void rdt_group_agreement_regret(rdt_group *group, const rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  bool aborts = part->kind == RDT_GROUP_ABORT;
  bool disagreed = !aborts || (head->number == RDT_ABORT_OPERATION &&
                               head->status == RDT_ERR_PROTOCOL && head->shape.kind != 0);
  /* One error is enough, though every other member sends an ABORT. */
  if (!disagreed || memcmp(group->regretted, head->tag, sizeof(group->regretted)) == 0) return;
  char view[VIEW];
  rdt_group_detail detail = {NULL, 0};
  if (keep(&detail, (const char *)(part + 1), aborts ? head->size : 0) != RDT_OK) return;
  describe(view, &head->shape, &head->shape, first_line(detail.text));
  free(detail.text);
  snprintf(group->regret, sizeof(group->regret),
           "members disagreed about an earlier operation, which was complete here: %s at member %u",
           view, head->from);
  memcpy(group->regretted, head->tag, sizeof(group->regretted));
  group->regrets = true;
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++)
    for (rdt_group_operation *each = group->table[i]; each; each = each->next)
      rdt_group_operation_wake(each);
}
