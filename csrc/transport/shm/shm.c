/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/copy.h"
#include "base/memory.h"
#include "base/status.h"
#include "transport/atomic.h"
#include "transport/shm/device_memory.h"
#include "transport/shm/lent.h"
#include "transport/shm/ring.h"

struct rdt_endpoint {
  rdt_shm_ring receive, send;   /* in our memory; in the peer's */
  void *receive_map, *send_map; /* NULL until there */
  size_t receive_bytes, send_bytes;
  int own_event, peer_event; /* eventfds: written by the peer, by us */
};

struct rdt_registration {
  rdt_shm_shared *shared; /* of a device; then the rest is 0 */
  rdt_shm_lent *lent;     /* NULL for memory whose pages can be shared */
  int fd;                 /* the memory block's */
  uint64_t offset;
  uint32_t access;
};

struct rdt_mapping {
  rdt_shm_opened *device; /* then the rest is 0, as with the next */
  rdt_shm_borrowed *borrowed;
  char *base; /* the page of the memfd with the region's first byte */
  size_t length;
  uint64_t offset; /* of that byte in it */
};

/* Every Linux has shared memory, and it needs no state of its own. */
static rdt_status shm_domain_open(rdt_domain **domain) {
  *domain = NULL;
  return RDT_OK;
}

static void shm_domain_close(rdt_domain *domain) { (void)domain; }

static bool shm_usable(const char *own_host, const char *peer_host, char *why, size_t size) {
  if (strcmp(own_host, peer_host) == 0) return true;
  size_t boot = strcspn(own_host, "/"); /* before the network namespace */
  bool same = strcspn(peer_host, "/") == boot && memcmp(own_host, peer_host, boot) == 0;
  snprintf(why, size, "%s",
           same
               ? "the peer is in another network namespace of this host: share it (--network host, "
                 "one pod)"
               : "the peer is on another host");
  return false;
}

static void unmap(void *map, size_t bytes) {
  if (map) munmap(map, bytes);
}

static void close_fd(int fd) {
  if (fd >= 0) close(fd);
}

static void shm_endpoint_destroy(rdt_endpoint *endpoint) {
  unmap(endpoint->receive_map, endpoint->receive_bytes);
  unmap(endpoint->send_map, endpoint->send_bytes);
  close_fd(endpoint->own_event);
  close_fd(endpoint->peer_event);
  free(endpoint);
}

static rdt_status create_receive_ring(rdt_endpoint *endpoint, rdt_bundle *offer) {
  uint64_t capacity = rdt_records_configured_capacity();
  int memory;
  endpoint->receive_bytes = RDT_SHM_RING_DATA_OFFSET + capacity;
  rdt_status status = rdt_memory_create(endpoint->receive_bytes, &memory, &endpoint->receive_map);
  if (status != RDT_OK) return status;
  rdt_shm_ring_init(&endpoint->receive, endpoint->receive_map, capacity);
  memcpy(offer->bytes, &capacity, sizeof(capacity)); /* same host, same byte order */
  offer->size = sizeof(capacity);
  offer->fds.fd[0] = memory;
  offer->fds.count = 1;
  endpoint->own_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int lent = endpoint->own_event < 0 ? -1 : dup(endpoint->own_event);
  if (lent < 0) return rdt_fail_errno(errno, "cannot create an eventfd");
  offer->fds.fd[offer->fds.count++] = lent;
  return RDT_OK;
}

static rdt_status shm_endpoint_create(rdt_domain *domain, rdt_endpoint **endpoint_out,
                                      rdt_bundle *offer) {
  (void)domain;
  rdt_endpoint *endpoint = calloc(1, sizeof(*endpoint));
  if (!endpoint) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  endpoint->own_event = endpoint->peer_event = -1;
  offer->fds.count = 0;
  rdt_status status = create_receive_ring(endpoint, offer);
  if (status != RDT_OK) {
    rdt_fds_close(&offer->fds);
    shm_endpoint_destroy(endpoint);
    return status;
  }
  *endpoint_out = endpoint;
  return RDT_OK;
}

/* Writing to anything else might block, or have effects. */
static bool is_eventfd(int fd) {
  char path[64], kind[64];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  ssize_t length = readlink(path, kind, sizeof(kind) - 1);
  kind[length > 0 ? length : 0] = '\0';
  return strcmp(kind, "anon_inode:[eventfd]") == 0 && fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) == 0;
}

static rdt_status shm_endpoint_connect(rdt_endpoint *endpoint, const char *peer,
                                       rdt_bundle *offer) {
  (void)peer;
  uint64_t capacity = 0;
  rdt_status status = rdt_fds_check(&offer->fds);
  if (status != RDT_OK) return status;
  if (offer->size == sizeof(capacity)) memcpy(&capacity, offer->bytes, sizeof(capacity));
  if (!rdt_records_valid_capacity(capacity) || offer->fds.count != 2 ||
      !is_eventfd(offer->fds.fd[1]))
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer's shared-memory offer is malformed");
  int memory = rdt_fds_take(&offer->fds);
  endpoint->send_bytes = RDT_SHM_RING_DATA_OFFSET + capacity;
  status = rdt_memory_map(memory, 0, endpoint->send_bytes, true, &endpoint->send_map);
  close(memory);
  if (status != RDT_OK) return status;
  rdt_shm_ring_init(&endpoint->send, endpoint->send_map, capacity);
  endpoint->peer_event = rdt_fds_take(&offer->fds);
  return RDT_OK;
}

static uint64_t shm_max_notify(const rdt_endpoint *endpoint) {
  return rdt_records_max_payload(&endpoint->send.records);
}

static char *place(const rdt_mapping *mapping, const rdt_op *op) {
  return mapping->base + mapping->offset + op->remote_offset;
}

static void copy(void *to, const void *from, uint64_t size) {
  if (size == 0) return;
  if (size <= RDT_COPY_SMALL)
    memcpy(to, from, size);
  else
    rdt_copy(to, from, size, rdt_streamed_from());
}

static rdt_status shm_write(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                            rdt_request *request) {
  (void)endpoint, (void)request;
  if (mapping->device)
    return rdt_shm_device_write(mapping->device, op->remote_offset, op->local, op->size);
  copy(place(mapping, op), op->local, op->size);
  return RDT_OK;
}

static rdt_status shm_read(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                           rdt_request *request) {
  (void)endpoint, (void)request;
  if (mapping->device)
    return rdt_shm_device_read(mapping->device, op->remote_offset, op->local, op->size);
  if (mapping->borrowed)
    return rdt_shm_borrowed_read(mapping->borrowed, op->remote_offset, op->local, op->size);
  copy(op->local, place(mapping, op), op->size);
  return RDT_OK;
}

static rdt_status shm_atomic(rdt_endpoint *endpoint, rdt_mapping *mapping, rdt_op *op,
                             rdt_request *request) {
  (void)endpoint, (void)request;
  char *word = place(mapping, op);
  if (!rdt_atomic_aligned(word))
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer's description of a region is malformed");
  uint64_t old = op->kind == RDT_OP_FETCH_ADD
                     ? rdt_atomic_fetch_add(word, op->operand)
                     : rdt_atomic_compare_swap(word, op->expected, op->operand);
  memcpy(op->local, &old, sizeof(old));
  return RDT_OK;
}

static rdt_status shm_notify(rdt_endpoint *endpoint, uint64_t immediate, const void *data,
                             uint64_t size) {
  switch (rdt_shm_ring_produce(&endpoint->send, immediate, data, (uint32_t)size)) {
    case RDT_RECORDS_OK:
      return RDT_OK;
    case RDT_RECORDS_NONE:
      return RDT_NO_CREDIT;
    default:
      return rdt_fail(RDT_ERR_PROTOCOL, "the peer corrupted its notification ring");
  }
}

/* An eventfd only says "look"; a full counter says so too. */
static void wake_peer(rdt_endpoint *endpoint) {
  uint64_t one = 1;
  ssize_t ignored = write(endpoint->peer_event, &one, sizeof(one));
  (void)ignored;
}

static int shm_doorbell(rdt_endpoint *endpoint) {
  if (!rdt_shm_ring_consumer_sleeps(&endpoint->send)) return 0;
  wake_peer(endpoint);
  return 1;
}

static int shm_poll(rdt_endpoint *endpoint, int budget, const rdt_events *events) {
  int taken = 0;
  while (taken < budget) {
    uint64_t immediate;
    const void *data;
    uint32_t size;
    rdt_records_result result = rdt_shm_ring_peek(&endpoint->receive, &immediate, &data, &size);
    if (result == RDT_RECORDS_CORRUPT)
      return rdt_fail(RDT_ERR_PROTOCOL, "the peer wrote a malformed notification");
    if (result == RDT_RECORDS_NONE) break;
    events->notified(events->context, immediate, data, size);
    rdt_shm_ring_release(&endpoint->receive, size);
    taken++;
  }
  if (taken && rdt_shm_ring_give_back(&endpoint->receive)) wake_peer(endpoint);
  return taken;
}

static bool shm_arm(rdt_endpoint *endpoint, bool may_take, bool completions) {
  (void)completions;
  return !may_take || rdt_shm_ring_arm(&endpoint->receive);
}

static void shm_disarm(rdt_endpoint *endpoint) {
  uint64_t count;
  ssize_t ignored = read(endpoint->own_event, &count, sizeof(count));
  (void)ignored;
  rdt_shm_ring_disarm(&endpoint->receive);
}

static int shm_event_fd(const rdt_endpoint *endpoint) { return endpoint->own_event; }

static rdt_status shm_region_register(rdt_domain *domain, const rdt_region_memory *memory,
                                      rdt_registration **registration_out) {
  (void)domain;
  rdt_registration *registration = calloc(1, sizeof(*registration));
  if (!registration) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  registration->access = memory->access;
  rdt_status status;
  if (memory->kind == RDT_MEMORY_CUDA) {
    status = rdt_shm_device_share(memory, &registration->shared);
  } else {
    status =
        rdt_memory_find(memory->address, memory->size, &registration->fd, &registration->offset);
    if (status != RDT_OK) status = rdt_shm_lend(memory, &registration->lent);
  }
  if (status == RDT_OK)
    *registration_out = registration;
  else
    free(registration);
  return status;
}

static void shm_region_deregister(rdt_registration *registration) {
  if (registration->shared) rdt_shm_device_end(registration->shared);
  if (registration->lent) rdt_shm_lent_end(registration->lent);
  free(registration);
}

static bool shm_region_is_lent(const rdt_registration *registration) {
  return registration->lent != NULL;
}

static rdt_status shm_region_export(rdt_registration *registration, rdt_bundle *bundle) {
  int lent;
  if (registration->shared) return rdt_shm_device_export(registration->shared, bundle);
  if (registration->lent) return rdt_shm_lent_export(registration->lent, bundle);
  if (registration->access & RDT_ACCESS_WRITE) {
    lent = dup(registration->fd);
    if (lent < 0) return rdt_fail_errno(errno, "cannot share a region");
  } else {
    rdt_status status = rdt_memory_reopen_readonly(registration->fd, &lent);
    if (status != RDT_OK) return status;
  }
  memcpy(bundle->bytes, &registration->offset, sizeof(registration->offset));
  bundle->size = sizeof(registration->offset);
  bundle->fds.fd[0] = lent;
  bundle->fds.count = 1;
  return RDT_OK;
}

/* Imports what no page of this process can show. */
static rdt_status import_by_copies(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                   rdt_mapping **mapping_out) {
  rdt_mapping *mapping = calloc(1, sizeof(*mapping));
  if (!mapping) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_shm_is_device(bundle)
                          ? rdt_shm_device_open(claimed, bundle, &mapping->device)
                          : rdt_shm_borrow(bundle, &mapping->borrowed);
  if (status == RDT_OK)
    *mapping_out = mapping;
  else
    free(mapping);
  return status;
}

static rdt_status shm_region_import(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                    rdt_mapping **mapping_out) {
  uint64_t offset = 0;
  rdt_status status = rdt_fds_check(&bundle->fds);
  if (status != RDT_OK) return status;
  if (rdt_shm_is_device(bundle) || (rdt_shm_is_lent(bundle) && claimed->access == RDT_ACCESS_READ))
    return import_by_copies(claimed, bundle, mapping_out);
  if (bundle->size == sizeof(offset)) memcpy(&offset, bundle->bytes, sizeof(offset));
  int fd = bundle->size == sizeof(offset) ? rdt_fds_take(&bundle->fds) : -1;
  if (fd < 0 || offset > SIZE_MAX / 2 || claimed->size > SIZE_MAX / 2) {
    close_fd(fd);
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer's description of a region is malformed");
  }
  rdt_mapping *mapping = calloc(1, sizeof(*mapping));
  status = mapping ? RDT_OK : rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  if (mapping) {
    /* Maps no more than the region, because a peer's open memory is counted by its regions'
     * sizes. */
    mapping->offset = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    mapping->length = mapping->offset + claimed->size;
    status = rdt_memory_map(fd, offset - mapping->offset, mapping->length,
                            (claimed->access & RDT_ACCESS_WRITE) != 0, (void **)&mapping->base);
  }
  close(fd);
  if (status == RDT_OK)
    *mapping_out = mapping;
  else
    free(mapping);
  return status;
}

static void shm_region_release(rdt_mapping *mapping) {
  if (mapping->device)
    rdt_shm_device_close(mapping->device);
  else if (mapping->borrowed)
    rdt_shm_give_back(mapping->borrowed);
  else
    munmap(mapping->base, mapping->length);
  free(mapping);
}

static void *shm_region_address(const rdt_mapping *mapping) {
  return mapping->base ? mapping->base + mapping->offset : NULL;
}

static uint32_t shm_region_local_kinds(const rdt_mapping *mapping) {
  return mapping->device ? RDT_MEMORY_HOST | RDT_MEMORY_CUDA : RDT_MEMORY_HOST;
}

const rdt_transport rdt_transport_shm = {
    .name = "shm",
    .memory_kinds = RDT_MEMORY_HOST | RDT_MEMORY_CUDA,
    .capabilities = RDT_CAP_MAP | RDT_CAP_UNREGISTERED_SRC,
    .synchronous = true,
    .local = true,
    .encrypts = true, /* in a sense: no wire sees its bytes */
    .domain_open = shm_domain_open,
    .domain_close = shm_domain_close,
    .usable = shm_usable,
    .endpoint_create = shm_endpoint_create,
    .endpoint_connect = shm_endpoint_connect,
    .endpoint_destroy = shm_endpoint_destroy,
    .max_notify = shm_max_notify,
    .write = shm_write,
    .read = shm_read,
    .atomic = shm_atomic,
    .notify = shm_notify,
    .doorbell = shm_doorbell,
    .poll = shm_poll,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .event_fd = shm_event_fd,
    .region_register = shm_region_register,
    .region_deregister = shm_region_deregister,
    .region_is_lent = shm_region_is_lent,
    .region_export = shm_region_export,
    .region_import = shm_region_import,
    .region_release = shm_region_release,
    .region_address = shm_region_address,
    .region_local_kinds = shm_region_local_kinds,
};
