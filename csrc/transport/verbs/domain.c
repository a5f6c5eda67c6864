/* SPDX-License-Identifier: Apache-2.0
 *
 * An opened port: everything that the endpoints of one device share.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/faults.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/verbs/faults.h"
#include "transport/verbs/objects.h"

#define RECEIVES_AT_ONCE 64u /* posted with one doorbell */

static void explain(void *context, const char *line) {
  (void)context;
  rdt_log(RDT_LOG_DEBUG, "verbs: %s", line);
}

static rdt_status choose_port(rdt_domain *domain) {
  char device[RDT_CONFIG_TEXT_SIZE], gid[RDT_CONFIG_TEXT_SIZE];
  rdt_config_text(RDT_CONFIG_DEVICE, device, sizeof(device));
  rdt_config_text(RDT_CONFIG_GID_INDEX, gid, sizeof(gid));
  rdt_status status = rdt_verbs_ports_scan(&domain->ports, &domain->port_count);
  if (status == RDT_OK)
    status = rdt_verbs_ports_choose(domain->ports, domain->port_count, device, gid, explain, NULL,
                                    &domain->choice);
  if (status != RDT_OK) return status;
  rdt_verbs_choice_text(&domain->choice, domain->text, sizeof(domain->text));
  return rdt_verbs_windows_choose(domain);
}

/* Receives carry no memory. Payloads are written into the endpoint's ring, and a receive only
 * says that one arrived. */
static rdt_status create_receives(rdt_domain *domain) {
  const rdt_verbs_limits *limits = &domain->choice.port->limits;
  uint64_t wanted = rdt_config_number(RDT_CONFIG_CONNECTIONS) * RDT_VERBS_RECEIVES;
  if (wanted > limits->max_srq_wr) wanted = limits->max_srq_wr;
  struct ibv_srq_init_attr attr = {.attr = {.max_wr = (uint32_t)wanted, .max_sge = 1}};
  domain->max_receives = (uint32_t)wanted;
  return rdt_verbs_create_srq(domain->pd, &attr, &domain->srq);
}

rdt_status rdt_verbs_domain_receives(rdt_domain *domain, uint32_t count, bool pledge) {
  if (pledge) {
    pthread_mutex_lock(&domain->lock);
    bool room = domain->receives + count <= domain->max_receives;
    if (room) domain->receives += count;
    pthread_mutex_unlock(&domain->lock);
    if (!room)
      return rdt_fail(RDT_ERR_LIMIT,
                      "%s has %u receives, of which a connection needs %u: raise %sCONNECTIONS if "
                      "the device has more, or close connections",
                      domain->text, domain->max_receives, count, RDT_ENV_PREFIX);
  }
  while (count > 0) {
    struct ibv_recv_wr receives[RECEIVES_AT_ONCE], *bad;
    uint32_t some = count < RECEIVES_AT_ONCE ? count : RECEIVES_AT_ONCE;
    for (uint32_t i = 0; i < some; i++)
      receives[i] = (struct ibv_recv_wr){.wr_id = RDT_VERBS_RECEIVE_ID,
                                         .next = i + 1 < some ? &receives[i + 1] : NULL};
    rdt_status status =
        rdt_verbs_result(ibv_post_srq_recv(domain->srq, receives, &bad), "post a receive");
    /* The queue is full of receives that ended endpoints left behind. They exceed what is
     * pledged, and serve as well. */
    if (status == RDT_ERR_NO_MEMORY) return RDT_OK;
    if (status != RDT_OK) return status;
    count -= some;
  }
  return RDT_OK;
}

/* The receives stay in the queue for any endpoint. */
void rdt_verbs_domain_unpledge(rdt_domain *domain, uint32_t count) {
  pthread_mutex_lock(&domain->lock);
  domain->receives -= count;
  pthread_mutex_unlock(&domain->lock);
}

static rdt_status open_device(rdt_domain *domain) {
  rdt_status status = choose_port(domain);
  if (status == RDT_OK)
    status = rdt_verbs_open_device(domain->choice.port->device, &domain->context);
  if (status != RDT_OK) return status;
  if (rdt_faults_wanted()) rdt_verbs_faults_install(domain->context);
  status = rdt_verbs_alloc_pd(domain->context, &domain->pd);
  if (status == RDT_OK) status = create_receives(domain);
  if (status == RDT_OK) status = rdt_verbs_slots_create(domain);
  return status;
}

rdt_status rdt_verbs_domain_open(rdt_domain **domain_out) {
  rdt_domain *domain = calloc(1, sizeof(*domain));
  if (!domain) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  pthread_mutex_init(&domain->lock, NULL);
  pthread_mutex_init(&domain->windows_lock, NULL);
  pthread_cond_init(&domain->windows_ended, NULL);
  pthread_rwlock_init(&domain->registrations_lock, NULL);
  rdt_status status = open_device(domain);
  if (status != RDT_OK) {
    char why[512];
    snprintf(why, sizeof(why), "%s", rdt_last_error());
    rdt_verbs_domain_close(domain);
    return rdt_fail(status, "%s", why);
  }
  rdt_log(RDT_LOG_DEBUG, "verbs: using %s", domain->text);
  *domain_out = domain;
  return RDT_OK;
}

/* Nothing can be done if a device refuses to release an object, but the log should say so. */
static void complain(rdt_status status) {
  if (status != RDT_OK) rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
}

void rdt_verbs_domain_close(rdt_domain *domain) {
  rdt_verbs_slots_destroy(domain);
  if (domain->srq) complain(rdt_verbs_destroy_srq(domain->srq));
  if (domain->pd) complain(rdt_verbs_dealloc_pd(domain->pd));
  if (domain->context) complain(rdt_verbs_close_device(domain->context));
  rdt_verbs_ports_free(domain->ports, domain->port_count);
  pthread_rwlock_destroy(&domain->registrations_lock);
  pthread_cond_destroy(&domain->windows_ended);
  pthread_mutex_destroy(&domain->windows_lock);
  pthread_mutex_destroy(&domain->lock);
  free(domain);
}

int rdt_verbs_domain_event_fd(const rdt_domain *domain) { return domain->context->async_fd; }

static void mark_broken(void *endpoint) {
  if (endpoint) atomic_store(&((rdt_endpoint *)endpoint)->broken, true);
}

/* Returns RDT_OK if the domain still works. The event keeps its object alive until it is
 * acknowledged. */
static rdt_status handle_event(rdt_domain *domain, const struct ibv_async_event *event) {
  const char *what = rdt_verbs_event_text(event->event_type);
  switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
      atomic_store(&domain->dead, true);
      return rdt_fail(RDT_ERR_CONNECTION_LOST, "%s: %s", domain->text, what);
    case IBV_EVENT_CQ_ERR:
      mark_broken(event->element.cq->cq_context);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      mark_broken(event->element.qp->qp_context);
      break;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
      /* Connections survive a short loss of link. The device reports when it was too long. */
      rdt_log(RDT_LOG_WARN, "verbs: %s: %s", domain->text, what);
      return RDT_OK;
    default:
      rdt_log(RDT_LOG_DEBUG, "verbs: %s: %s", domain->text, what);
      return RDT_OK;
  }
  rdt_log(RDT_LOG_DEBUG, "verbs: %s: %s", domain->text, what);
  return RDT_OK;
}

rdt_status rdt_verbs_domain_events(rdt_domain *domain) {
  rdt_status result = RDT_OK;
  for (;;) {
    struct ibv_async_event event;
    rdt_status status = rdt_verbs_get_async_event(domain->context, &event);
    if (status == RDT_IN_PROGRESS) return result;
    if (status != RDT_OK) return status;
    status = handle_event(domain, &event);
    rdt_verbs_ack_async_event(&event);
    if (status != RDT_OK) result = status;
  }
}
