/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/verbs.h"

#include "transport/verbs/objects.h"
#include "transport/verbs/registration.h"

/* Connecting them shows whether two ports share a fabric. */
static bool verbs_usable(const char *own_host, const char *peer_host, char *why, size_t size) {
  (void)own_host, (void)peer_host, (void)why, (void)size;
  return true;
}

static const char *verbs_domain_text(const rdt_domain *domain) { return domain->text; }

static void *verbs_region_address(const rdt_mapping *mapping) {
  (void)mapping;
  return NULL;
}

const rdt_transport rdt_transport_verbs = {
    .name = "verbs",
    .domain_open = verbs_domain_open,
    .domain_close = verbs_domain_close,
    .domain_text = verbs_domain_text,
    .domain_event_fd = verbs_domain_event_fd,
    .domain_events = verbs_domain_events,
    .usable = verbs_usable,
    .endpoint_create = verbs_endpoint_create,
    .endpoint_connect = verbs_endpoint_connect,
    .endpoint_stop = verbs_endpoint_stop,
    .endpoint_idle = verbs_endpoint_idle,
    .endpoint_abort = verbs_endpoint_abort,
    .endpoint_destroy = verbs_endpoint_destroy,
    .max_notify = verbs_max_notify,
    .write = verbs_write,
    .read = verbs_read,
    .notify = verbs_notify,
    .doorbell = verbs_doorbell,
    .wants_doorbell = verbs_wants_doorbell,
    .delivering = verbs_delivering,
    .probe = verbs_probe,
    .poll = verbs_poll,
    .arm = verbs_arm,
    .disarm = verbs_disarm,
    .event_fd = verbs_event_fd,
    .registrable = verbs_registrable,
    .region_register = verbs_region_register,
    .region_deregister = verbs_region_deregister,
    .region_grant = verbs_region_grant,
    .region_export = verbs_region_export,
    .region_import = verbs_region_import,
    .region_release = verbs_region_release,
    .region_address = verbs_region_address,
};
