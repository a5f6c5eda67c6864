/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives an operation: messages go to their steps, lanes go from round to round, and a failure
 * ends the operation at all members. One thread at a time does so, and never waits here. A member
 * that fails sends all others an ABORT after its last access to their memory. A member that
 * receives one fails too, and answers. When all have answered, or can reach nothing of ours any
 * more, nobody accesses the buffers. By then each member also knows what the others called, if
 * that was the reason (agreement.c).
 */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "group/run/run.h"

/* The share of the deadline that a member has to answer an ABORT before its channel is closed. */
#define GRACE_PART 3
/* The number of messages of one step that may wait for their turn: an honest member has no more
 * in flight. */
#define WAITING_MOST 8u
/* Bytes of a message that came before its receive, which the receiver's thread copies itself: waking another one takes
 * as long. */
#define COPIED_AT_ONCE (1u << 20)
/* Rounds with more steps than this get no offers ahead: each is compared with all others. */
#define AHEAD_MOST 16u

static const rdt_group_step *first_open(const rdt_group_operation *operation) {
  for (uint32_t i = 0; i < operation->program->count; i++)
    if (!operation->steps[i].done) return &operation->program->steps[i].step;
  return NULL;
}

/* Returns true for a receive from any member, until somebody sends. */
static bool waits_for_any(const rdt_group_operation *operation) {
  return operation->partner == RDT_GROUP_NOBODY &&
         operation->program->steps[0].step.peer == operation->group->rank;
}

void rdt_group_operation_check_time(rdt_group_operation *operation) {
  if (operation->status != RDT_IN_PROGRESS || rdt_now_ms() < operation->deadline) return;
  if (waits_for_any(operation)) {
    rdt_group_operation_fail(operation, RDT_ERR_DEADLINE,
                             "group %s: no member has sent what this receive waits for within the "
                             "deadline",
                             operation->group->name);
    return;
  }
  const rdt_group_step *step = first_open(operation);
  rdt_group_operation_fail(
      operation, RDT_ERR_DEADLINE,
      "group %s: the operation did not complete within the deadline; member %u is "
      "waited for",
      operation->group->name, step ? step->peer : operation->group->rank);
}

static bool is_gone(const rdt_group_link *link) {
  return atomic_load(&link->down) || atomic_load(&link->left);
}

static bool involves(const rdt_group_operation *operation, uint32_t peer) {
  return operation->partner == peer ||
         (operation->partner == RDT_GROUP_EVERYBODY && peer != operation->group->rank);
}

static void fail_gone(rdt_group_operation *operation, uint32_t peer) {
  const rdt_group *group = operation->group;
  rdt_group_operation_fail(
      operation, RDT_ERR_CONNECTION_LOST, "group %s: member %u %s", group->name, peer,
      atomic_load(&group->links[peer].left) ? "closed the group" : "cannot be reached any more");
}

/* Nobody is left who could send what a receive from any member waits for. */
static void check_any(rdt_group_operation *operation) {
  const rdt_group *group = operation->group;
  for (uint32_t peer = 0; peer < group->size; peer++)
    if (peer != group->rank && !is_gone(&group->links[peer])) return;
  rdt_group_operation_fail(operation, RDT_ERR_CONNECTION_LOST,
                           "group %s: all other members are gone", group->name);
}

/* A lost member matters only if this member still needs it and has taken all that it sent. */
static void check_links(rdt_group_operation *operation) {
  const rdt_group *group = operation->group;
  if (waits_for_any(operation)) check_any(operation);
  for (uint32_t i = 0; i < operation->program->count; i++) {
    const rdt_group_step *step = &operation->program->steps[i].step;
    const rdt_group_step_state *state = &operation->steps[i];
    if (state->done || state->parts || step->kind == RDT_STEP_COPY ||
        step->kind == RDT_STEP_ACCUMULATE || !is_gone(&group->links[step->peer]))
      continue;
    /* Messages come first. */
    if (atomic_load(&operation->pending_events) == operation->handled_events)
      fail_gone(operation, step->peer);
    return;
  }
}

/* When a member is lost, others get out of step. Then the loss is the cause. */
static void fail_different(rdt_group_operation *operation, const rdt_group_message *head) {
  const rdt_group *group = operation->group;
  for (uint32_t peer = 0; peer < group->size; peer++)
    if (involves(operation, peer) && is_gone(&group->links[peer])) fail_gone(operation, peer);
  rdt_group_agreement_fail(operation, head);
}

/* The operation was complete before the message came. */
static void regret(rdt_group_operation *operation, const rdt_group_part *part) {
  pthread_mutex_lock(&operation->group->lock);
  rdt_group_agreement_regret(operation->group, part);
  pthread_mutex_unlock(&operation->group->lock);
}

static void take_abort(rdt_group_operation *operation, rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  operation->answered[head->from] = 1;
  if (operation->status == RDT_OK) {
    regret(operation, part);
    return;
  }
  rdt_group_operation_fail(operation, (rdt_status)head->status, "group %s: member %u failed: %.*s",
                           operation->group->name, head->from, (int)(part->size - head->size),
                           (const char *)rdt_group_part_payload(part) + head->size);
  rdt_group_agreement_learn(operation, part);
}

static bool to_receiver(rdt_group_message_kind kind) {
  return kind == RDT_GROUP_EAGER || kind == RDT_GROUP_LEND || kind == RDT_GROUP_ASK ||
         kind == RDT_GROUP_PUSHED;
}

/* Finds the step that the message is for. Fails the operation if there is none. */
static int64_t step_of(rdt_group_operation *operation, const rdt_group_part *part) {
  const rdt_group_message *head = &part->head;
  int64_t index = rdt_group_program_find(operation->program, to_receiver(part->kind), head->lane,
                                         head->from, head->number);
  if (operation->by_pair && index >= 0)
    operation->shape.count = operation->program->steps[index].step.count;
  if (memcmp(&head->shape, &operation->shape, sizeof(head->shape)) != 0) {
    fail_different(operation, head);
    return -1;
  }
  if (index >= 0) {
    uint64_t bytes = operation->program->steps[index].step.count * operation->element;
    if (head->at <= bytes && head->size <= bytes - head->at &&
        (head->at | head->size) % operation->element == 0 &&
        operation->steps[index].waiting < WAITING_MOST)
      return index;
  }
  rdt_group_operation_fail(operation, RDT_ERR_PROTOCOL,
                           "group %s: member %u sent what is no part of the operation",
                           operation->group->name, head->from);
  return -1;
}

static void take_written(rdt_group_operation *operation, rdt_group_part *part) {
  operation->posted--;
  operation->steps[part->step].acked += part->head.size;
  if (part->head.status < 0)
    rdt_group_operation_fail(operation, RDT_ERR_CONNECTION_LOST,
                             "group %s: member %u cannot be reached: %s", operation->group->name,
                             operation->program->steps[part->step].step.peer,
                             rdt_status_text((rdt_status)part->head.status));
}

/* Returns true if it kept the part. */
static bool hand_over(rdt_group_operation *operation, rdt_group_part *part) {
  if (part->kind == RDT_GROUP_ABORT) {
    take_abort(operation, part);
    return false;
  }
  if (part->kind == RDT_GROUP_WRITTEN) {
    take_written(operation, part);
    return false;
  }
  if (operation->status == RDT_OK &&
      (part->kind == RDT_GROUP_EAGER || part->kind == RDT_GROUP_LEND))
    regret(operation, part);
  if (operation->status != RDT_IN_PROGRESS) return false;
  int64_t index = step_of(operation, part);
  if (index < 0) return false;
  rdt_group_step_state *state = &operation->steps[index];
  if (part->kind == RDT_GROUP_ACK) {
    if (operation->group->links[part->head.from].maps)
      state->acked = part->head.at + part->head.size;
    return false;
  }
  *state->parts_tail = part;
  state->parts_tail = &part->next;
  state->waiting++;
  part->next = NULL;
  return true;
}

/* Returns true if there were events, so that steps may move that could not before. */
static bool take_inbox(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  unsigned events = atomic_load_explicit(&operation->pending_events, memory_order_acquire);
  if (events == operation->handled_events) return false;
  operation->handled_events = events;
  pthread_mutex_lock(&group->lock);
  rdt_group_pair_adopt(operation);
  rdt_group_part *part = operation->inbox;
  operation->inbox = NULL;
  operation->inbox_tail = &operation->inbox;
  if (operation->aborted != RDT_OK)
    rdt_group_operation_fail(operation, operation->aborted, "group %s: %s", group->name,
                             operation->abort_text);
  if (group->regrets && operation->status == RDT_IN_PROGRESS) {
    group->regrets = false;
    operation->regrets = true;
    rdt_group_operation_fail(operation, RDT_ERR_PROTOCOL, "group %s: %s", group->name,
                             group->regret);
  }
  pthread_mutex_unlock(&group->lock);
  while (part) {
    rdt_group_part *next = part->next;
    part->next = NULL;
    if (!hand_over(operation, part)) rdt_group_operation_drop_parts(group, part);
    part = next;
  }
  return true;
}

static bool blocked(const rdt_group_operation *operation, const rdt_group_lane_state *lane,
                    uint32_t index) {
  const rdt_group_program_step *steps = operation->program->steps;
  if (!steps[index].waits) return false;
  for (uint32_t i = lane->begin; i < index; i++)
    if (!operation->steps[i].done && rdt_group_program_overlap(&steps[i], &steps[index]))
      return true;
  return false;
}

static bool try_step(rdt_group_operation *operation, rdt_group_lane_state *lane, uint32_t index) {
  rdt_group_step_state *state = &operation->steps[index];
  rdt_group_step_kind kind = operation->program->steps[index].step.kind;
  bool moved = true;
  if (state->done) return false;
  if (kind == RDT_STEP_SEND)
    moved = rdt_group_step_send(operation, index);
  else if (blocked(operation, lane, index))
    return false;
  else if (kind == RDT_STEP_RECEIVE || kind == RDT_STEP_REDUCE)
    moved = rdt_group_step_receive(operation, index);
  else
    rdt_group_step_local(operation, index);
  if (state->done) {
    lane->left--;
    operation->left--;
  }
  return moved;
}

/* Returns false at the lane's end. */
static bool next_round(const rdt_group_program *program, rdt_group_lane_state *lane,
                       uint32_t number) {
  uint32_t end = program->lane_begin[number + 1];
  lane->begin = lane->end;
  while (lane->end < end &&
         program->steps[lane->end].step.round == program->steps[lane->begin].step.round)
    lane->end++;
  lane->left = lane->end - lane->begin;
  return lane->left > 0;
}

/* Sends go first, because others wait for them. */
static bool try_round(rdt_group_operation *operation, rdt_group_lane_state *lane) {
  bool moved = false;
  for (int sends = 1; sends >= 0; sends--)
    for (uint32_t i = lane->begin; i < lane->end && operation->status == RDT_IN_PROGRESS; i++)
      if ((operation->program->steps[i].step.kind == RDT_STEP_SEND) == sends)
        moved |= try_step(operation, lane, i);
  return moved;
}

/* Returns true if the memory of a place is that of another one. */
static bool same_memory(const rdt_group_operation *operation, const rdt_group_place *place,
                        const rdt_group_step *receive) {
  const uint64_t bytes = receive->count * operation->element;
  const char *a = rdt_group_place_address(operation, place);
  const char *b = rdt_group_place_address(operation, &receive->to);
  return a && b && a < b + bytes && b < a + bytes;
}

/* Returns true if one of the steps [begin, end) that are not done reads or writes where `index` receives to. */
static bool in_use(const rdt_group_operation *operation, uint32_t begin, uint32_t end,
                   uint32_t index) {
  const rdt_group_program_step *steps = operation->program->steps;
  for (uint32_t i = begin; i < end; i++) {
    const rdt_group_step *step = &steps[i].step;
    if (i == index || operation->steps[i].done) continue;
    if ((step->kind != RDT_STEP_RECEIVE &&
         same_memory(operation, &step->from, &steps[index].step)) ||
        (step->kind != RDT_STEP_SEND && same_memory(operation, &step->to, &steps[index].step)))
      return true;
  }
  return false;
}

/* Offers memory for the next round, because an offer may wait behind data on its way to the sender. What is reduced
 * comes to scratch first; everything else comes to its place, which the steps before must be done with. */
static bool offer_ahead(rdt_group_operation *operation, const rdt_group_lane_state *lane,
                        uint32_t number) {
  const rdt_group_program *program = operation->program;
  const uint32_t limit = program->lane_begin[number + 1];
  uint32_t end = lane->end;
  bool moved = false;
  if (program->longest * operation->element <= operation->group->eager) return false;
  while (end < limit && program->steps[end].step.round == program->steps[lane->end].step.round)
    end++;
  if (end - lane->end > AHEAD_MOST) return false;
  for (uint32_t i = lane->end; i < end && operation->status == RDT_IN_PROGRESS; i++) {
    const rdt_group_step *step = &program->steps[i].step;
    if ((step->kind != RDT_STEP_RECEIVE && step->kind != RDT_STEP_REDUCE) ||
        operation->steps[i].begun || operation->group->links[step->peer].maps)
      continue;
    if (step->kind == RDT_STEP_REDUCE || !in_use(operation, lane->begin, end, i))
      moved |= rdt_group_step_offer(operation, i);
  }
  return moved;
}

static bool advance_lane(rdt_group_operation *operation, uint32_t number) {
  rdt_group_lane_state *lane = &operation->lanes[number];
  bool moved = false;
  while (operation->status == RDT_IN_PROGRESS) {
    if (lane->left == 0 && !next_round(operation->program, lane, number)) break;
    moved |= try_round(operation, lane);
    if (lane->left > 0) {
      moved |= offer_ahead(operation, lane, number);
      break;
    }
  }
  return moved;
}

static void advance_lanes(rdt_group_operation *operation) {
  bool moved = true;
  while (moved && operation->status == RDT_IN_PROGRESS) {
    moved = false;
    for (uint32_t lane = 0; lane < operation->program->lanes; lane++)
      moved |= advance_lane(operation, lane);
    moved |= take_inbox(operation);
  }
}

static void free_steps(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  for (uint32_t i = 0; i < operation->program->count; i++) {
    rdt_group_step_state *state = &operation->steps[i];
    rdt_group_operation_drop_parts(group, state->parts);
    rdt_group_scratch_give(group->groups, state->block);
    state->parts = NULL;
    state->block = NULL;
  }
  rdt_group_scratch_give(group->groups, operation->scratch_block);
  operation->scratch_block = NULL;
}

static void send_aborts(rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  for (uint32_t peer = 0; peer < group->size; peer++)
    if (involves(operation, peer) && !is_gone(&group->links[peer]))
      rdt_group_operation_abort_send(operation, peer);
}

/* Returns true if this member can still access our buffers. */
static bool holds(const rdt_group_operation *operation, uint32_t peer) {
  const rdt_group *group = operation->group;
  const rdt_group_link *link = &group->links[peer];
  return involves(operation, peer) && !operation->answered[peer] && !atomic_load(&link->left) &&
         !atomic_load(&link->released);
}

static bool anybody_holds(const rdt_group_operation *operation) {
  bool any = false;
  for (uint32_t peer = 0; peer < operation->group->size && !any; peer++)
    any = holds(operation, peer);
  return any;
}

static void close_silent(rdt_group_operation *operation) {
  for (uint32_t peer = 0; peer < operation->group->size; peer++)
    if (holds(operation, peer)) rdt_channel_close(operation->group->links[peer].channel);
}

/* Ends the whole group if the operation failed for want of a member that is lost. Members that
 * have no steps with the lost one would otherwise wait for those that have, and these may never
 * call another operation. */
static void end_group(const rdt_group_operation *operation) {
  rdt_group *group = operation->group;
  if (operation->status != RDT_ERR_CONNECTION_LOST || operation->partner != RDT_GROUP_EVERYBODY)
    return;
  for (uint32_t peer = 0; peer < group->size; peer++) {
    if (!atomic_load(&group->links[peer].down) || atomic_load(&group->links[peer].left)) continue;
    char text[64];
    snprintf(text, sizeof(text), "member %u cannot be reached any more", peer);
    rdt_group_abort(group, RDT_ERR_CONNECTION_LOST, text);
    return;
  }
}

/* No message matches a failed receive any more. */
static void withdraw(rdt_group_operation *operation) {
  pthread_mutex_lock(&operation->group->lock);
  rdt_group_pair_adopt(operation);
  rdt_group_pair_unlist(operation);
  pthread_mutex_unlock(&operation->group->lock);
}

/* Returns true when nobody accesses the buffers any more. */
static bool end_failed(rdt_group_operation *operation) {
  int64_t now = rdt_now_ms(), limit = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  if (!operation->aborting) {
    if (operation->posted > 0) rdt_group_pushes_end(operation);
    if (operation->posted > 0) return false; /* writes to their memory are in flight */
    withdraw(operation);
    operation->aborting = true;
    operation->grace = now + limit / GRACE_PART;
    send_aborts(operation);
    end_group(operation);
  }
  if (!anybody_holds(operation)) return true;
  if (now < operation->grace) return false;
  /* A stopped process neither answers nor releases memory. But it accesses nothing either, and
   * discards what it reads after its own deadline. */
  if (operation->closing) return true;
  operation->closing = true;
  operation->grace = now + limit;
  close_silent(operation);
  return false;
}

void rdt_group_operation_advance_first(rdt_group_operation *operation) {
  const rdt_group_step *first = &operation->program->steps[0].step;
  const bool pairs = operation->partner != RDT_GROUP_EVERYBODY;
  const bool is_short = first->kind == RDT_STEP_SEND || operation->partner == RDT_GROUP_NOBODY ||
                        first->count * operation->element <= COPIED_AT_ONCE;
  if (operation->driver == RDT_DRIVER_PROGRESS || (pairs && is_short))
    operation->over = rdt_group_operation_advance(operation);
}

bool rdt_group_operation_advance(rdt_group_operation *operation) {
  unsigned before = operation->handled_events;
  take_inbox(operation);
  if (operation->fresh) check_links(operation); /* before others learn of a failure */
  operation->fresh = false;
  if (operation->status == RDT_IN_PROGRESS && operation->partner != RDT_GROUP_NOBODY)
    advance_lanes(operation);
  if (operation->status == RDT_IN_PROGRESS && operation->left == 0 && operation->posted == 0) {
    /* Bytes that were read after the deadline may have been overwritten. */
    if (operation->reads_loans) rdt_group_operation_check_time(operation);
    if (operation->status == RDT_IN_PROGRESS) operation->status = RDT_OK;
  }
  if (operation->status == RDT_IN_PROGRESS && operation->handled_events != before)
    check_links(operation);
  if (operation->status == RDT_IN_PROGRESS) return false;
  if (operation->status < 0 && !end_failed(operation)) return false;
  take_inbox(operation); /* a member that has left since may have told its view before */
  rdt_group_agreement_tell(operation);
  free_steps(operation);
  return true;
}
