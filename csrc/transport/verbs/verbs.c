/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/verbs.h"

#include "transport/verbs/objects.h"
#include "transport/verbs/registration.h"

/* Connecting them shows whether two ports share a fabric. */
static bool rdt_verbs_usable(const char *own_host, const char *peer_host, char *why, size_t size) {
  (void)own_host, (void)peer_host, (void)why, (void)size;
  return true;
}

static const char *rdt_verbs_domain_text(const rdt_domain *domain) { return domain->text; }

static void *rdt_verbs_region_address(const rdt_mapping *mapping) {
  (void)mapping;
  return NULL;
}

const rdt_transport rdt_transport_verbs = {
    .name = "verbs",
    .memory_kinds = RDT_MEMORY_HOST,
    .domain_open = rdt_verbs_domain_open,
    .domain_close = rdt_verbs_domain_close,
    .domain_text = rdt_verbs_domain_text,
    .domain_event_fd = rdt_verbs_domain_event_fd,
    .domain_events = rdt_verbs_domain_events,
    .usable = rdt_verbs_usable,
    .endpoint_create = rdt_verbs_endpoint_create,
    .endpoint_connect = rdt_verbs_endpoint_connect,
    .endpoint_stop = rdt_verbs_endpoint_stop,
    .endpoint_idle = rdt_verbs_endpoint_idle,
    .endpoint_sever = rdt_verbs_endpoint_sever,
    .endpoint_abort = rdt_verbs_endpoint_abort,
    .endpoint_destroy = rdt_verbs_endpoint_destroy,
    .max_notify = rdt_verbs_max_notify,
    .write = rdt_verbs_write,
    .read = rdt_verbs_read,
    .atomic = rdt_verbs_atomic,
    .atomics = rdt_verbs_atomics,
    .notify = rdt_verbs_notify,
    .doorbell = rdt_verbs_doorbell,
    .wants_doorbell = rdt_verbs_wants_doorbell,
    .delivering = rdt_verbs_delivering,
    .probe = rdt_verbs_probe,
    .poll = rdt_verbs_poll,
    .arm = rdt_verbs_arm,
    .disarm = rdt_verbs_disarm,
    .event_fd = rdt_verbs_event_fd,
    .registrable = rdt_verbs_registrable,
    .region_register = rdt_verbs_region_register,
    .region_deregister = rdt_verbs_region_deregister,
    .region_grant = rdt_verbs_region_grant,
    .region_export = rdt_verbs_region_export,
    .region_import = rdt_verbs_region_import,
    .region_release = rdt_verbs_region_release,
    .region_address = rdt_verbs_region_address,
};
