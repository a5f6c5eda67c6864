/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of operations: those that the operation could get, with any of their fields changed, in any order,
 * early, late, twice. The operation ends, well or not, and nothing is touched but its buffers and the
 * regions that messages name.
 */
#include <unistd.h>

#include "../unit/forest.h"
#include "group_stage.h"

#define MOST_COUNT 512u
#define STEPS 200
#define LENT_BYTES 65536u

/* What an input may change of a message. */
enum {
  CHANGE_GROUP = 1,
  CHANGE_TAG = 2,
  CHANGE_SHAPE = 4,
  CHANGE_FROM = 8,
  CHANGE_LANE = 16,
  CHANGE_NUMBER = 32,
  CHANGE_STATUS = 64,
  CHANGE_AT = 128,
  CHANGE_SIZE = 256,
  CHANGE_KEY = 512,
  CHANGE_OFFSET = 1024,
  CHANGE_CREDIT = 2048,
  CHANGE_PAYLOAD = 4096,
  CHANGE_CHANNEL = 8192,
  CHANGE_LENGTH = 16384
};

static stage here;
static rdt_group *groups[3];
static uint8_t lent[LENT_BYTES]; /* what lies in no region */
static uint64_t tags;

static void give_trees(rdt_group *group) {
  forest grown;
  forest_grow(&grown, group->size, group->size);
  FUZZ_EXPECT(rdt_trees_make(grown.trees, grown.count, NULL, group->size, group->hosts,
                             &group->trees) == RDT_OK);
}

static void start(void) {
  static const uint32_t sizes[] = {2, 4, 5}, ranks[] = {0, 1, 4};
  if (here.device) return;
  stage_open(&here);
  for (uint32_t g = 0; g < 3; g++) {
    groups[g] = stage_group(&here, "fuzz", ranks[g], sizes[g]);
    groups[g]->id = 100 + g;
    for (uint32_t i = 0; i < sizes[g]; i++) {
      groups[g]->hosts[i] = g == 2 ? i / 2 : 0;
      if (i != ranks[g]) rdt_group_meeting_link(groups[g], i, here.channels[i]);
    }
    if (g > 0) give_trees(groups[g]); /* TREES is RING in the first one */
  }
}

/* ---- what the peers send ------------------------------------------------------------------------------ */

static rdt_group_message message_of(const rdt_group *group, const rdt_group_operation *operation,
                                    uint64_t tag, fuzz_input *input) {
  rdt_group_message head = {.group = group->id, .tag = {tag, 7}, .from = group->rank == 0};
  uint8_t which = fuzz_u8(input);
  if (!operation) return head;
  head.shape = operation->shape;
  /* The first message that fits tells a receive its tag. */
  if (operation->partner != RDT_GROUP_NOBODY) memcpy(head.tag, operation->tag, sizeof head.tag);
  if (operation->program->count == 0) return head;
  uint32_t index = which % operation->program->count;
  const rdt_group_program_step *step = &operation->program->steps[index];
  head.from = step->step.peer;
  head.lane = step->step.lane;
  head.number = step->number;
  head.size = step->step.count * operation->element;
  return head;
}

/* Where the bytes lie, or may be written. */
static void choose_place(rdt_group_message *head, fuzz_input *input) {
  head->key = fuzz_u8(input) % (REGIONS + 1);
  head->offset = fuzz_u16(input);
  if (head->key == 0) head->offset += (uintptr_t)lent;
}

static void change(rdt_group_message *head, uint16_t what, fuzz_input *input) {
  if (what & CHANGE_GROUP) head->group = fuzz_u8(input);
  if (what & CHANGE_TAG) head->tag[fuzz_u8(input) & 1] = fuzz_u64(input);
  if (what & CHANGE_SHAPE) ((uint8_t *)&head->shape)[fuzz_u8(input) % sizeof(rdt_group_shape)] ^= 1;
  if (what & CHANGE_FROM) head->from = (uint32_t)fuzz_number(input, 1);
  if (what & CHANGE_LANE) head->lane = (uint32_t)fuzz_number(input, fuzz_u8(input) & 1 ? 4 : 1);
  if (what & CHANGE_NUMBER) head->number = (uint32_t)fuzz_number(input, fuzz_u8(input) & 1 ? 4 : 1);
  if (what & CHANGE_STATUS) head->status = (int32_t)fuzz_u32(input);
  if (what & CHANGE_AT) head->at = fuzz_number(input, fuzz_u8(input) & 1 ? 8 : 2);
  if (what & CHANGE_SIZE) head->size = fuzz_number(input, fuzz_u8(input) & 1 ? 8 : 2);
  if (what & CHANGE_KEY) head->key = fuzz_u64(input);
  if (what & CHANGE_OFFSET) head->offset = fuzz_u64(input);
  if (what & CHANGE_CREDIT) head->credit = fuzz_u64(input);
}

static void take(rdt_channel *channel, uint64_t kind, const void *data, size_t size) {
  void *copy = fuzz_copy(data, size);
  rdt_groups_take(channel, kind, copy, size);
  free(copy);
}

static void send_message(rdt_group *group, const rdt_group_operation *operation, uint64_t tag,
                         fuzz_input *input) {
  static uint8_t buffer[sizeof(rdt_group_message) + LENT_BYTES];
  uint64_t kind = fuzz_u8(input) % 12; /* two that there are not */
  uint16_t what = fuzz_u16(input);
  rdt_group_message head = message_of(group, operation, tag, input);
  if (kind == RDT_GROUP_ABORT) {
    head.status = -1 - fuzz_u8(input) % 64;
    head.size %= RDT_GROUP_DETAIL + 8; /* of the detail: a little too long is malformed */
  }
  choose_place(&head, input);
  change(&head, what, input);
  bool follows = kind == RDT_GROUP_EAGER || kind == RDT_GROUP_ABORT;
  size_t payload = follows && head.size < LENT_BYTES ? (size_t)head.size : 0;
  if (what & CHANGE_PAYLOAD) payload = fuzz_u16(input);
  size_t size = sizeof(head) + payload;
  if (what & CHANGE_LENGTH) size = fuzz_u8(input);
  uint32_t peer = head.from < PEERS ? head.from : 0;
  if (what & CHANGE_CHANNEL) peer = fuzz_u8(input) % PEERS;
  memcpy(buffer, &head, sizeof(head));
  take(here.channels[peer], kind, buffer, size);
}

/* ---- an operation ---------------------------------------------------------------------------------------- */

typedef struct setting {
  rdt_group *group;
  rdt_collective call;
  void *input, *output;
} setting;

static uint64_t input_elements(const setting *s) {
  const bool from_root = s->call.kind == RDT_BROADCAST || s->call.kind == RDT_SCATTER;
  bool none = s->call.kind == RDT_BARRIER || s->call.kind == RDT_RECEIVE ||
              (from_root && s->call.root != s->group->rank);
  return none ? 0 : s->call.count;
}

static uint64_t output_elements(const setting *s) {
  switch (s->call.kind) {
    case RDT_BARRIER:
    case RDT_SEND:
      return 0;
    case RDT_ALL_GATHER:
    case RDT_GATHER:
      return s->call.count * s->group->size;
    case RDT_SCATTER:
    case RDT_REDUCE_SCATTER:
      return s->call.count / s->group->size;
    default:
      return s->call.count;
  }
}

/* Buffers have nothing around them. */
static void choose_buffers(setting *s, bool in_place) {
  size_t element = rdt_dtype_size(s->call.dtype);
  s->output = calloc(1, output_elements(s) * element + !output_elements(s));
  s->input = calloc(1, input_elements(s) * element + !input_elements(s));
  s->call.output = s->output;
  s->call.input = s->input;
  if (in_place && (s->call.kind == RDT_ALL_REDUCE || s->call.kind == RDT_BROADCAST))
    s->call.input = s->output;
}

static void choose(setting *s, fuzz_input *input) {
  s->group = groups[fuzz_u8(input) % 3];
  s->call = (rdt_collective){.struct_size = sizeof(s->call), .timeout_ms = 600000};
  s->call.kind = 1 + fuzz_u8(input) % RDT_RECEIVE;
  s->call.algorithm = 1 + fuzz_u8(input) % (RDT_ALGORITHM_COUNT - 1);
  s->call.dtype = 1 + fuzz_u8(input) % RDT_UINT64;
  s->call.op = 1 + fuzz_u8(input) % RDT_MAX;
  s->call.root = fuzz_u8(input) % s->group->size;
  if (s->call.kind >= RDT_SEND && s->call.root == s->group->rank)
    s->call.root = (s->call.root + 1) % s->group->size;
  s->call.count = fuzz_u16(input) % (MOST_COUNT / s->group->size) * s->group->size;
  uint8_t how = fuzz_u8(input);
  if (how & 8) s->call.detail = "[2,3]";
  choose_buffers(s, how & 1);
  s->group->reads = how & 2;
  s->group->eager = fuzz_u16(input) % 16384;
  s->group->chunk = fuzz_u16(input) % 16 * 256; /* few pieces, or one input takes long */
  for (uint32_t i = 0; i < s->group->size; i++) {
    rdt_group_link *link = &s->group->links[i];
    link->maps = !(how & 4);
    link->process = getpid();
    link->down = link->left = link->released = false;
    link->eager_sent = link->eager_returned = link->eager_taken = link->eager_announced = 0;
    link->eager_received = 0;
  }
}

/* Those that messages of unknown tags entered. */
static void drop_early(rdt_group *group) {
  rdt_group_part *parts = NULL;
  pthread_mutex_lock(&group->lock);
  for (size_t i = 0; i < RDT_GROUP_BUCKETS; i++)
    while (group->table[i]) {
      rdt_group_operation *operation = group->table[i];
      FUZZ_EXPECT(!operation->started);
      rdt_group_part **tail = operation->inbox ? operation->inbox_tail : NULL;
      rdt_group_part *dropped = rdt_group_operation_forget(operation);
      if (!dropped) continue;
      *tail = parts;
      parts = dropped;
    }
  FUZZ_EXPECT(group->early == 0 && group->started == 0);
  FUZZ_EXPECT(!group->posted.head && !group->unmatched.head);
  group->aborted = RDT_OK;
  for (uint32_t i = 0; i < group->size; i++) group->links[i].early = 0;
  pthread_mutex_unlock(&group->lock);
  rdt_group_operation_drop_parts(group, parts);
}

/* Every member says that it touches nothing any more: then a failed operation ends. */
static void end(rdt_group *group, rdt_group_operation *operation) {
  bool ended = false;
  rdt_group_operation_fail(operation, RDT_ERR_CANCELLED, "the input is used up");
  for (uint32_t i = 0; i < group->size; i++) {
    rdt_group_message head = {.group = group->id,
                              .tag = {operation->tag[0], operation->tag[1]},
                              .from = i,
                              .status = -3,
                              .number = 1};
    if (i != group->rank) take(here.channels[i], RDT_GROUP_ABORT, &head, sizeof(head));
  }
  for (int i = 0; i < 10 && !ended; i++) {
    stage_drain(&here);
    ended = rdt_group_operation_advance(operation);
  }
  FUZZ_EXPECT(ended);
}

/* True when the operation has ended. */
static bool step(rdt_group *group, rdt_group_operation *operation, uint64_t tag,
                 fuzz_input *input) {
  uint8_t what = fuzz_u8(input) % 8;
  if (what == 7 && group->links[fuzz_u8(input) % group->size].channel) {
    atomic_store(&group->links[fuzz_u8(input) % group->size].left, true);
    rdt_group_wake(group);
  } else if (what > 1) {
    send_message(group, operation, tag, input);
  }
  if (what & 1) return false;
  stage_drain(&here);
  return rdt_group_operation_advance(operation);
}

static void run(setting *s, fuzz_input *input) {
  rdt_group_operation *operation;
  uint64_t tag = ++tags;
  s->call.tag[0] = tag;
  s->call.tag[1] = 7;
  for (uint8_t early = fuzz_u8(input) % 4; early > 0; early--)
    send_message(s->group, NULL, tag, input);
  if (rdt_group_operation_check(s->group, &s->call) != RDT_OK ||
      rdt_group_operation_start(s->group, &s->call, NULL, NULL, &operation) != RDT_OK)
    return;
  bool ended = rdt_group_operation_advance(operation);
  for (int i = 0; i < STEPS && input->left > 0 && !ended; i++)
    ended = step(s->group, operation, tag, input);
  if (!ended) end(s->group, operation);
  rdt_group_operation_retire(operation);
  rdt_group_operation_over(s->group);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  setting s;
  start();
  choose(&s, &input);
  run(&s, &input);
  drop_early(s.group);
  stage_drain(&here);
  free(s.input);
  free(s.output);
  return 0;
}

/* ---- seeds --------------------------------------------------------------------------------------------------- */

static void put_message(fuzz_output *out, uint8_t kind, uint8_t step, bool empty) {
  fuzz_put_number(out, 2, 1);
  fuzz_put_number(out, kind, 1);
  fuzz_put_number(out, empty ? CHANGE_SIZE : 0, 2);
  fuzz_put_number(out, step, 1);
  if (kind == RDT_GROUP_ABORT) fuzz_put_number(out, 3, 1);
  fuzz_put_number(out, 1, 1 + 2);
  if (empty) fuzz_put_number(out, 0, 1 + 2);
}

/* Messages of one kind for every step in turn, as they would be, and empty: some fit. */
size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  static const uint8_t kinds[] = {RDT_GROUP_EAGER, RDT_GROUP_LEND,   RDT_GROUP_ACK,  RDT_GROUP_ASK,
                                  RDT_GROUP_OFFER, RDT_GROUP_PUSHED, RDT_GROUP_ABORT};
  fuzz_output out = {seed, 0, capacity};
  if (number >= 2 * RDT_RECEIVE * 7) return 0;
  uint8_t kind = kinds[number / RDT_RECEIVE % 7];
  bool far = kind == RDT_GROUP_ASK || kind == RDT_GROUP_OFFER || kind == RDT_GROUP_PUSHED;
  const uint8_t header[] = {number % 3, number % RDT_RECEIVE, number % 5, 0, 0, 0};
  fuzz_put(&out, header, sizeof(header));
  fuzz_put_number(&out, 64, 2);
  fuzz_put_number(&out, far ? 4 : 2, 1);
  fuzz_put_number(&out, kind == RDT_GROUP_EAGER ? 8192 : 16, 2);
  fuzz_put_number(&out, number % 2, 2);
  fuzz_put_number(&out, 0, 1);
  for (uint8_t step = 0; step < 12; step++)
    put_message(&out, kind, step, number >= RDT_RECEIVE * 7);
  return out.size;
}
