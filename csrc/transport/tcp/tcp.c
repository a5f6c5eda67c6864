/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/tcp.h"

#include "transport/tcp/io_threads.h"
#include "transport/tcp/objects.h"

static rdt_status open_domain(rdt_domain **domain) {
  rdt_status status = rdt_tcp_domain_open(domain);
  if (status == RDT_OK) (*domain)->io_thread_limit = rdt_tcp_io_threads_useful();
  return status;
}

static void close_domain(rdt_domain *domain) {
  rdt_tcp_io_threads_stop(domain);
  rdt_tcp_domain_close(domain);
}

/* Whoever reached the bootstrap port reaches it again. */
static bool rdt_tcp_usable(const char *own_host, const char *peer_host, char *why, size_t size) {
  (void)own_host, (void)peer_host, (void)why, (void)size;
  return true;
}

static const char *rdt_tcp_domain_text(const rdt_domain *domain) {
  (void)domain;
  return "any network, over the bootstrap port";
}

static void *rdt_tcp_region_address(const rdt_mapping *mapping) {
  (void)mapping;
  return NULL;
}

const rdt_transport rdt_transport_tcp = {
    .name = "tcp",
    .memory_kinds = RDT_MEMORY_HOST | RDT_MEMORY_CUDA,
    .encrypts = true,
    .capabilities = RDT_CAP_UNREGISTERED_SRC,
    .domain_open = open_domain,
    .domain_close = close_domain,
    .domain_text = rdt_tcp_domain_text,
    .usable = rdt_tcp_usable,
    .endpoint_create = rdt_tcp_endpoint_create,
    .endpoint_connect = rdt_tcp_endpoint_connect,
    .data_connection_count = rdt_tcp_socket_count,
    .data_connection_add = rdt_tcp_socket_add,
    .endpoint_stop = rdt_tcp_endpoint_stop,
    .endpoint_idle = rdt_tcp_endpoint_idle,
    .endpoint_abort = rdt_tcp_endpoint_abort,
    .endpoint_destroy = rdt_tcp_endpoint_destroy,
    .max_notify = rdt_tcp_max_notify,
    .write = rdt_tcp_write,
    .read = rdt_tcp_read,
    .atomic = rdt_tcp_atomic,
    .notify = rdt_tcp_notify,
    .doorbell = rdt_tcp_doorbell,
    .wants_doorbell = rdt_tcp_wants_doorbell,
    .delivering = rdt_tcp_delivering,
    .probe = rdt_tcp_probe,
    .poll = rdt_tcp_poll,
    .arm = rdt_tcp_arm,
    .disarm = rdt_tcp_disarm,
    .event_fd = rdt_tcp_event_fd,
    .silence = rdt_tcp_silence,
    .region_register = rdt_tcp_region_register,
    .region_deregister = rdt_tcp_region_deregister,
    .region_grant = rdt_tcp_region_grant,
    .region_export = rdt_tcp_region_export,
    .region_import = rdt_tcp_region_import,
    .region_release = rdt_tcp_region_release,
    .region_address = rdt_tcp_region_address,
};
