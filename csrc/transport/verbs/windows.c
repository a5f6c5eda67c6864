/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory windows of type 2B. A window has an rkey that is valid for one queue pair, over a
 * registration that gives peers no access. So only the peer at the other end of that queue pair
 * reaches the memory, whatever keys others guess (InfiniBand specification, 10.6.7.2). A window's
 * key is known when the window is created (ibv_inc_rkey), valid once its bind is complete, and
 * invalid once the window is freed. A window must be freed before its queue pair is destroyed and
 * its registration ends.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/verbs/objects.h"
#include "transport/verbs/registration.h"

rdt_status rdt_verbs_windows_choose(rdt_domain *domain) {
  char wanted[8];
  rdt_config_text(RDT_CONFIG_WINDOWS, wanted, sizeof(wanted));
  domain->windows = strcmp(wanted, "off") != 0 && domain->choice.port->limits.windows;
  if (strcmp(wanted, "on") != 0 || domain->windows) return RDT_OK;
  return rdt_fail(
      RDT_ERR_UNSUPPORTED,
      "%s has no memory windows of type 2B, which %sWINDOWS=on asks for: choose another "
      "device, or auto",
      domain->text, RDT_ENV_PREFIX);
}

rdt_status rdt_verbs_window_open(rdt_domain *domain, rdt_verbs_window *window) {
  struct ibv_mw *made;
  rdt_status status = rdt_verbs_alloc_mw(domain->pd, &made);
  if (status == RDT_OK) *window = (rdt_verbs_window){made, ibv_inc_rkey(made->rkey)};
  return status;
}

void rdt_verbs_window_close(rdt_verbs_window *window) {
  if (window->mw && rdt_verbs_dealloc_mw(window->mw) != RDT_OK)
    rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
  window->mw = NULL;
}

struct ibv_send_wr rdt_verbs_window_bind(const rdt_verbs_window *window, struct ibv_mr *mr,
                                         uint32_t access) {
  return (struct ibv_send_wr){
      .opcode = IBV_WR_BIND_MW,
      .bind_mw = {.mw = window->mw,
                  .rkey = window->rkey,
                  .bind_info = {.mr = mr,
                                .addr = (uintptr_t)mr->addr,
                                .length = mr->length,
                                .mw_access_flags = (unsigned)rdt_verbs_remote_access(access)}}};
}

rdt_status rdt_verbs_grant_open(rdt_endpoint *endpoint, rdt_registration *registration) {
  rdt_domain *domain = endpoint->domain;
  rdt_verbs_grant *grant = calloc(1, sizeof(*grant));
  if (!grant) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = RDT_OK;
  while (grant->count < endpoint->queue_count && status == RDT_OK) {
    status = rdt_verbs_window_open(domain, &grant->windows[grant->count]);
    if (status == RDT_OK) grant->count++;
  }
  if (status != RDT_OK) {
    for (uint32_t i = 0; i < grant->count; i++) rdt_verbs_window_close(&grant->windows[i]);
    free(grant);
    return status;
  }
  grant->endpoint = endpoint;
  pthread_mutex_lock(&domain->windows_lock);
  grant->next = endpoint->grants;
  endpoint->grants = grant;
  registration->grant = grant;
  pthread_mutex_unlock(&domain->windows_lock);
  return RDT_OK;
}

/* Closes the windows, and takes the grant off its endpoint's list. Call it under windows_lock, which others may have
 * meanwhile: a driver may take long to free a window. */
static void end_grant(rdt_domain *domain, rdt_verbs_grant *grant) {
  rdt_verbs_grant **link = &grant->endpoint->grants;
  grant->ending = true;
  pthread_mutex_unlock(&domain->windows_lock);
  for (uint32_t i = 0; i < grant->count; i++) rdt_verbs_window_close(&grant->windows[i]);
  pthread_mutex_lock(&domain->windows_lock);
  while (*link != grant) link = &(*link)->next;
  *link = grant->next;
  grant->endpoint = NULL;
  grant->ending = false;
  pthread_cond_broadcast(&domain->windows_ended);
}

void rdt_verbs_grant_close(rdt_registration *registration) {
  rdt_domain *domain = registration->domain;
  pthread_mutex_lock(&domain->windows_lock);
  rdt_verbs_grant *grant = registration->grant;
  while (grant && grant->ending) pthread_cond_wait(&domain->windows_ended, &domain->windows_lock);
  if (grant && grant->endpoint) end_grant(domain, grant);
  registration->grant = NULL;
  pthread_mutex_unlock(&domain->windows_lock);
  free(grant);
}

rdt_status rdt_verbs_grant_keys(const rdt_registration *registration, rdt_verbs_keys *keys) {
  rdt_domain *domain = registration->domain;
  pthread_mutex_lock(&domain->windows_lock);
  const rdt_verbs_grant *grant = registration->grant;
  bool open = grant && grant->endpoint && !grant->ending;
  keys->count = open ? grant->count : 0;
  for (uint32_t i = 0; i < keys->count; i++) keys->rkeys[i] = grant->windows[i].rkey;
  pthread_mutex_unlock(&domain->windows_lock);
  return open ? RDT_OK : rdt_fail(RDT_ERR_ACCESS, "the region's peer is gone");
}

static rdt_verbs_grant *first_not_ending(rdt_verbs_grant *grants) {
  while (grants && grants->ending) grants = grants->next;
  return grants;
}

void rdt_verbs_endpoint_close_windows(rdt_endpoint *endpoint) {
  rdt_domain *domain = endpoint->domain;
  pthread_mutex_lock(&domain->windows_lock);
  while (endpoint->grants) {
    rdt_verbs_grant *grant = first_not_ending(endpoint->grants);
    if (grant)
      end_grant(domain, grant);
    else
      pthread_cond_wait(&domain->windows_ended, &domain->windows_lock);
  }
  pthread_mutex_unlock(&domain->windows_lock);
  rdt_verbs_window_close(&endpoint->inbound.window);
}
