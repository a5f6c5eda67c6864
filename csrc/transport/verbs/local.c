/* SPDX-License-Identifier: Apache-2.0
 *
 * Local memory as the device sees it: regions, staging slots, and registrations for one operation.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/copy.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/verbs/objects.h"
#include "transport/verbs/registration.h"

static rdt_status registration_new(rdt_domain *domain, void *address, uint64_t size,
                                   uint32_t access, rdt_verbs_local_use use,
                                   rdt_registration **registration_out) {
  rdt_registration *registration = calloc(1, sizeof(*registration));
  if (!registration) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_verbs_register(domain->pd, address, size, access, use, &registration->mr);
  if (status != RDT_OK) {
    free(registration);
    return status;
  }
  registration->domain = domain;
  registration->start = (uintptr_t)address;
  registration->size = size;
  registration->target = use == RDT_VERBS_LOCAL_TARGET;
  atomic_init(&registration->refs, 1);
  *registration_out = registration;
  return RDT_OK;
}

void rdt_verbs_registration_ref(rdt_registration *registration) {
  atomic_fetch_add_explicit(&registration->refs, 1, memory_order_relaxed);
}

void rdt_verbs_registration_unref(rdt_registration *registration) {
  if (!registration || atomic_fetch_sub(&registration->refs, 1) != 1) return;
  if (rdt_verbs_dereg_mr(registration->mr) != RDT_OK)
    rdt_log(RDT_LOG_WARN, "verbs: %s", rdt_last_error());
  free(registration);
}

static uint32_t access_of_peers(const rdt_domain *domain, uint32_t access) {
  bool has_atomics = domain->choice.port->limits.atomics != IBV_ATOMIC_NONE;
  bool both = (access & RDT_ACCESS_READ) && (access & RDT_ACCESS_WRITE);
  return has_atomics && both ? access | RDT_VERBS_ACCESS_ATOMIC : access;
}

rdt_status rdt_verbs_region_register(rdt_domain *domain, const rdt_region_memory *memory,
                                     rdt_registration **registration_out) {
  rdt_registration *registration;
  bool windows = memory->one_peer && domain->windows;
  uint32_t peers = access_of_peers(domain, memory->access);
  uint32_t access = windows ? RDT_VERBS_ACCESS_WINDOWS : peers;
  rdt_status status = registration_new(domain, memory->address, memory->size, access,
                                       RDT_VERBS_LOCAL_TARGET, &registration);
  /* Read-only memory can still be a source, here and for peers. */
  if (status == RDT_ERR_INVALID && !(memory->access & RDT_ACCESS_WRITE))
    status = registration_new(domain, memory->address, memory->size, access, RDT_VERBS_LOCAL_SOURCE,
                              &registration);
  if (status != RDT_OK) return status;
  registration->access = peers;
  registration->one_peer = windows;
  pthread_rwlock_wrlock(&domain->registrations_lock);
  registration->next = domain->registrations;
  domain->registrations = registration;
  pthread_rwlock_unlock(&domain->registrations_lock);
  *registration_out = registration;
  return RDT_OK;
}

void rdt_verbs_region_deregister(rdt_registration *registration) {
  rdt_domain *domain = registration->domain;
  pthread_rwlock_wrlock(&domain->registrations_lock);
  rdt_registration **link = &domain->registrations;
  while (*link != registration) link = &(*link)->next;
  *link = registration->next;
  pthread_rwlock_unlock(&domain->registrations_lock);
  rdt_verbs_grant_close(registration);
  rdt_verbs_registration_unref(registration);
}

rdt_status rdt_verbs_region_export(rdt_registration *registration, rdt_bundle *bundle) {
  rdt_verbs_keys keys = {1, {registration->mr->rkey}};
  rdt_status status = registration->one_peer ? rdt_verbs_grant_keys(registration, &keys) : RDT_OK;
  return status == RDT_OK ? rdt_verbs_region_encode(registration->start, &keys, bundle) : status;
}

rdt_status rdt_verbs_region_import(const rdt_region_memory *claimed, rdt_bundle *bundle,
                                   rdt_mapping **mapping_out) {
  uint64_t address;
  rdt_verbs_keys keys;
  rdt_status status = rdt_verbs_region_decode(bundle, &address, &keys);
  if (status == RDT_OK && address > UINT64_MAX - claimed->size)
    status = rdt_fail(RDT_ERR_PROTOCOL, "the peer's description of a region is malformed");
  if (status != RDT_OK) return status;
  rdt_mapping *mapping = malloc(sizeof(*mapping));
  if (!mapping) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  *mapping = (rdt_mapping){address, keys};
  *mapping_out = mapping;
  return RDT_OK;
}

void rdt_verbs_region_release(rdt_mapping *mapping) { free(mapping); }

/* Finds the region that contains the buffer, and takes a reference for the caller. Returns NULL
 * if there is none. */
static rdt_registration *find_region(rdt_domain *domain, const void *buffer, uint64_t size,
                                     bool target) {
  uint64_t start = (uintptr_t)buffer;
  pthread_rwlock_rdlock(&domain->registrations_lock);
  rdt_registration *each = domain->registrations;
  for (; each; each = each->next)
    if (start >= each->start && start - each->start < each->size &&
        size <= each->size - (start - each->start) && (each->target || !target))
      break;
  if (each) rdt_verbs_registration_ref(each);
  pthread_rwlock_unlock(&domain->registrations_lock);
  return each;
}

rdt_status rdt_verbs_slots_create(rdt_domain *domain) {
  size_t size = (size_t)RDT_VERBS_SLOTS * RDT_VERBS_SLOT_BYTES;
  void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  domain->slot_memory = memory;
  for (uint32_t i = 0; i < RDT_VERBS_SLOTS; i++) {
    domain->slots[i].memory = (char *)memory + (size_t)i * RDT_VERBS_SLOT_BYTES;
    domain->slots[i].next = domain->free_slots;
    domain->free_slots = &domain->slots[i];
  }
  return rdt_verbs_register(domain->pd, memory, size, RDT_ACCESS_NONE, RDT_VERBS_LOCAL_TARGET,
                            &domain->slot_mr);
}

void rdt_verbs_slots_destroy(rdt_domain *domain) {
  if (domain->slot_mr) rdt_verbs_dereg_mr(domain->slot_mr);
  if (domain->slot_memory)
    munmap(domain->slot_memory, (size_t)RDT_VERBS_SLOTS * RDT_VERBS_SLOT_BYTES);
}

static rdt_verbs_slot *slot_take(rdt_domain *domain) {
  pthread_mutex_lock(&domain->lock);
  rdt_verbs_slot *slot = domain->free_slots;
  if (slot) domain->free_slots = slot->next;
  pthread_mutex_unlock(&domain->lock);
  return slot;
}

void rdt_verbs_slot_free(rdt_domain *domain, rdt_verbs_slot *slot) {
  if (!slot) return;
  pthread_mutex_lock(&domain->lock);
  slot->next = domain->free_slots;
  domain->free_slots = slot;
  pthread_mutex_unlock(&domain->lock);
}

static void use_registration(rdt_verbs_local *local, rdt_registration *registration, void *buffer) {
  *local = (rdt_verbs_local){
      .address = (uintptr_t)buffer, .lkey = registration->mr->lkey, .registration = registration};
}

rdt_status rdt_verbs_local_acquire(rdt_domain *domain, void *buffer, uint64_t size, bool target,
                                   rdt_verbs_local *local) {
  rdt_registration *registration = find_region(domain, buffer, size, target);
  if (registration) {
    use_registration(local, registration, buffer);
    return RDT_OK;
  }
  if (size <= RDT_VERBS_SLOT_BYTES) {
    rdt_verbs_slot *slot = slot_take(domain);
    if (!slot) return RDT_NO_CREDIT;
    if (!target) rdt_copy(slot->memory, buffer, size, SIZE_MAX);
    *local = (rdt_verbs_local){
        .address = (uintptr_t)slot->memory, .lkey = domain->slot_mr->lkey, .slot = slot};
    return RDT_OK;
  }
  /* Pinning a buffer for one operation costs less than copying one that is longer than a slot. */
  rdt_status status =
      registration_new(domain, buffer, size, RDT_ACCESS_NONE,
                       target ? RDT_VERBS_LOCAL_TARGET : RDT_VERBS_LOCAL_SOURCE, &registration);
  if (status == RDT_OK) use_registration(local, registration, buffer);
  return status;
}
