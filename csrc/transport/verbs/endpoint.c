/* SPDX-License-Identifier: Apache-2.0
 *
 * An endpoint from its creation to its end: its resources, the states of its queue pairs, and the
 * order of freeing them. No memory is freed before the queue pairs are in the error state and
 * everything posted is complete.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "transport/verbs/objects.h"
#include "transport/verbs/registration.h"

#define CREDIT_PAGE 4096u /* both credits, at the start of the block */
#define CREDIT_OUT 64u    /* on a cache line of its own */
#define MAX_INLINE 256u   /* bytes; requested, and reduced if the device supports less */
#define RETRIES 6u        /* 7 means for ever on some devices */
#define FEWEST_TRIES 5u   /* a network that loses 5 % rarely loses so many packets in a row */
#define RNR_TIMER \
  24u /* 41 ms (InfiniBand specification, table 45); needed only if a peer misbehaves */
#define HOP_LIMIT 64u
#define MASK_24 0xffffffu
#define MAX_MIRROR (64u << 20) /* bytes, unless our own ring is larger */

static rdt_status create_block(rdt_domain *domain, uint64_t size, uint32_t access,
                               rdt_verbs_block *block) {
  void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    return rdt_fail(RDT_ERR_NO_MEMORY, "no memory for a ring of %llu bytes",
                    (unsigned long long)size);
  block->start = start;
  block->size = size;
  return rdt_verbs_register(domain->pd, start, size, access, RDT_VERBS_LOCAL_TARGET, &block->mr);
}

static void destroy_block(rdt_verbs_block *block) {
  if (block->mr && rdt_verbs_dereg_mr(block->mr) != RDT_OK)
    rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
  if (block->start) munmap(block->start, block->size);
}

/* Creates the memory that the peer writes: credit and notifications. */
static rdt_status create_inbound(rdt_endpoint *endpoint) {
  uint64_t capacity = rdt_records_configured_capacity();
  bool windows = endpoint->domain->windows;
  rdt_status status =
      create_block(endpoint->domain, CREDIT_PAGE + capacity,
                   windows ? RDT_VERBS_ACCESS_WINDOWS : RDT_ACCESS_WRITE, &endpoint->inbound);
  if (status != RDT_OK) return status;
  char *start = endpoint->inbound.start;
  endpoint->credit_in = (rdt_verbs_credit *)start;
  endpoint->credit_out = (rdt_verbs_credit *)(start + CREDIT_OUT);
  rdt_records_init(&endpoint->receive, start + CREDIT_PAGE, capacity);
  return RDT_OK;
}

/* Creates the mirror of the peer's ring. Records are written here and sent from here. Space that
 * the peer has freed was sent long ago. */
static rdt_status create_outbound(rdt_endpoint *endpoint) {
  uint64_t capacity = endpoint->remote.ring_capacity;
  if (capacity > MAX_MIRROR && capacity > endpoint->receive.capacity)
    return rdt_fail(RDT_ERR_PROTOCOL,
                    "the peer has a ring of %llu bytes, for which memory would be pinned here: "
                    "use the same version of rdmatensor",
                    (unsigned long long)capacity);
  rdt_status status =
      create_block(endpoint->domain, capacity, RDT_ACCESS_NONE, &endpoint->outbound);
  if (status == RDT_OK) rdt_records_init(&endpoint->mirror, endpoint->outbound.start, capacity);
  return status;
}

static uint32_t queue_depth(const rdt_domain *domain) {
  uint32_t depth = 1, wanted = (uint32_t)rdt_config_number(RDT_CONFIG_QUEUE_DEPTH);
  uint32_t limit = domain->choice.port->limits.max_qp_wr;
  if (wanted > limit) wanted = limit;
  while (depth * 2 <= wanted) depth *= 2;
  return depth;
}

/* The queue has as many entries as completions can be outstanding, so it cannot overflow. */
static rdt_status create_completions(rdt_endpoint *endpoint, uint32_t depth) {
  struct ibv_context *context = endpoint->domain->context;
  uint32_t entries = endpoint->queue_count * depth + RDT_VERBS_RECEIVES;
  uint32_t limit = endpoint->domain->choice.port->limits.max_cqe;
  if (entries > limit)
    return rdt_fail(RDT_ERR_LIMIT,
                    "%s has completion queues of at most %u entries, and %u are needed: lower "
                    "%sQUEUE_PAIRS",
                    endpoint->domain->text, limit, entries, RDT_ENV_PREFIX);
  rdt_status status = rdt_verbs_create_comp_channel(context, &endpoint->events);
  if (status != RDT_OK) return status;
  return rdt_verbs_create_cq(context, (int)entries, endpoint, endpoint->events, &endpoint->cq);
}

/* No attribute says how much data can be inline: the device refuses too large a value. */
static rdt_status create_qp(rdt_endpoint *endpoint, rdt_verbs_queue *queue, uint32_t *max_inline) {
  rdt_status status;
  for (;;) {
    struct ibv_qp_init_attr attr = {
        .qp_context = endpoint,
        .send_cq = endpoint->cq,
        .recv_cq = endpoint->cq,
        .srq = endpoint->domain->srq,
        .cap = {.max_send_wr = queue->depth, .max_send_sge = 1, .max_inline_data = *max_inline},
        .qp_type = IBV_QPT_RC};
    status = rdt_verbs_create_qp(endpoint->domain->pd, &attr, &queue->qp);
    if (status == RDT_OK || *max_inline == 0) return status;
    *max_inline /= 2;
  }
}

static rdt_status set_init(rdt_endpoint *endpoint, rdt_verbs_queue *queue) {
  const rdt_verbs_port *port = endpoint->domain->choice.port;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = port->number,
                             .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
  if (port->limits.atomics != IBV_ATOMIC_NONE) attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  return rdt_verbs_modify_qp(queue->qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static rdt_status create_queue(rdt_endpoint *endpoint, rdt_verbs_queue *queue, uint32_t depth) {
  queue->depth = depth;
  queue->pieces = calloc(depth, sizeof(*queue->pieces));
  if (!queue->pieces) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_random(&queue->psn, sizeof(queue->psn));
  queue->psn &= MASK_24;
  if (status == RDT_OK) status = create_qp(endpoint, queue, &endpoint->max_inline);
  return status == RDT_OK ? set_init(endpoint, queue) : status;
}

static rdt_status describe(const rdt_endpoint *endpoint, rdt_bundle *offer) {
  const rdt_verbs_choice *choice = &endpoint->domain->choice;
  const rdt_verbs_block *inbound = &endpoint->inbound;
  uint64_t start = (uintptr_t)inbound->start;
  rdt_verbs_address address = {
      .link_layer = choice->port->link_layer,
      .mtu = choice->port->active_mtu,
      .lid = choice->port->lid,
      .reads = choice->port->limits.max_qp_rd_atom,
      .atomics = choice->port->limits.atomics,
      .notifies = RDT_VERBS_NOTIFY_RECEIVES,
      .ring = start + CREDIT_PAGE,
      .ring_capacity = endpoint->receive.capacity,
      .credit = start,
      .rkey = inbound->window.mw ? inbound->window.rkey : inbound->mr->rkey,
      .queue_count = endpoint->queue_count};
  if (choice->gid) {
    address.gid_type = choice->gid->type;
    memcpy(address.gid, choice->gid->raw, sizeof(address.gid));
  }
  for (uint32_t i = 0; i < endpoint->queue_count; i++) {
    address.queues[i].qpn = endpoint->queues[i].qp->qp_num;
    address.queues[i].psn = endpoint->queues[i].psn;
  }
  return rdt_verbs_address_encode(&address, offer);
}

static rdt_status create(rdt_endpoint *endpoint, rdt_bundle *offer) {
  uint32_t depth = queue_depth(endpoint->domain);
  endpoint->queue_count = (uint32_t)rdt_config_number(RDT_CONFIG_QUEUE_PAIRS);
  endpoint->stripe = rdt_config_number(RDT_CONFIG_STRIPE_BYTES);
  endpoint->max_inline = MAX_INLINE;
  rdt_status status = create_inbound(endpoint);
  if (status == RDT_OK) status = create_completions(endpoint, depth);
  for (uint32_t i = 0; i < endpoint->queue_count && status == RDT_OK; i++)
    status = create_queue(endpoint, &endpoint->queues[i], depth);
  /* The window is created after the queue pair that it is bound to. When a process is killed,
   * the kernel frees the newest objects first, and SoftRoCE's queue pairs wait for their
   * windows. */
  if (status == RDT_OK && endpoint->domain->windows)
    status = rdt_verbs_window_open(endpoint->domain, &endpoint->inbound.window);
  if (status == RDT_OK)
    status = rdt_verbs_domain_receives(endpoint->domain, RDT_VERBS_RECEIVES, true);
  if (status != RDT_OK) return status;
  endpoint->pledged = RDT_VERBS_RECEIVES;
  return describe(endpoint, offer);
}

rdt_status rdt_verbs_endpoint_create(rdt_domain *domain, rdt_endpoint **endpoint_out,
                                     rdt_bundle *offer) {
  offer->fds.count = 0;
  if (atomic_load(&domain->dead))
    return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s failed and was not opened again", domain->text);
  rdt_endpoint *endpoint = calloc(1, sizeof(*endpoint));
  if (!endpoint) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  endpoint->domain = domain;
  rdt_status status = create(endpoint, offer);
  if (status == RDT_OK) {
    *endpoint_out = endpoint;
    return RDT_OK;
  }
  char why[512];
  snprintf(why, sizeof(why), "%s", rdt_last_error());
  rdt_verbs_endpoint_destroy(endpoint);
  return rdt_fail(status, "%s", why);
}

static uint32_t lower(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* InfiniBand routes between subnets, which the first half of a GID names, by GID only. */
static bool needs_gid(const rdt_verbs_choice *choice, const rdt_verbs_address *remote) {
  if (choice->use_grh || !choice->gid) return choice->use_grh;
  return memcmp(choice->gid->raw, remote->gid, 8) != 0;
}

static struct ibv_ah_attr path_to(const rdt_domain *domain, const rdt_verbs_address *remote) {
  const rdt_verbs_choice *choice = &domain->choice;
  struct ibv_ah_attr path = {.dlid = (uint16_t)remote->lid,
                             .sl = (uint8_t)rdt_config_number(RDT_CONFIG_SERVICE_LEVEL),
                             .port_num = choice->port->number};
  if (!needs_gid(choice, remote)) return path;
  path.is_global = 1;
  path.grh.hop_limit = HOP_LIMIT;
  path.grh.traffic_class = (uint8_t)rdt_config_number(RDT_CONFIG_TRAFFIC_CLASS);
  path.grh.sgid_index = (uint8_t)choice->gid->index;
  memcpy(path.grh.dgid.raw, remote->gid, sizeof(remote->gid));
  return path;
}

static rdt_status set_ready_to_receive(rdt_endpoint *endpoint, uint32_t index) {
  const rdt_verbs_address *remote = &endpoint->remote;
  const rdt_verbs_port *port = endpoint->domain->choice.port;
  endpoint->mtu = lower(port->active_mtu, remote->mtu);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = (enum ibv_mtu)endpoint->mtu,
                             .dest_qp_num = remote->queues[index].qpn,
                             .rq_psn = remote->queues[index].psn,
                             .max_dest_rd_atomic = (uint8_t)lower(port->limits.max_qp_rd_atom, 255),
                             .min_rnr_timer = RNR_TIMER,
                             .ah_attr = path_to(endpoint->domain, remote)};
  return rdt_verbs_modify_qp(endpoint->queues[index].qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/* The device gives up after `tries` time-outs of 4.096 us * 2^exponent. */
typedef struct {
  uint8_t exponent;
  uint8_t tries;
} rdt_patience;

/* Waits as long as half the deadline allows: a silent peer is probed every third of the deadline, and so found
 * in time. A longer time-out is worth two tries: on a slow network, packets that wait longer than it are sent
 * again, and lengthen the queue. */
static rdt_patience patience(void) {
  uint64_t limit_ns = rdt_config_number(RDT_CONFIG_DEADLINE_MS) * 500000;
  uint8_t exponent = 8; /* 1 ms */
  while (exponent < 22 && FEWEST_TRIES * (4096ull << (exponent + 1)) <= limit_ns) exponent++;
  uint64_t tries = limit_ns / (4096ull << exponent);
  if (tries < FEWEST_TRIES) tries = FEWEST_TRIES;
  if (tries > RETRIES + 1) tries = RETRIES + 1;
  return (rdt_patience){exponent, (uint8_t)tries};
}

static rdt_status set_ready_to_send(rdt_endpoint *endpoint, rdt_verbs_queue *queue) {
  uint32_t reads = lower(endpoint->domain->choice.port->limits.max_qp_init_rd_atom,
                         lower(endpoint->remote.reads, 255));
  rdt_patience limits = patience();
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                             .sq_psn = queue->psn,
                             .timeout = limits.exponent,
                             .retry_cnt = (uint8_t)(limits.tries - 1),
                             .rnr_retry = RETRIES,
                             .max_rd_atomic = (uint8_t)reads};
  return rdt_verbs_modify_qp(queue->qp, &attr,
                             IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static bool is_ipv4(const uint8_t *gid) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  return memcmp(gid, mapped, sizeof(mapped)) == 0;
}

/* Checks whether packets with our kind of address could reach the peer's. */
static rdt_status check_fabric(const rdt_endpoint *endpoint, const char *peer) {
  const rdt_verbs_choice *choice = &endpoint->domain->choice;
  const rdt_verbs_address *remote = &endpoint->remote;
  const char *names[] = {"InfiniBand", "Ethernet"};
  bool ethernet = choice->port->link_layer == IBV_LINK_LAYER_ETHERNET;
  if (remote->link_layer != choice->port->link_layer)
    return rdt_fail(RDT_ERR_NO_TRANSPORT,
                    "%s is an %s port and %s uses an %s port: choose ports of one fabric with "
                    "%sDEVICE",
                    endpoint->domain->text, names[ethernet], peer, names[!ethernet],
                    RDT_ENV_PREFIX);
  if (ethernet &&
      (remote->gid_type != choice->gid->type || is_ipv4(remote->gid) != is_ipv4(choice->gid->raw)))
    return rdt_fail(RDT_ERR_NO_TRANSPORT,
                    "this end uses %s and %s an address of another kind (%s): choose alike with "
                    "%sGID_INDEX",
                    endpoint->domain->text, peer,
                    rdt_verbs_gid_type_text((rdt_verbs_gid_type)remote->gid_type), RDT_ENV_PREFIX);
  return RDT_OK;
}

/* Waits for the bind of the ring's window. Nobody else polls the endpoint yet; what an impatient peer has sent
 * already is looked at later. */
static rdt_status await_bind(rdt_endpoint *endpoint) {
  rdt_events none = {0};
  int64_t limit = (int64_t)rdt_config_number(RDT_CONFIG_DEADLINE_MS);
  int64_t end = rdt_now_ms() + limit;
  while (rdt_verbs_outstanding(&endpoint->queues[0]) > 0) {
    if (rdt_verbs_poll(endpoint, 0, &none) < 0) return RDT_ERR_CONNECTION_LOST;
    if (rdt_now_ms() > end)
      return rdt_fail(RDT_ERR_DEADLINE, "%s did not bind a memory window within %lld ms",
                      endpoint->domain->text, (long long)limit);
    sched_yield();
  }
  return RDT_OK;
}

rdt_status rdt_verbs_endpoint_connect(rdt_endpoint *endpoint, const char *peer, rdt_bundle *offer) {
  snprintf(endpoint->peer, sizeof(endpoint->peer), "%s", peer);
  rdt_status status = rdt_verbs_address_decode(offer, &endpoint->remote);
  if (status == RDT_OK) status = check_fabric(endpoint, peer);
  if (status != RDT_OK) return status;
  /* Queue pairs without a partner at the peer stay in their first state and are never used. */
  endpoint->queue_count = lower(endpoint->queue_count, endpoint->remote.queue_count);
  status = create_outbound(endpoint);
  for (uint32_t i = 0; i < endpoint->queue_count && status == RDT_OK; i++) {
    status = set_ready_to_receive(endpoint, i);
    if (status == RDT_OK) status = set_ready_to_send(endpoint, &endpoint->queues[i]);
  }
  if (status != RDT_OK || !endpoint->inbound.window.mw) return status;
  /* The peer knows the key, but sends nothing before we say that we are ready. */
  rdt_verbs_bind_ring(endpoint);
  return await_bind(endpoint);
}

uint64_t rdt_verbs_max_notify(const rdt_endpoint *endpoint) {
  return rdt_records_max_payload(&endpoint->mirror);
}

rdt_atomics rdt_verbs_atomics(const rdt_endpoint *endpoint) {
  enum ibv_atomic_cap own = endpoint->domain->choice.port->limits.atomics;
  if (own == IBV_ATOMIC_NONE || endpoint->remote.atomics == IBV_ATOMIC_NONE)
    return RDT_ATOMICS_NONE;
  return own == IBV_ATOMIC_GLOB ? RDT_ATOMICS_CPU : RDT_ATOMICS_DEVICE;
}

void rdt_verbs_endpoint_stop(rdt_endpoint *endpoint) {
  if (endpoint->stopped) return;
  endpoint->stopped = true;
  for (uint32_t i = 0; i < RDT_VERBS_MAX_QUEUES; i++) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (endpoint->queues[i].qp && rdt_verbs_modify_qp(endpoint->queues[i].qp, &attr, IBV_QP_STATE))
      rdt_log(RDT_LOG_DEBUG, "verbs: %s", rdt_last_error());
  }
}

bool rdt_verbs_endpoint_idle(const rdt_endpoint *endpoint) {
  if (!endpoint->stopped && atomic_load(&endpoint->stalled)) return false;
  for (uint32_t i = 0; i < endpoint->queue_count; i++)
    if (rdt_verbs_outstanding(&endpoint->queues[i]) > 0) return false;
  return true;
}

/* Some devices drop the completions of a queue pair with it, so those are taken before. Until SoftRoCE's is
 * destroyed, it may execute the packet that it met its error with again and again, with a receive each time. */
static void destroy_queues(rdt_endpoint *endpoint) {
  if (endpoint->pledged) rdt_verbs_return_receives(endpoint);
  rdt_verbs_endpoint_close_windows(endpoint);
  for (uint32_t i = 0; i < RDT_VERBS_MAX_QUEUES; i++) {
    struct ibv_qp *qp = endpoint->queues[i].qp;
    endpoint->queues[i].qp = NULL;
    if (qp && rdt_verbs_destroy_qp(qp) != RDT_OK)
      rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
  }
  if (endpoint->pledged) rdt_verbs_return_receives(endpoint);
}

/* A destroyed queue pair touches no memory any more. */
void rdt_verbs_endpoint_sever(rdt_endpoint *endpoint) { destroy_queues(endpoint); }

void rdt_verbs_endpoint_abort(rdt_endpoint *endpoint, const rdt_events *events) {
  for (uint32_t i = 0; i < endpoint->queue_count; i++) {
    rdt_verbs_queue *queue = &endpoint->queues[i];
    rdt_verbs_complete_until(endpoint, queue, atomic_load(&queue->posted), RDT_ERR_CONNECTION_LOST,
                             events);
  }
}

void rdt_verbs_endpoint_destroy(rdt_endpoint *endpoint) {
  if (endpoint->flushed > 0)
    rdt_log(RDT_LOG_DEBUG, "verbs: %llu more operations to %s failed with the first",
            (unsigned long long)endpoint->flushed, endpoint->peer);
  rdt_verbs_endpoint_stop(endpoint); /* the endpoint may never have become a channel's */
  destroy_queues(endpoint);
  if (endpoint->cq && rdt_verbs_destroy_cq(endpoint->cq) != RDT_OK)
    rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
  if (endpoint->events) rdt_verbs_destroy_comp_channel(endpoint->events);
  destroy_block(&endpoint->inbound);
  destroy_block(&endpoint->outbound);
  if (endpoint->pledged) rdt_verbs_domain_unpledge(endpoint->domain, endpoint->pledged);
  for (uint32_t i = 0; i < RDT_VERBS_MAX_QUEUES; i++) free(endpoint->queues[i].pieces);
  free(endpoint);
}
