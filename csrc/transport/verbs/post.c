/* SPDX-License-Identifier: Apache-2.0
 *
 * The send side of an endpoint, which runs under the channel's send lock. Operations are cut into
 * pieces, pieces become work requests, and a doorbell hands over the work requests that have
 * gathered. Operations up to the stripe size and notifications go over the first queue, which
 * keeps them in order. Longer operations go over all queues, and a notification waits until such
 * writes are complete. Notifications are written into the peer's ring, many with one work request,
 * which uses one of the peer's receives.
 */
#include <arpa/inet.h>
#include <string.h>

#include "base/status.h"
#include "transport/verbs/objects.h"

/* Runs before the work is handed over, so that no completion is missed. */
static void want_events(rdt_endpoint *endpoint) {
  if (atomic_load(&endpoint->wanted) == 0 || atomic_load(&endpoint->armed) != RDT_VERBS_SOLICITED)
    return;
  atomic_store(&endpoint->armed, RDT_VERBS_ALL);
  if (ibv_req_notify_cq(endpoint->cq, 0) != 0) atomic_store(&endpoint->broken, true);
}

/* Only the last request of a batch and long ones report their completion, for all before them.
 * The device accepts work in order. After a refusal it gets no more, and poll completes what it
 * did not accept, as a failure. */
static int hand_over(rdt_endpoint *endpoint, rdt_verbs_queue *queue) {
  struct ibv_send_wr *bad = NULL;
  uint32_t count = queue->batched;
  if (count == 0) return 0;
  queue->batched = 0;
  queue->requests[count - 1].next = NULL;
  queue->requests[count - 1].send_flags |= IBV_SEND_SIGNALED;
  if (atomic_load(&endpoint->broken)) return 0;
  want_events(endpoint);
  if (ibv_post_send(queue->qp, queue->requests, &bad) == 0) {
    atomic_fetch_add(&queue->handed, count);
    return 1;
  }
  if (bad) atomic_fetch_add(&queue->handed, (uint32_t)(bad - queue->requests));
  atomic_store(&endpoint->broken, true);
  return 1;
}

/* Reports whether there is room for another piece of data, beside the reserve. */
static bool has_room(const rdt_verbs_queue *queue, uint32_t reserve) {
  return rdt_verbs_outstanding(queue) + reserve < queue->depth;
}

/* Appends a work request. `wr` is complete except for its id, next pointer and segments. */
static void append(rdt_endpoint *endpoint, uint32_t index, struct ibv_send_wr wr,
                   struct ibv_sge segment, rdt_verbs_piece piece) {
  rdt_verbs_queue *queue = &endpoint->queues[index];
  if (queue->batched == RDT_VERBS_BATCH) hand_over(endpoint, queue);
  uint32_t posted = atomic_load(&queue->posted), at = queue->batched++;
  queue->pieces[posted & (queue->depth - 1)] = piece;
  queue->segments[at] = segment;
  wr.wr_id = (uint64_t)index << 32 | posted;
  wr.sg_list = &queue->segments[at];
  wr.num_sge = segment.length ? 1 : 0;
  queue->requests[at] = wr;
  if (at > 0) queue->requests[at - 1].next = &queue->requests[at];
  atomic_store(&queue->posted, posted + 1);
}

/* Holds what a piece of a request names until it is complete. Append it then. */
static void hold(rdt_endpoint *endpoint, rdt_verbs_piece *piece) {
  piece->event = piece->request->wants_event;
  if (piece->registration) rdt_verbs_registration_ref(piece->registration);
  if (piece->fence) atomic_fetch_add(&endpoint->fences, 1);
  if (piece->event) atomic_fetch_add(&endpoint->wanted, 1);
  rdt_request_hold(piece->request);
}

typedef struct transfer {
  const rdt_mapping *mapping;
  rdt_op *op;
  rdt_request *request;
  bool read;
} transfer;

static void advance(rdt_op *op, uint64_t size) {
  op->local = (char *)op->local + size;
  op->remote_offset += size;
  op->size -= size;
}

static uint32_t key_for(const rdt_verbs_keys *keys, uint32_t queue) {
  return keys->rkeys[queue < keys->count ? queue : 0];
}

/* Posts the next `size` bytes of the operation, from `local`. */
static void post_piece(rdt_endpoint *endpoint, uint32_t index, const transfer *t, uint32_t size,
                       const rdt_verbs_local *local) {
  bool inlined = !t->read && !local;
  struct ibv_sge segment = {.addr = inlined ? (uintptr_t)t->op->local : local->address,
                            .length = size,
                            .lkey = inlined ? 0 : local->lkey};
  struct ibv_send_wr wr = {.opcode = t->read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                           .send_flags = (inlined ? IBV_SEND_INLINE : 0) |
                                         (size >= RDT_VERBS_REPORT_BYTES ? IBV_SEND_SIGNALED : 0),
                           .wr.rdma = {.remote_addr = t->mapping->address + t->op->remote_offset,
                                       .rkey = key_for(&t->mapping->keys, index)}};
  rdt_verbs_piece piece = {.request = t->request,
                           .registration = inlined ? NULL : local->registration,
                           .slot = inlined ? NULL : local->slot,
                           .target = t->read ? t->op->local : NULL,
                           .size = size,
                           .fence = !t->read && index > 0};
  hold(endpoint, &piece);
  append(endpoint, index, wr, segment, piece);
  advance(t->op, size);
}

/* Cuts into no more pieces than all queues take together, unless pieces would be too long. */
static uint64_t piece_size(const rdt_endpoint *endpoint, uint64_t size) {
  uint64_t piece = size / ((uint64_t)endpoint->queue_count * 16);
  uint64_t longest = endpoint->domain->choice.port->max_message;
  if (longest > RDT_VERBS_PIECE_BYTES) longest = RDT_VERBS_PIECE_BYTES;
  if (piece < endpoint->stripe) piece = endpoint->stripe;
  return piece < longest ? piece : longest;
}

/* Finds the next queue with room. Returns RDT_NO_CREDIT if none has any. */
static rdt_status next_queue(rdt_endpoint *endpoint, uint32_t *index) {
  for (uint32_t tried = 0; tried < endpoint->queue_count; tried++) {
    *index = endpoint->next_queue++ % endpoint->queue_count;
    if (has_room(&endpoint->queues[*index], RDT_VERBS_RESERVE)) return RDT_OK;
  }
  return RDT_NO_CREDIT;
}

static rdt_status post_striped(rdt_endpoint *endpoint, const transfer *t) {
  rdt_verbs_local local;
  rdt_op *op = t->op;
  uint64_t piece = piece_size(endpoint, op->size);
  uint32_t index;
  rdt_status status = next_queue(endpoint, &index);
  if (status == RDT_OK)
    status = rdt_verbs_local_acquire(endpoint->domain, op->local, op->size, t->read, &local);
  if (status != RDT_OK) return status;
  while (status == RDT_OK && op->size > 0) {
    uint64_t size = op->size < piece ? op->size : piece;
    post_piece(endpoint, index, t, (uint32_t)size, &local);
    local.address += size;
    if (op->size > 0) status = next_queue(endpoint, &index);
  }
  rdt_verbs_registration_unref(local.registration); /* the pieces hold it */
  return status == RDT_OK ? RDT_IN_PROGRESS : status;
}

static rdt_status post_single(rdt_endpoint *endpoint, const transfer *t) {
  rdt_verbs_local local;
  rdt_op *op = t->op;
  if (!has_room(&endpoint->queues[0], RDT_VERBS_RESERVE)) return RDT_NO_CREDIT;
  if (!t->read && op->size <= endpoint->max_inline) {
    post_piece(endpoint, 0, t, (uint32_t)op->size, NULL);
    return RDT_IN_PROGRESS;
  }
  rdt_status status =
      rdt_verbs_local_acquire(endpoint->domain, op->local, op->size, t->read, &local);
  if (status != RDT_OK) return status;
  post_piece(endpoint, 0, t, (uint32_t)op->size, &local);
  rdt_verbs_registration_unref(local.registration);
  return RDT_IN_PROGRESS;
}

static rdt_status post(rdt_endpoint *endpoint, const transfer *t) {
  if (t->op->size == 0) return RDT_OK;
  if (t->op->size > endpoint->stripe) return post_striped(endpoint, t);
  return post_single(endpoint, t);
}

rdt_status rdt_verbs_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                           rdt_request *request) {
  return post(endpoint, &(transfer){mapping, op, request, false});
}

rdt_status rdt_verbs_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                          rdt_request *request) {
  return post(endpoint, &(transfer){mapping, op, request, true});
}

rdt_status rdt_verbs_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                            rdt_request *request) {
  rdt_verbs_local local;
  bool adds = op->kind == RDT_OP_FETCH_ADD;
  if (!has_room(&endpoint->queues[0], RDT_VERBS_RESERVE)) return RDT_NO_CREDIT;
  rdt_status status = rdt_verbs_local_acquire(endpoint->domain, op->local, op->size, true, &local);
  if (status != RDT_OK) return status;
  struct ibv_sge segment = {.addr = local.address, .length = RDT_ATOMIC_SIZE, .lkey = local.lkey};
  struct ibv_send_wr wr = {.opcode = adds ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
                           .wr.atomic = {.remote_addr = mapping->address + op->remote_offset,
                                         .compare_add = adds ? op->operand : op->expected,
                                         .swap = adds ? 0 : op->operand,
                                         .rkey = key_for(&mapping->keys, 0)}};
  rdt_verbs_piece piece = {.request = request,
                           .registration = local.registration,
                           .slot = local.slot,
                           .target = op->local,
                           .size = RDT_ATOMIC_SIZE};
  hold(endpoint, &piece);
  append(endpoint, 0, wr, segment, piece);
  rdt_verbs_registration_unref(local.registration); /* the piece holds it */
  return RDT_IN_PROGRESS;
}

static void post_bind(rdt_endpoint *endpoint, uint32_t index, rdt_registration *registration,
                      rdt_request *request) {
  rdt_verbs_piece piece = {.request = request, .registration = registration};
  hold(endpoint, &piece);
  append(endpoint, index,
         rdt_verbs_window_bind(&registration->grant->windows[index], registration->mr,
                               registration->access),
         (struct ibv_sge){0}, piece);
}

/* Every queue pair gets a key of its own, so that large transfers can use all of them here too. */
rdt_status rdt_verbs_region_grant(rdt_endpoint *endpoint, rdt_registration *registration,
                                  rdt_request *request) {
  if (!registration->one_peer) return RDT_OK;
  for (uint32_t i = 0; i < endpoint->queue_count; i++)
    if (!has_room(&endpoint->queues[i], RDT_VERBS_RESERVE)) return RDT_NO_CREDIT;
  rdt_status status = rdt_verbs_grant_open(endpoint, registration);
  if (status != RDT_OK) return status;
  for (uint32_t i = 0; i < endpoint->queue_count; i++)
    post_bind(endpoint, i, registration, request);
  return RDT_IN_PROGRESS;
}

/* The peer writes its notifications through the first queue pair. */
void rdt_verbs_bind_ring(rdt_endpoint *endpoint) {
  const rdt_verbs_block *ring = &endpoint->inbound;
  append(endpoint, 0, rdt_verbs_window_bind(&ring->window, ring->mr, RDT_ACCESS_WRITE),
         (struct ibv_sge){0}, (rdt_verbs_piece){0});
  hand_over(endpoint, &endpoint->queues[0]);
}

rdt_status rdt_verbs_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                            uint64_t size) {
  rdt_records *mirror = &endpoint->mirror;
  if (atomic_load(&endpoint->fences) > 0) return RDT_NO_CREDIT;
  if (!rdt_records_producer_learn(mirror, atomic_load(&endpoint->consumed)) ||
      atomic_load(&endpoint->granted) > endpoint->notifies)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer returned credit that it did not have");
  return rdt_records_put(mirror, immediate, data, (uint32_t)size) == RDT_RECORDS_OK ? RDT_OK
                                                                                    : RDT_NO_CREDIT;
}

/* Posts a write from a block of ours into the peer's. Unless `silent`, it uses a receive there
 * and says how many bytes of records it wrote, 0 for credit. */
static void write_block(rdt_endpoint *endpoint, const rdt_verbs_block *block, const void *from,
                        uint64_t to, uint32_t size, bool silent, uint32_t announced) {
  struct ibv_sge segment = {.addr = (uintptr_t)from, .length = size, .lkey = block->mr->lkey};
  struct ibv_send_wr wr = {.opcode = silent ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM,
                           .send_flags = (silent ? 0 : IBV_SEND_SOLICITED) |
                                         (size <= endpoint->max_inline ? IBV_SEND_INLINE : 0),
                           .imm_data = htonl(announced),
                           .wr.rdma = {.remote_addr = to, .rkey = endpoint->remote.rkey}};
  bool notification = !silent && announced > 0;
  if (notification) atomic_fetch_add(&endpoint->notifying, 1);
  append(endpoint, 0, wr, segment, (rdt_verbs_piece){.size = size, .notification = notification});
}

/* Sends the records that gathered in the mirror, in two parts if they wrap around the ring's
 * end. */
static void publish(rdt_endpoint *endpoint) {
  const rdt_records *mirror = &endpoint->mirror;
  uint64_t total = mirror->position - endpoint->published;
  uint64_t longest = endpoint->domain->choice.port->max_message;
  bool credit = endpoint->notifies - atomic_load(&endpoint->granted) < endpoint->remote.notifies;
  bool wait = total > 0 && (!credit || !has_room(&endpoint->queues[0], RDT_VERBS_RESERVE + 1));
  atomic_store(&endpoint->stalled, wait);
  if (total == 0 || wait) return;
  while (endpoint->published < mirror->position) {
    uint64_t at = endpoint->published & (mirror->capacity - 1);
    uint64_t left = mirror->position - endpoint->published, size = mirror->capacity - at;
    if (size > longest) size = longest;
    bool last = left <= size;
    if (last) size = left;
    write_block(endpoint, &endpoint->outbound, mirror->data + at, endpoint->remote.ring + at,
                (uint32_t)size, !last, (uint32_t)total);
    endpoint->published += size;
  }
  endpoint->notifies++;
}

/* Tells the peer what we consumed. Each such message frees at least a quarter of the ring or of
 * the receives, so at most eight are in flight. They have receives of their own, and need no
 * credit. */
static void give_credit(rdt_endpoint *endpoint) {
  if (!has_room(&endpoint->queues[0], 1)) return; /* completions will trigger another call */
  if (!atomic_exchange(&endpoint->credit_due, false)) return;
  write_block(endpoint, &endpoint->inbound, endpoint->credit_out, endpoint->remote.credit,
              sizeof(rdt_verbs_credit), false, 0);
}

bool rdt_verbs_wants_doorbell(const rdt_endpoint *endpoint) {
  return atomic_load_explicit(&endpoint->credit_due, memory_order_relaxed) ||
         atomic_load_explicit(&endpoint->stalled, memory_order_relaxed);
}

/* Long writes may precede notifications, or hold them back. */
bool rdt_verbs_delivering(const rdt_endpoint *endpoint) {
  return atomic_load(&endpoint->fences) > 0 || atomic_load(&endpoint->notifying) > 0;
}

int rdt_verbs_doorbell(rdt_endpoint *endpoint) {
  int rung = 0;
  if (endpoint->stopped) return 0;
  publish(endpoint);
  if (atomic_load(&endpoint->credit_due)) give_credit(endpoint);
  for (uint32_t i = 0; i < endpoint->queue_count; i++)
    rung += hand_over(endpoint, &endpoint->queues[i]);
  return rung;
}

/* Posts an empty write. The peer's device answers it without its host. Before the first record, the
 * write is a full packet of what both rings hold, zeros: a network may drop only long packets. */
rdt_status rdt_verbs_probe(rdt_endpoint *endpoint) {
  const rdt_records *mirror = &endpoint->mirror;
  uint32_t packet = 128u << endpoint->mtu;
  struct ibv_sge segment = {0};
  if (mirror->position == 0 && packet <= mirror->capacity)
    segment = (struct ibv_sge){
        .addr = (uintptr_t)mirror->data, .length = packet, .lkey = endpoint->outbound.mr->lkey};
  struct ibv_send_wr wr = {
      .opcode = IBV_WR_RDMA_WRITE,
      .wr.rdma = {.remote_addr = endpoint->remote.ring, .rkey = endpoint->remote.rkey}};
  if (rdt_verbs_outstanding(&endpoint->queues[0]) > 0) return RDT_OK;
  atomic_fetch_add(&endpoint->wanted, 1);
  append(endpoint, 0, wr, segment, (rdt_verbs_piece){.event = true});
  return RDT_OK;
}
