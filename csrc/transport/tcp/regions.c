/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/tcp/regions.h"

#include <sched.h>
#include <stdlib.h>

#include "base/cuda.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"

#define FIRST_SLOTS 64u

rdt_status rdt_tcp_domain_open(rdt_domain **domain_out) {
  rdt_domain *domain = calloc(1, sizeof(*domain));
  if (!domain) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  pthread_rwlock_init(&domain->lock, NULL);
  *domain_out = domain;
  return RDT_OK;
}

void rdt_tcp_domain_close(rdt_domain *domain) {
  pthread_rwlock_destroy(&domain->lock);
  free(domain->slots);
  free(domain);
}

static bool grow(rdt_domain *domain) {
  uint32_t count = domain->slot_count ? 2 * domain->slot_count : FIRST_SLOTS;
  rdt_registration **more = realloc(domain->slots, count * sizeof(*more));
  if (!more) return false;
  for (uint32_t i = domain->slot_count; i < count; i++) more[i] = NULL;
  domain->slots = more;
  domain->slot_count = count;
  return true;
}

static bool insert(rdt_domain *domain, rdt_registration *added) {
  pthread_rwlock_wrlock(&domain->lock);
  uint32_t at = domain->next_free;
  while (at < domain->slot_count && domain->slots[at]) at++;
  bool room = at < domain->slot_count || grow(domain);
  if (room) {
    domain->slots[at] = added;
    domain->next_free = at + 1;
    added->index = at;
  }
  pthread_rwlock_unlock(&domain->lock);
  return room;
}

rdt_status rdt_tcp_region_register(rdt_domain *domain, const rdt_region_memory *memory,
                                   rdt_registration **registration_out) {
  rdt_registration *added = calloc(1, sizeof(*added));
  if (!added) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  added->domain = domain;
  added->start = memory->address;
  added->size = memory->size;
  added->access = memory->access;
  added->one_peer = memory->one_peer;
  added->on_device = memory->kind == RDT_MEMORY_CUDA;
  atomic_init(&added->refs, 1);
  rdt_status status = rdt_random_id(&added->key);
  if (status == RDT_OK && !insert(domain, added))
    status = rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  if (status == RDT_OK)
    *registration_out = added;
  else
    free(added);
  return status;
}

void rdt_tcp_registration_unref(rdt_registration *registration) {
  if (registration && atomic_fetch_sub(&registration->refs, 1) == 1) free(registration);
}

void rdt_tcp_region_deregister(rdt_registration *registration) {
  rdt_domain *domain = registration->domain;
  pthread_rwlock_wrlock(&domain->lock);
  domain->slots[registration->index] = NULL;
  if (registration->index < domain->next_free) domain->next_free = registration->index;
  pthread_rwlock_unlock(&domain->lock);
  atomic_store(&registration->closed, true);
  while (atomic_load(&registration->users) > 0) sched_yield(); /* none of them blocks */
  rdt_tcp_registration_unref(registration);
}

bool rdt_tcp_region_pin(rdt_registration *registration) {
  atomic_fetch_add(&registration->users, 1);
  if (!atomic_load(&registration->closed)) return true;
  rdt_tcp_region_unpin(registration);
  return false;
}

void rdt_tcp_region_unpin(rdt_registration *registration) {
  atomic_fetch_sub(&registration->users, 1);
}

rdt_registration *rdt_tcp_region_fetch(rdt_registration *registration, uint64_t offset,
                                       uint32_t size) {
  rdt_registration *copy = malloc(sizeof(*copy) + size);
  if (!copy || !rdt_tcp_region_pin(registration)) {
    free(copy);
    return NULL;
  }
  *copy = (rdt_registration){.start = (uint8_t *)(copy + 1), .size = size, .refs = 1};
  rdt_status status = rdt_cuda_copy_for_peer(copy->start, registration->start + offset, size);
  rdt_tcp_region_unpin(registration);
  if (status == RDT_OK) return copy;
  rdt_log(RDT_LOG_ERROR, "a peer's read of a region failed: %s", rdt_last_error());
  free(copy);
  return NULL;
}

bool rdt_tcp_region_store(uint8_t *to, const uint8_t *from, uint32_t size) {
  if (rdt_cuda_copy_for_peer(to, from, size) == RDT_OK) return true;
  rdt_log(RDT_LOG_ERROR, "a peer's write into a region failed: %s", rdt_last_error());
  return false;
}

static bool permits(const rdt_registration *registration, const rdt_tcp_reach *wanted) {
  return registration->key == wanted->key &&
         (registration->access & wanted->access) == wanted->access &&
         wanted->offset <= registration->size &&
         wanted->size <= registration->size - wanted->offset &&
         (!registration->one_peer || atomic_load(&registration->grantee) == wanted->endpoint);
}

rdt_registration *rdt_tcp_region_find(rdt_domain *domain, const rdt_tcp_reach *wanted) {
  rdt_registration *found = NULL;
  pthread_rwlock_rdlock(&domain->lock);
  if (wanted->index < domain->slot_count) found = domain->slots[wanted->index];
  if (found && !permits(found, wanted)) found = NULL;
  if (found) atomic_fetch_add(&found->refs, 1);
  pthread_rwlock_unlock(&domain->lock);
  return found;
}

rdt_status rdt_tcp_region_export(rdt_registration *registration, rdt_bundle *bundle) {
  rdt_wire wire;
  if (registration->one_peer && atomic_load(&registration->grantee) == 0)
    return rdt_fail(RDT_ERR_ACCESS, "the region was granted to no peer");
  rdt_wire_begin(&wire, 0, 0);
  rdt_wire_put_u32(&wire, registration->index);
  rdt_wire_put_u64(&wire, registration->key);
  bundle->fds.count = 0;
  return rdt_wire_unload(&wire, bundle->bytes, sizeof(bundle->bytes), &bundle->size);
}

rdt_status rdt_tcp_region_import(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                 rdt_mapping **mapping_out) {
  rdt_wire wire;
  (void)claimed;
  rdt_wire_load(&wire, bundle->bytes, bundle->size);
  uint32_t index = rdt_wire_get_u32(&wire);
  uint64_t key = rdt_wire_get_u64(&wire);
  rdt_status status = rdt_wire_close(&wire);
  if (status != RDT_OK) return status;
  rdt_mapping *mapping = malloc(sizeof(*mapping));
  if (!mapping) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *mapping = (rdt_mapping){key, index};
  *mapping_out = mapping;
  return RDT_OK;
}

void rdt_tcp_region_release(rdt_mapping *mapping) { free(mapping); }
