/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts operations: from a checked call to steps that a driver runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "group/run/run.h"

#define AUTO_TAG 0x7264742d6175746full /* second half of the tags of calls without a tag */
/* Second halves of tags that our APIs count: Python's Group.start, and operations in TensorFlow's graphs. */
#define STARTED_TAG 0x8000000000000002ull
#define GRAPH_TAG 0x8000000000000003ull
#define SMALL_SCRATCH 65536u

bool rdt_group_tag_counted(const uint64_t tag[2]) {
  return tag[1] == AUTO_TAG || tag[1] == STARTED_TAG || tag[1] == GRAPH_TAG;
}

static rdt_algorithm algorithm_of(const rdt_group *group, const rdt_collective *call,
                                  size_t element) {
  rdt_algorithm algorithm = call->algorithm;
  if (call->kind == RDT_BARRIER || rdt_group_call_is_pair(call->kind)) return RDT_ALGORITHM_AUTO;
  if (algorithm == RDT_ALGORITHM_AUTO) algorithm = group->forced;
  if (algorithm != RDT_ALGORITHM_AUTO) return algorithm;
  return rdt_trees_choose(group->trees, &group->costs, call->kind, call->root,
                          call->count * element, group->size, group->hosts);
}

/* Returns the elements of all parts, which all members know. */
static uint64_t total_of(const rdt_group *group, const rdt_collective *call) {
  if (!call->counts) return call->count;
  return call->kind == RDT_ALL_TO_ALL ? 0 : rdt_group_call_sum(call->counts, group->size);
}

static rdt_schedule_request request_of(const rdt_group *group, const rdt_collective *call,
                                       rdt_algorithm algorithm, size_t element) {
  rdt_schedule_request request = {
      .rank = group->rank, .size = group->size, .hosts = group->hosts, .kind = RDT_BARRIER};
  /* With no elements nothing would be sent, and a member that has some would wait for ever. The
   * root of a broadcast, however, waits for nobody. */
  if (call->kind == RDT_BARRIER ||
      (total_of(group, call) == 0 && call->kind != RDT_BROADCAST && !call->receive_counts))
    return request;
  request.kind = call->kind;
  request.algorithm = algorithm;
  request.root = rdt_group_call_has_root(call->kind) ? call->root : 0;
  request.count = call->receive_counts ? rdt_group_call_input(group, call) : call->count;
  uint64_t chunk = group->chunk;
  if (algorithm == RDT_ALGORITHM_TREES &&
      rdt_trees_serve(group->trees, request.kind, request.root)) {
    request.trees = group->trees;
    chunk = rdt_trees_chunk(group->trees, &group->costs, call->kind, request.root,
                            call->count * element);
  }
  request.chunk = chunk ? (chunk + element - 1) / element : 0;
  request.input_is_output = rdt_group_call_in_place(group, call, element);
  return request;
}

/* Lists where members' parts begin. */
static uint64_t *begin_parts(uint64_t *offsets, const uint64_t *counts, uint32_t size) {
  offsets[0] = 0;
  for (uint32_t i = 0; i < size; i++) offsets[i + 1] = offsets[i] + counts[i];
  return offsets;
}

static rdt_status grow(void **array, size_t *capacity, size_t wanted, size_t size) {
  if (wanted <= *capacity) return RDT_OK;
  void *grown = realloc(*array, wanted * size);
  if (!grown) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *array = grown;
  *capacity = wanted;
  return RDT_OK;
}

static rdt_status add_parts(rdt_group_operation *operation, const rdt_collective *call,
                            rdt_schedule_request *request) {
  const uint32_t size = operation->group->size;
  if (!call->counts || request->kind == RDT_BARRIER) return RDT_OK;
  rdt_status status = grow((void **)&operation->offsets, &operation->offset_capacity,
                           2 * (size + (size_t)1), sizeof(*operation->offsets));
  if (status != RDT_OK) return status;
  request->offsets = begin_parts(operation->offsets, call->counts, size);
  if (call->receive_counts)
    request->receive_offsets =
        begin_parts(operation->offsets + size + 1, call->receive_counts, size);
  request->chunk = 0;
  return RDT_OK;
}

/* Until a message matches a receive from any member, nothing comes from a peer. */
static rdt_group_program *pair_program(rdt_group_operation *operation, const rdt_collective *call) {
  const bool any = operation->peer == RDT_ANY_MEMBER;
  const rdt_group_step step = {
      .kind = call->kind == RDT_SEND ? RDT_STEP_SEND : RDT_STEP_RECEIVE,
      .peer = any ? operation->group->rank : operation->peer,
      .count = call->count,
      .from = {.buffer = RDT_BUFFER_INPUT},
      .to = {.buffer = RDT_BUFFER_OUTPUT},
  };
  operation->partner = operation->queue ? RDT_GROUP_NOBODY : operation->peer;
  return rdt_group_program_single(&operation->single, &step);
}

static rdt_status make_room(rdt_group_operation *operation) {
  const rdt_group_program *program = operation->program;
  rdt_status status = grow((void **)&operation->steps, &operation->step_capacity, program->count,
                           sizeof(*operation->steps));
  if (status == RDT_OK)
    status = grow((void **)&operation->lanes, &operation->lane_capacity, program->lanes,
                  sizeof(*operation->lanes));
  uint64_t scratch = program->schedule->scratch * operation->element;
  if (status != RDT_OK || scratch == 0) return status;
  status = rdt_group_scratch_take(operation->group->groups, scratch, &operation->scratch_block);
  if (status != RDT_OK) return status;
  operation->scratch = operation->scratch_block->address;
  return RDT_OK;
}

static void begin_steps(rdt_group_operation *operation) {
  const rdt_group_program *program = operation->program;
  for (uint32_t i = 0; i < program->count; i++) {
    rdt_group_step_state *state = &operation->steps[i];
    *state = (rdt_group_step_state){0};
    state->parts_tail = &state->parts;
  }
  for (uint32_t lane = 0; lane < program->lanes; lane++) {
    uint32_t begin = program->lane_begin[lane];
    operation->lanes[lane] = (rdt_group_lane_state){begin, begin, 0};
  }
  operation->left = program->count;
}

/* Returns what else must be the same: unequal parts, or the factor. */
static uint64_t more_of(const rdt_group *group, const rdt_collective *call) {
  if (call->receive_counts) return 1; /* each member knows its own */
  if (call->counts) return rdt_group_agreement_hash(call->counts, group->size * sizeof(uint64_t));
  if (rdt_group_call_reduces(call->kind) && call->op == RDT_SCALED_SUM)
    return rdt_group_agreement_hash(&call->factor, sizeof(call->factor));
  return 0;
}

/* Returns by what the sum is multiplied. */
static double factor_of(const rdt_group *group, const rdt_collective *call) {
  return call->op == RDT_SCALED_SUM ? call->factor : 1.0 / group->size;
}

/* Sets up the driver's fields. The program exists already. */
static rdt_status begin(rdt_group_operation *operation, const rdt_collective *call,
                        rdt_algorithm algorithm) {
  rdt_group *group = operation->group;
  operation->shape =
      (rdt_group_shape){.kind = (uint8_t)call->kind, .algorithm = (uint8_t)algorithm};
  if (rdt_group_call_is_pair(call->kind)) operation->shape.kind = RDT_SEND;
  if (call->kind != RDT_BARRIER) {
    operation->shape.dtype = (uint8_t)call->dtype;
    operation->shape.reduction = rdt_group_call_reduces(call->kind) ? (uint8_t)call->op : 0;
    operation->shape.root = rdt_group_call_has_root(call->kind) ? (uint16_t)call->root : 0;
    if (algorithm == RDT_ALGORITHM_TREES && group->trees)
      operation->shape.trees = (uint16_t)(group->trees->hash | 1);
    operation->shape.count = total_of(group, call);
    operation->shape.more = more_of(group, call);
  }
  operation->by_pair = call->receive_counts != NULL;
  operation->factor = factor_of(group, call);
  operation->input = call->input;
  operation->output = call->output;
  if (rdt_group_call_input(group, call) == 0) operation->input = operation->output;
  operation->deadline = rdt_deadline_after(call->timeout_ms);
  operation->grace = 0;
  /* The first advance looks at everything. */
  operation->handled_events = atomic_load(&operation->pending_events) - 1;
  operation->posted = 0;
  operation->fresh = true;
  operation->needs_runner = operation->over = false;
  operation->reads_loans = operation->aborting = operation->closing = operation->regrets = false;
  operation->status = RDT_IN_PROGRESS;
  operation->sent = operation->copied = 0;
  return rdt_group_agreement_begin(operation, call->detail);
}

/* Long messages would hold up the progress thread. */
static rdt_group_driver driver_of(const rdt_group_operation *operation, rdt_done_fn done) {
  const rdt_group_program *program = operation->program;
  uint64_t element = operation->element;
  if (!done) return RDT_DRIVER_CALLER;
  return program->longest * element <= operation->group->eager &&
                 (program->total + program->request.count) * element <= SMALL_SCRATCH
             ? RDT_DRIVER_PROGRESS
             : RDT_DRIVER_RUNNER;
}

static void number(rdt_group *group, const rdt_collective *call, uint64_t tag[2]) {
  if (rdt_group_call_is_pair(call->kind)) {
    rdt_group_pair_number(group, call, tag);
    return;
  }
  memcpy(tag, call->tag, 2 * sizeof(*tag));
  if (tag[0] || tag[1]) return;
  tag[0] = atomic_fetch_add(&group->calls, 1);
  tag[1] = AUTO_TAG;
}

static rdt_status fail_regretted(rdt_group *group) {
  group->regrets = false;
  return rdt_fail(RDT_ERR_PROTOCOL, "group %s: %s", group->name, group->regret);
}

/* Enters a send, or a receive that takes what came first if anything did. */
static rdt_group_operation *enter_pair(rdt_group *group, const rdt_collective *call,
                                       const uint64_t tag[2]) {
  rdt_group_operation *operation = NULL;
  if (call->kind == RDT_RECEIVE) operation = rdt_group_pair_claim(group, call->root, tag[0]);
  if (operation) return operation;
  operation = rdt_group_operation_find(group, tag, true);
  if (!operation) return NULL;
  operation->peer = call->root;
  if (call->kind == RDT_RECEIVE) rdt_group_pair_post(operation, call->root);
  return operation;
}

/* Enters the operation into the table. Messages may have come for it already. */
static rdt_status enter(rdt_group *group, const rdt_collective *call, const uint64_t tag[2],
                        rdt_group_operation **operation_out) {
  if (group->closing) return rdt_fail(RDT_ERR_CANCELLED, "group %s is being closed", group->name);
  if (group->aborted != RDT_OK) return rdt_fail(group->aborted, "%s", group->abort_text);
  if (rdt_group_call_is_pair(call->kind) && group->regrets) return fail_regretted(group);
  rdt_group_operation *operation = rdt_group_call_is_pair(call->kind)
                                       ? enter_pair(group, call, tag)
                                       : rdt_group_operation_find(group, tag, true);
  if (!operation) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left for an operation");
  if (operation->started)
    return rdt_fail(RDT_ERR_INVALID, "an operation with the tag %#llx, %#llx is under way",
                    (unsigned long long)tag[0], (unsigned long long)tag[1]);
  operation->handle = rdt_group_call_is_pair(call->kind) ? call->tag[1] : 0;
  *operation_out = operation;
  return group->regrets ? fail_regretted(group) : RDT_OK;
}

static rdt_status set_up(rdt_group *group, const rdt_collective *call,
                         rdt_group_operation *operation) {
  size_t element = call->kind == RDT_BARRIER ? 1 : rdt_dtype_size(call->dtype);
  rdt_algorithm algorithm = algorithm_of(group, call, element);
  rdt_schedule_request request = request_of(group, call, algorithm, element);
  operation->element = element;
  operation->scratch_block = NULL;
  operation->scratch = NULL;
  operation->partner = RDT_GROUP_EVERYBODY;
  rdt_status status = RDT_OK;
  if (rdt_group_call_is_pair(call->kind)) {
    operation->program = pair_program(operation, call);
  } else {
    status = add_parts(operation, call, &request);
    if (status == RDT_OK)
      status = rdt_group_program_get(&group->programs, &request, &operation->program);
  }
  return status == RDT_OK ? begin(operation, call, algorithm) : status;
}

/* From here on messages belong to the driver. */
static void commit(rdt_group_operation *operation, rdt_collective_report *report, rdt_done_fn done,
                   void *context) {
  rdt_group *group = operation->group;
  begin_steps(operation);
  operation->report = report;
  if (report) {
    *report = (rdt_collective_report){0, group->rank};
    operation->began = rdt_now_ns();
    memset(operation->seen, 0, group->size);
    for (const rdt_group_part *part = operation->inbox; part; part = part->next)
      operation->seen[part->head.from] = 1;
    if (operation->peer < group->size) report->last = operation->peer;
  }
  operation->done = done;
  operation->context = context;
  operation->driver = driver_of(operation, done);
  for (rdt_group_part *part = operation->inbox; part; part = part->next)
    group->links[part->head.from].early--;
  operation->ready = RDT_READY_DRIVEN;
  operation->writes_ended = false;
  operation->started = true;
  group->early--;
  group->started++;
}

void rdt_group_operation_abort(rdt_group *group, const uint64_t tag[2], rdt_status status,
                               const char *text) {
  pthread_mutex_lock(&group->lock);
  rdt_group_operation *operation =
      rdt_group_operation_find(group, tag, !rdt_group_tag_finished(group, tag));
  bool early = operation && !operation->started;
  const uint32_t only = operation ? operation->peer : RDT_GROUP_EVERYBODY;
  if (operation) rdt_group_operation_mark_aborted(operation, status, text, strlen(text));
  if (operation) rdt_group_operation_wake(operation);
  pthread_mutex_unlock(&group->lock);
  for (uint32_t peer = 0; early && peer < group->size; peer++)
    if (peer != group->rank && (only == RDT_GROUP_EVERYBODY || only == peer) &&
        !atomic_load(&group->links[peer].down))
      rdt_group_abort_send(group, peer, tag, status, text, RDT_ABORT_OPERATION);
}

/* Fails an operation that could not start at the others, who would wait for it. */
static rdt_status give_up(rdt_group *group, const uint64_t tag[2], rdt_status status) {
  char text[RDT_GROUP_REASON];
  snprintf(text, sizeof(text), "%s", rdt_last_error());
  rdt_group_operation_abort(group, tag, status, text);
  return rdt_fail(status, "%s", text);
}

rdt_status rdt_group_operation_start(rdt_group *group, const rdt_collective *call, rdt_done_fn done,
                                     void *context, rdt_group_operation **operation_out) {
  uint64_t tag[2];
  rdt_group_operation *operation = NULL;
  number(group, call, tag);
  pthread_mutex_lock(&group->lock);
  rdt_status status = enter(group, call, tag, &operation);
  if (status == RDT_OK) status = set_up(group, call, operation);
  if (status == RDT_OK) status = make_room(operation);
  if (status == RDT_OK) {
    commit(operation, call->report, done, context);
    *operation_out = operation;
  } else if (operation) {
    rdt_group_program_release(operation->program);
    operation->program = NULL;
    memcpy(tag, operation->tag, sizeof(tag)); /* a receive may have that of a send */
    if (rdt_group_call_is_pair(call->kind) && !operation->inbox) { /* nobody knows it */
      rdt_group_operation_forget(operation);
      operation = NULL;
    }
  }
  pthread_mutex_unlock(&group->lock);
  return status != RDT_OK && operation ? give_up(group, tag, status) : status;
}
