/* SPDX-License-Identifier: Apache-2.0
 *
 * The receive side of an endpoint: completions of what was posted, notifications and credit from
 * the peer, and the first failure. One thread at a time runs it.
 */
#include <arpa/inet.h>
#include <stdio.h>

#include "base/copy.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/verbs/objects.h"

#define COMPLETIONS 32

static const char *hint(enum ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer does not answer: its process, host or link is gone, or the network drops "
             "packets";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer's process does not keep up with notifications";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer withdrew the region, or its key is wrong";
    case IBV_WC_LOC_PROT_ERR:
      return "a local buffer was freed, or its region closed, before the transfer completed";
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_WR_FLUSH_ERR: /* the first failure if the device gives a queue pair up */
      return "the connection was closed, or the own port is down";
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer's device could not execute the request";
    case IBV_WC_MW_BIND_ERR:
      return "the device does not bind memory windows: set RDMATENSOR_WINDOWS=off";
    default:
      return "the connection is closed";
  }
}

static rdt_status status_of(enum ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return RDT_OK;
    case IBV_WC_REM_ACCESS_ERR:
      return RDT_ERR_ACCESS;
    default:
      return RDT_ERR_CONNECTION_LOST;
  }
}

static void fail(rdt_endpoint *endpoint, const char *text) {
  if (endpoint->failed) return;
  endpoint->failed = true;
  snprintf(endpoint->failure, sizeof(endpoint->failure), "%s", text);
}

/* The first failure is the cause; those after it are its consequences. */
static void note_failure(rdt_endpoint *endpoint, const struct ibv_wc *wc) {
  char text[384];
  if (endpoint->failed || endpoint->stopped) {
    endpoint->flushed++;
    return;
  }
  snprintf(text, sizeof(text), "%s (%d), vendor error 0x%02x, queue pair 0x%06x to %s over %s: %s",
           rdt_verbs_wc_status_text(wc->status), (int)wc->status, wc->vendor_err, wc->qp_num,
           endpoint->peer, endpoint->domain->text, hint(wc->status));
  fail(endpoint, text);
}

static void release(rdt_endpoint *endpoint, const rdt_verbs_piece *piece, rdt_status status,
                    const rdt_events *events) {
  if (status == RDT_OK && piece->slot && piece->target)
    rdt_copy(piece->target, piece->slot->memory, piece->size, SIZE_MAX);
  if (piece->fence) atomic_fetch_sub(&endpoint->fences, 1);
  if (piece->notification) atomic_fetch_sub(&endpoint->notifying, 1);
  if (piece->event) atomic_fetch_sub(&endpoint->wanted, 1);
  rdt_verbs_slot_free(endpoint->domain, piece->slot);
  rdt_verbs_registration_unref(piece->registration);
  if (piece->request) events->completed(events->context, piece->request, status);
}

void rdt_verbs_complete_until(rdt_endpoint *endpoint, rdt_verbs_queue *queue, uint32_t end,
                              rdt_status status, const rdt_events *events) {
  for (;;) {
    uint32_t at = atomic_load(&queue->completed);
    if ((int32_t)(end - at) <= 0) return;
    /* The completion is of work that another thread posted; this acquire makes that thread's
     * writes visible. */
    if ((int32_t)(atomic_load(&queue->posted) - at) <= 0) return;
    rdt_verbs_piece piece = queue->pieces[at & (queue->depth - 1)];
    atomic_store(&queue->completed, at + 1); /* from here on the slot may be reused */
    release(endpoint, &piece, status, events);
  }
}

/* A completion also completes everything posted before it. */
static void complete(rdt_endpoint *endpoint, const struct ibv_wc *wc, const rdt_events *events) {
  rdt_verbs_queue *queue = &endpoint->queues[wc->wr_id >> 32];
  uint32_t at = (uint32_t)wc->wr_id;
  rdt_status status = status_of(wc->status);
  rdt_verbs_complete_until(endpoint, queue, at, RDT_OK, events);
  if (status != RDT_OK) rdt_fail(status, "%s", endpoint->failure);
  rdt_verbs_complete_until(endpoint, queue, at + 1, status, events);
}

/* Completes what the device never accepted. Only for a stopped endpoint, whose send side no
 * longer moves. */
static void complete_unhanded(rdt_endpoint *endpoint, const rdt_events *events) {
  for (uint32_t i = 0; i < endpoint->queue_count; i++) {
    rdt_verbs_queue *queue = &endpoint->queues[i];
    if (atomic_load(&queue->completed) == atomic_load(&queue->handed))
      rdt_verbs_complete_until(endpoint, queue, atomic_load(&queue->posted),
                               RDT_ERR_CONNECTION_LOST, events);
  }
}

/* A later message may overwrite the words before this one is handled; then the next message
 * brings nothing new. More of those than can be in flight come from a peer that only wants to
 * use up receives. */
static void receive_credit(rdt_endpoint *endpoint) {
  uint64_t granted = atomic_load(&endpoint->credit_in->receives);
  uint64_t consumed = atomic_load(&endpoint->credit_in->consumed);
  bool news =
      granted != atomic_load(&endpoint->granted) || consumed != atomic_load(&endpoint->consumed);
  endpoint->idle_credits = news ? 0 : endpoint->idle_credits + 1;
  if (endpoint->idle_credits > RDT_VERBS_CREDIT_RECEIVES)
    fail(endpoint, "the peer returns credit again and again without having consumed anything");
  atomic_store(&endpoint->granted, granted);
  atomic_store(&endpoint->consumed, consumed);
}

static void receive(rdt_endpoint *endpoint, const struct ibv_wc *wc) {
  uint32_t announced = ntohl(wc->imm_data);
  if (announced == 0) {
    receive_credit(endpoint);
    return;
  }
  endpoint->taken++;
  /* Receives are shared. A peer that uses more than its part would leave none to others. */
  if (endpoint->taken - endpoint->told_taken > RDT_VERBS_NOTIFY_RECEIVES)
    fail(endpoint, "the peer sent notifications without credit");
  if (!rdt_records_consumer_learn(&endpoint->receive, endpoint->receive.seen + announced))
    fail(endpoint, "the peer announced more notifications than its ring holds");
}

static int deliver(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  int delivered = 0;
  while (delivered < budget) {
    uint64_t immediate;
    const void *data;
    uint32_t size;
    rdt_records_result result = rdt_records_peek(&endpoint->receive, &immediate, &data, &size);
    if (result == RDT_RECORDS_CORRUPT) fail(endpoint, "the peer wrote a malformed notification");
    if (result != RDT_RECORDS_OK) break;
    events->notified(events->context, immediate, data, size);
    rdt_records_pass(&endpoint->receive, size);
    delivered++;
  }
  return delivered;
}

static void repost(rdt_endpoint *endpoint) {
  uint32_t count = endpoint->unposted;
  endpoint->unposted = 0;
  if (count > 0 && rdt_verbs_domain_receives(endpoint->domain, count, false) != RDT_OK)
    fail(endpoint, rdt_last_error());
}

/* The peer learns of every quarter that was freed, so it can always send what fits into a
 * quarter. */
static void offer_credit(rdt_endpoint *endpoint) {
  uint64_t consumed = endpoint->receive.position;
  bool quarter = consumed - endpoint->told_consumed >= endpoint->receive.capacity / 4 ||
                 endpoint->taken - endpoint->told_taken >= RDT_VERBS_NOTIFY_RECEIVES / 4;
  if (quarter || endpoint->unposted >= RDT_VERBS_REPOST) repost(endpoint);
  if (!quarter) return;
  atomic_store(&endpoint->credit_out->consumed, consumed);
  atomic_store(&endpoint->credit_out->receives, endpoint->taken);
  endpoint->told_consumed = consumed;
  endpoint->told_taken = endpoint->taken;
  atomic_store(&endpoint->credit_due, true);
}

static int take_completions(rdt_endpoint *endpoint, struct ibv_wc *completions) {
  if (endpoint->stashed) {
    endpoint->stashed = false;
    completions[0] = endpoint->stash;
    return 1;
  }
  int count = ibv_poll_cq(endpoint->cq, COMPLETIONS, completions);
  if (count >= 0) return count;
  fail(endpoint, "the device's completion queue broke");
  return 0;
}

static void handle(rdt_endpoint *endpoint, const struct ibv_wc *wc, const rdt_events *events) {
  if (wc->status != IBV_WC_SUCCESS) note_failure(endpoint, wc);
  if (wc->wr_id == RDT_VERBS_RECEIVE_ID) {
    endpoint->unposted++; /* whatever it brought */
    if (wc->status == IBV_WC_SUCCESS && (wc->wc_flags & IBV_WC_WITH_IMM))
      receive(endpoint, wc);
    else
      fail(endpoint, "the peer sent what is no notification");
    return;
  }
  complete(endpoint, wc, events);
}

/* The error is reported once. After it the channel is stopped, and the rest only drains. */
static int outcome(rdt_endpoint *endpoint, int taken) {
  if (atomic_load(&endpoint->broken)) fail(endpoint, "the device reported a broken queue");
  if (!endpoint->failed || endpoint->reported || endpoint->stopped) return taken;
  endpoint->reported = true;
  return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s", endpoint->failure);
}

int rdt_verbs_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  struct ibv_wc completions[COMPLETIONS];
  int taken = 0, count;
  do {
    count = take_completions(endpoint, completions);
    for (int i = 0; i < count; i++) handle(endpoint, &completions[i], events);
    taken += count;
  } while (count == COMPLETIONS);
  if (endpoint->stopped) {
    complete_unhanded(endpoint, events);
    repost(endpoint); /* receives are shared: this peer is gone, others are not */
  } else {
    taken += deliver(endpoint, budget, events);
    offer_credit(endpoint);
  }
  return outcome(endpoint, taken);
}

void rdt_verbs_return_receives(rdt_endpoint *endpoint) {
  struct ibv_wc completions[COMPLETIONS];
  int count, total = 0;
  do {
    count = take_completions(endpoint, completions);
    for (int i = 0; i < count; i++)
      endpoint->unposted += completions[i].wr_id == RDT_VERBS_RECEIVE_ID;
    total += count;
  } while (count > 0);
  /* An overflowed completion queue does not tell how many completions there were; the event that says so may
   * come later. Excess receives do not fit. */
  if (atomic_load(&endpoint->broken) || total >= endpoint->cq->cqe)
    endpoint->unposted = endpoint->domain->max_receives;
  repost(endpoint);
}

static bool request_events(rdt_endpoint *endpoint, enum rdt_verbs_armed wanted) {
  if (atomic_load(&endpoint->armed) >= (int)wanted) return true;
  atomic_store(&endpoint->armed, wanted);
  return ibv_req_notify_cq(endpoint->cq, wanted == RDT_VERBS_SOLICITED) == 0;
}

bool rdt_verbs_arm(rdt_endpoint *endpoint, bool may_take, bool completions) {
  if (endpoint->stashed) return false;
  if (!request_events(endpoint, completions ? RDT_VERBS_ALL : RDT_VERBS_SOLICITED)) return false;
  /* Either the poster sees that only notifications raise events, or we see what it posted. */
  if (atomic_load(&endpoint->wanted) > 0) {
    atomic_store(&endpoint->armed, RDT_VERBS_ALL);
    /* Arm again even if the poster did: devices differ in which of two requests wins. */
    if (ibv_req_notify_cq(endpoint->cq, 0) != 0) return false;
  }
  /* Completions from before the request raise no event. */
  endpoint->stashed = ibv_poll_cq(endpoint->cq, 1, &endpoint->stash) > 0;
  bool records = endpoint->receive.seen != endpoint->receive.position;
  return !endpoint->stashed && !(may_take && records);
}

void rdt_verbs_disarm(rdt_endpoint *endpoint) {
  struct ibv_cq *cq;
  void *context;
  while (rdt_verbs_get_cq_event(endpoint->events, &cq, &context) == RDT_OK) {
    rdt_verbs_ack_cq_events(cq, 1);
    atomic_store(&endpoint->armed, RDT_VERBS_UNARMED);
  }
}

int rdt_verbs_event_fd(const rdt_endpoint *endpoint) { return endpoint->events->fd; }
