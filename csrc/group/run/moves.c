/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves the elements of one step. Short messages carry the elements (EAGER). The elements of
 * longer ones are in a region of the sender, or anywhere if the system permits it, where the
 * receiver reads or reduces them (LEND). Over transports that cannot map memory, the sender writes
 * them into a region of the receiver (OFFER, PUSHED). Buffers that are in no region pass through
 * scratch.
 */
#include <string.h>

#include "base/copy.h"
#include "base/status.h"
#include "core/memory/region.h"
#include "group/run/run.h"
#include "group/schedule/reduce.h"

#define READ_BYTES \
  (64u * 1024) /* bytes to read before they are reduced, so that they stay in the cache */
#define STAGE_BYTES \
  (256u * 1024) /* bytes of scratch that a step moves at a time; a step has two such halves */

char *rdt_group_place_address(const rdt_group_operation *operation, const rdt_group_place *place) {
  char *base = place->buffer == RDT_BUFFER_INPUT    ? (char *)operation->input
               : place->buffer == RDT_BUFFER_OUTPUT ? operation->output
                                                    : operation->scratch;
  return base ? base + place->at * operation->element : NULL;
}

static const rdt_group_program_step *step_at(const rdt_group_operation *operation, uint32_t index) {
  return &operation->program->steps[index];
}

static uint64_t bytes_of(const rdt_group_operation *operation, const rdt_group_step *step) {
  return step->count * operation->element;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void fail_lost(rdt_group_operation *operation, uint32_t peer) {
  rdt_group_operation_fail(operation, RDT_ERR_CONNECTION_LOST,
                           "group %s: member %u cannot be reached: %s", operation->group->name,
                           peer, rdt_last_error());
}

static void fail_memory(rdt_group_operation *operation) {
  rdt_group_operation_fail(operation, RDT_ERR_NO_MEMORY, "group %s: no memory left",
                           operation->group->name);
}

static void fail_malformed(rdt_group_operation *operation, uint32_t peer) {
  rdt_group_operation_fail(operation, RDT_ERR_PROTOCOL,
                           "group %s: member %u sent a malformed message", operation->group->name,
                           peer);
}

/* Takes scratch for the step's two halves. */
static bool take_block(rdt_group_operation *operation, rdt_group_step_state *state,
                       uint64_t bytes) {
  if (state->block) return true;
  rdt_status status = rdt_group_scratch_take(operation->group->groups,
                                             2 * smaller(bytes, STAGE_BYTES), &state->block);
  if (status == RDT_OK) return true;
  rdt_group_operation_fail(operation, status,
                           "group %s: no registered memory for what lies in no region: %s",
                           operation->group->name, rdt_last_error());
  return false;
}

/* Sends a message of a step without payload. */
static void tell(rdt_group_operation *operation, uint32_t index, rdt_group_message_kind kind,
                 uint64_t at, uint64_t size, uint64_t key, uint64_t offset) {
  const rdt_group_program_step *step = step_at(operation, index);
  rdt_group_part *part = rdt_group_part_new(operation->group, 0);
  if (!part) {
    fail_memory(operation);
    return;
  }
  rdt_group_message_begin(operation, part, kind, step);
  part->head.at = at;
  part->head.size = size;
  part->head.key = key;
  part->head.offset = offset;
  if (kind == RDT_GROUP_LEND)
    rdt_group_checksum_set(operation->group, &part->head,
                           rdt_group_place_address(operation, &step->step.from) + at);
  if (rdt_group_part_send(operation->group, step->step.peer, part) < 0)
    fail_lost(operation, step->step.peer);
}

/* to = left op right, of `bytes` bytes of a step. */
static void reduce(const rdt_group_operation *operation, const rdt_group_step *step, char *to,
                   const char *left, const char *right, uint64_t bytes) {
  rdt_dtype dtype = (rdt_dtype)operation->shape.dtype;
  rdt_reduction reduction = (rdt_reduction)operation->shape.reduction;
  uint64_t count = bytes / operation->element;
  const bool scales = reduction == RDT_MEAN || reduction == RDT_SCALED_SUM;
  if (scales && step->completes)
    rdt_group_reduce_scaled(dtype, to, left, right, count, operation->factor);
  else
    rdt_group_reduce(dtype, scales ? RDT_SUM : reduction, to, left, right, count);
}

void rdt_group_step_local(rdt_group_operation *operation, uint32_t index) {
  const rdt_group_step *step = &step_at(operation, index)->step;
  char *to = rdt_group_place_address(operation, &step->to);
  const char *from = rdt_group_place_address(operation, &step->from);
  if (step->kind == RDT_STEP_ACCUMULATE)
    reduce(operation, step, to, to, from, bytes_of(operation, step));
  else if (to != from)
    rdt_copy(to, from, bytes_of(operation, step), RDT_GROUP_STREAMED);
  operation->steps[index].done = true;
}

static void count_sent(rdt_group_operation *operation, uint64_t bytes) { operation->sent += bytes; }

static void send_eager(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  const rdt_group_program_step *step = step_at(operation, index);
  rdt_group_part *part = rdt_group_part_new(operation->group, bytes);
  if (!part) {
    fail_memory(operation);
    return;
  }
  rdt_group_message_begin(operation, part, RDT_GROUP_EAGER, step);
  part->head.size = bytes;
  if (bytes)
    memcpy(rdt_group_part_payload(part), rdt_group_place_address(operation, &step->step.from),
           bytes);
  rdt_group_checksum_set(operation->group, &part->head, rdt_group_part_payload(part));
  if (rdt_group_part_send(operation->group, step->step.peer, part) < 0) {
    fail_lost(operation, step->step.peer);
    return;
  }
  operation->steps[index].done = true;
  count_sent(operation, bytes);
}

/* Announces all bytes at once. */
static bool lend_in_place(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  rdt_group_step_state *state = &operation->steps[index];
  if (state->moved == bytes) return false;
  tell(operation, index, RDT_GROUP_LEND, 0, bytes, state->key, state->offset);
  state->moved = bytes;
  count_sent(operation, bytes);
  return true;
}

/* Fills one half of the scratch while the peer reads the other. */
static bool lend_staged(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  rdt_group_step_state *state = &operation->steps[index];
  const char *from = rdt_group_place_address(operation, &step_at(operation, index)->step.from);
  bool moved = false;
  if (!take_block(operation, state, bytes)) return false;
  uint64_t stage = smaller(bytes, STAGE_BYTES);
  while (state->moved < bytes && state->moved - smaller(state->moved, state->acked) <= stage &&
         operation->status == RDT_IN_PROGRESS) {
    uint64_t size = smaller(stage, bytes - state->moved);
    uint64_t offset = state->moved / stage % 2 * stage;
    rdt_copy(state->block->address + offset, from + state->moved, size, RDT_GROUP_STREAMED);
    tell(operation, index, RDT_GROUP_LEND, state->moved, size, state->block->key,
         state->block->offset + offset);
    state->moved += size;
    operation->copied += size;
    count_sent(operation, size);
    moved = true;
  }
  return moved;
}

/* Writes as much as the peer has offered memory for. */
static void push_part(rdt_group_operation *operation, uint32_t index,
                      const rdt_group_message *offer, rdt_remote_region *region) {
  const rdt_group_program_step *step = step_at(operation, index);
  rdt_group_step_state *state = &operation->steps[index];
  const char *from = rdt_group_place_address(operation, &step->step.from) + offer->at;
  rdt_group_part *part = rdt_group_part_new(operation->group, 0);
  if (!part) {
    fail_memory(operation);
    return;
  }
  rdt_group_message_begin(operation, part, RDT_GROUP_PUSHED, step);
  part->head.at = offer->at;
  part->head.size = offer->size;
  part->head.offset = offer->offset;
  rdt_group_checksum_set(operation->group, &part->head, from);
  part->operation = operation;
  part->step = index;
  rdt_group_part_push(operation->group, step->step.peer, part, from, region,
                      bytes_of(operation, &step->step));
  operation->posted++;
  state->moved += offer->size;
  count_sent(operation, offer->size);
}

static rdt_group_part *take_part(rdt_group_step_state *state) {
  rdt_group_part *part = state->parts;
  state->parts = part->next;
  state->waiting--;
  if (!state->parts) state->parts_tail = &state->parts;
  return part;
}

/* Opens the peer's region. Returns false if another driver has to do that, or if the operation
 * fails. */
static bool open_region(rdt_group_operation *operation, const rdt_group_message *head,
                        rdt_remote_region **region) {
  rdt_status status = rdt_group_link_open(operation->group, head->from, head->key, region);
  if (status == RDT_OK) return true;
  if (status == RDT_IN_PROGRESS)
    operation->needs_runner = true;
  else
    rdt_group_operation_fail(operation,
                             status < -40 && status > -60 ? RDT_ERR_CONNECTION_LOST : status,
                             "group %s: the memory of member %u cannot be reached: %s",
                             operation->group->name, head->from, rdt_last_error());
  return false;
}

static bool push_offered(rdt_group_operation *operation, uint32_t index) {
  rdt_group_step_state *state = &operation->steps[index];
  bool moved = false;
  while (state->parts && operation->status == RDT_IN_PROGRESS) {
    const rdt_group_message *offer = &state->parts->head;
    rdt_remote_region *region;
    if (state->parts->kind != RDT_GROUP_OFFER || offer->at != state->moved || offer->size == 0) {
      fail_malformed(operation, offer->from);
      break;
    }
    if (!open_region(operation, offer, &region)) break;
    push_part(operation, index, offer, region);
    rdt_remote_region_unref(region);
    rdt_group_part_free(operation->group, take_part(state));
    moved = true;
  }
  return moved;
}

/* Decides how the message will travel. */
static void begin_send(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  const rdt_group_step *step = &step_at(operation, index)->step;
  rdt_group_link *link = &operation->group->links[step->peer];
  rdt_group_step_state *state = &operation->steps[index];
  state->begun = true;
  state->eager = bytes <= operation->group->eager && rdt_group_credit_take(link, bytes, bytes == 0);
  if (state->eager) return;
  if (link->maps) {
    const void *from = rdt_group_place_address(operation, &step->from);
    state->direct =
        rdt_region_at(link->channel, from, bytes, RDT_ACCESS_READ, &state->key, &state->offset);
    if (!state->direct && operation->group->reads) {
      state->direct = true;
      state->key = 0;
      state->offset = (uintptr_t)from;
    }
  } else if (bytes <= operation->group->eager || operation->partner != RDT_GROUP_EVERYBODY)
    /* for longer ones of a known tag the peer makes an offer by itself */
    tell(operation, index, RDT_GROUP_ASK, 0, bytes, 0, 0);
}

bool rdt_group_step_send(rdt_group_operation *operation, uint32_t index) {
  const rdt_group_step *step = &step_at(operation, index)->step;
  rdt_group_step_state *state = &operation->steps[index];
  uint64_t bytes = bytes_of(operation, step);
  bool moved;
  if (!state->begun) begin_send(operation, index, bytes);
  if (state->eager) {
    send_eager(operation, index, bytes);
    return true;
  }
  if (!operation->group->links[step->peer].maps)
    moved = push_offered(operation, index);
  else if (state->direct)
    moved = lend_in_place(operation, index, bytes);
  else
    moved = lend_staged(operation, index, bytes);
  state->done = state->moved == bytes && state->acked == bytes;
  return moved || state->done;
}

/* Takes `size` bytes at `from`, which are those of the message from byte `at` on. */
static void consume(rdt_group_operation *operation, uint32_t index, const char *from, uint64_t at,
                    uint64_t size) {
  const rdt_group_step *step = &step_at(operation, index)->step;
  char *to = rdt_group_place_address(operation, &step->to);
  if (size == 0) return;
  if (step->kind == RDT_STEP_RECEIVE) {
    rdt_copy(to + at, from, size, RDT_GROUP_STREAMED);
    return;
  }
  reduce(operation, step, to + at, rdt_group_place_address(operation, &step->from) + at, from,
         size);
}

/* Reads the bytes to reduce piece by piece. */
static rdt_status reduce_process(rdt_group_operation *operation, uint32_t index,
                                 const rdt_group_message *loan, pid_t process) {
  rdt_groups *groups = operation->group->groups;
  bool checked = rdt_group_checksum_present(operation, loan);
  uint32_t crc = 0;
  rdt_group_block *block;
  rdt_status status = rdt_group_scratch_take(groups, READ_BYTES, &block);
  for (uint64_t at = 0; at < loan->size && status == RDT_OK; at += READ_BYTES) {
    uint64_t size = smaller(READ_BYTES, loan->size - at);
    status = rdt_group_process_read(process, loan->offset + at, block->address, size);
    if (status != RDT_OK) break;
    if (checked) crc = rdt_crc32c(crc, block->address, size);
    consume(operation, index, block->address, loan->at + at, size);
  }
  rdt_group_scratch_give(groups, block);
  if (status == RDT_OK) rdt_group_checksum_compare(operation, loan, crc);
  return status;
}

/* Reads a peer's memory that is in no region. */
static void read_process(rdt_group_operation *operation, uint32_t index,
                         const rdt_group_message *loan) {
  rdt_group *group = operation->group;
  const rdt_group_step *step = &step_at(operation, index)->step;
  pid_t process = group->links[loan->from].process;
  rdt_status status;
  if (step->kind == RDT_STEP_RECEIVE) {
    char *to = rdt_group_place_address(operation, &step->to) + loan->at;
    status = rdt_group_process_read(process, loan->offset, to, loan->size);
    if (status == RDT_OK) rdt_group_checksum_verify(operation, loan, to);
  } else {
    status = reduce_process(operation, index, loan, process);
  }
  if (status != RDT_OK)
    rdt_group_operation_fail(operation, status, "group %s: member %u: %s", group->name, loan->from,
                             rdt_last_error());
}

static void finish_loan(rdt_group_operation *operation, uint32_t index,
                        const rdt_group_message *loan) {
  operation->reads_loans = true;
  if (operation->status == RDT_IN_PROGRESS)
    tell(operation, index, RDT_GROUP_ACK, loan->at, loan->size, 0, 0);
}

static bool read_loan(rdt_group_operation *operation, uint32_t index,
                      const rdt_group_message *loan) {
  rdt_remote_region *region;
  void *from;
  if (loan->key == 0 && operation->group->reads) {
    read_process(operation, index, loan);
    finish_loan(operation, index, loan);
    return true;
  }
  if (!open_region(operation, loan, &region)) return false;
  if (rdt_remote_region_map(region, loan->offset, loan->size, &from) == RDT_OK) {
    if (rdt_group_checksum_verify(operation, loan, from))
      consume(operation, index, from, loan->at, loan->size);
    finish_loan(operation, index, loan);
  } else {
    fail_malformed(operation, loan->from);
  }
  rdt_remote_region_unref(region);
  return true;
}

/* Finds where the peer may write the bytes from `state->offered` on. */
static bool offer(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  rdt_group_step_state *state = &operation->steps[index];
  uint64_t stage = smaller(bytes, STAGE_BYTES);
  bool moved = false;
  if (state->direct) {
    if (state->offered == bytes) return false;
    tell(operation, index, RDT_GROUP_OFFER, 0, bytes, state->key, state->offset);
    state->offered = bytes;
    return true;
  }
  if (!take_block(operation, state, bytes)) return false;
  while (state->offered < bytes && state->offered - state->moved <= stage &&
         operation->status == RDT_IN_PROGRESS) {
    uint64_t size = smaller(stage, bytes - state->offered);
    tell(operation, index, RDT_GROUP_OFFER, state->offered, size, state->block->key,
         state->block->offset + state->offered / stage % 2 * stage);
    state->offered += size;
    moved = true;
  }
  return moved;
}

/* Finds where the peer has written the bytes that it announces. */
static const char *pushed_bytes(const rdt_group_operation *operation, uint32_t index,
                                const rdt_group_message *head, uint64_t bytes) {
  const rdt_group_step_state *state = &operation->steps[index];
  uint64_t stage = smaller(bytes, STAGE_BYTES);
  return state->direct
             ? rdt_group_place_address(operation, &step_at(operation, index)->step.to) + head->at
             : state->block->address + head->at / stage % 2 * stage;
}

static void take_pushed(rdt_group_operation *operation, uint32_t index,
                        const rdt_group_message *head, uint64_t bytes) {
  rdt_group_step_state *state = &operation->steps[index];
  if (head->size > state->offered - state->moved ||
      (!state->direct && head->size > smaller(bytes, STAGE_BYTES))) {
    fail_malformed(operation, head->from);
    return;
  }
  const char *from = pushed_bytes(operation, index, head, bytes);
  if (!rdt_group_checksum_verify(operation, head, from) || state->direct) return;
  /* A reduction always needs a place for what comes. */
  if (step_at(operation, index)->step.kind == RDT_STEP_RECEIVE) operation->copied += head->size;
  consume(operation, index, from, head->at, head->size);
}

/* Only eager messages may be empty: otherwise there is nothing to lend, offer or push, and no
 * place for it. */
static bool makes_sense(const rdt_group_step_state *state, const rdt_group_part *part,
                        uint64_t bytes) {
  const rdt_group_message *head = &part->head;
  if (part->kind == RDT_GROUP_ASK) return head->at == 0 && head->size == bytes && bytes > 0;
  return head->at == state->moved && (head->size > 0 || part->kind == RDT_GROUP_EAGER);
}

/* Takes the oldest part of the message. Returns false if that has to wait. */
static bool receive_part(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  rdt_group_step_state *state = &operation->steps[index];
  rdt_group_part *part = state->parts;
  const rdt_group_message *head = &part->head;
  if (!makes_sense(state, part, bytes)) {
    fail_malformed(operation, head->from);
  } else if (part->kind == RDT_GROUP_ASK) {
    state->asked = true;
  } else if (part->kind == RDT_GROUP_EAGER) {
    if (part->size != head->size || head->size != bytes)
      fail_malformed(operation, head->from);
    else if (rdt_group_checksum_verify(operation, head, rdt_group_part_payload(part)))
      consume(operation, index, rdt_group_part_payload(part), 0, bytes);
    rdt_group_credit_return(operation->group, head->from, part->size);
  } else if (part->kind == RDT_GROUP_LEND) {
    if (!read_loan(operation, index, head)) return false;
  } else {
    take_pushed(operation, index, head, bytes);
  }
  if (part->kind != RDT_GROUP_ASK) {
    state->moved += head->size;
    state->done = state->moved == bytes;
  }
  rdt_group_part_free(operation->group, take_part(state));
  return true;
}

/* Decides whether to offer memory, and where. */
static void begin_receive(rdt_group_operation *operation, uint32_t index, uint64_t bytes) {
  const rdt_group_step *step = &step_at(operation, index)->step;
  rdt_group_step_state *state = &operation->steps[index];
  rdt_group_link *link = &operation->group->links[step->peer];
  state->begun = true;
  state->asked =
      !link->maps && bytes > operation->group->eager && operation->partner == RDT_GROUP_EVERYBODY;
  if (!link->maps && step->kind == RDT_STEP_RECEIVE)
    state->direct = rdt_region_at(link->channel, rdt_group_place_address(operation, &step->to),
                                  bytes, RDT_ACCESS_WRITE, &state->key, &state->offset);
}

bool rdt_group_step_offer(rdt_group_operation *operation, uint32_t index) {
  const uint64_t bytes = bytes_of(operation, &step_at(operation, index)->step);
  begin_receive(operation, index, bytes);
  return operation->steps[index].asked && offer(operation, index, bytes);
}

bool rdt_group_step_receive(rdt_group_operation *operation, uint32_t index) {
  rdt_group_step_state *state = &operation->steps[index];
  uint64_t bytes = bytes_of(operation, &step_at(operation, index)->step);
  bool moved = false;
  if (!state->begun) begin_receive(operation, index, bytes);
  while (state->parts && !state->done && operation->status == RDT_IN_PROGRESS) {
    if (!receive_part(operation, index, bytes)) return moved;
    moved = true;
  }
  if (state->asked && !state->done && operation->status == RDT_IN_PROGRESS)
    moved |= offer(operation, index, bytes);
  return moved;
}
