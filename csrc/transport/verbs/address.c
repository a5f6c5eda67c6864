/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/address.h"

#include <infiniband/verbs.h>
#include <string.h>

#include "base/status.h"
#include "base/wire.h"
#include "transport/records.h"
#include "transport/verbs/ports.h"

#define MAX_24_BITS 0xffffffu /* queue pair numbers and packet sequence numbers */

rdt_status rdt_verbs_address_encode(const rdt_verbs_address *address, rdt_bundle *bundle) {
  rdt_wire wire;
  rdt_wire_begin(&wire, 0, 0);
  rdt_wire_put_u32(&wire, address->link_layer);
  rdt_wire_put_u32(&wire, address->mtu);
  rdt_wire_put_u32(&wire, address->lid);
  rdt_wire_put_u32(&wire, address->gid_type);
  rdt_wire_put_bytes(&wire, address->gid, sizeof(address->gid));
  rdt_wire_put_u32(&wire, address->reads);
  rdt_wire_put_u32(&wire, address->atomics);
  rdt_wire_put_u32(&wire, address->notifies);
  rdt_wire_put_u64(&wire, address->ring);
  rdt_wire_put_u64(&wire, address->ring_capacity);
  rdt_wire_put_u64(&wire, address->credit);
  rdt_wire_put_u32(&wire, address->rkey);
  rdt_wire_put_u32(&wire, address->queue_count);
  for (uint32_t i = 0; i < address->queue_count; i++) {
    rdt_wire_put_u32(&wire, address->queues[i].qpn);
    rdt_wire_put_u32(&wire, address->queues[i].psn);
  }
  return rdt_wire_unload(&wire, bundle->bytes, sizeof(bundle->bytes), &bundle->size);
}

static bool plausible(const rdt_verbs_address *address) {
  bool good = address->mtu >= IBV_MTU_256 && address->mtu <= IBV_MTU_4096 && address->lid <= 0xffff;
  good &= address->link_layer == IBV_LINK_LAYER_INFINIBAND ||
          address->link_layer == IBV_LINK_LAYER_ETHERNET;
  good &= address->gid_type <= RDT_VERBS_GID_UNKNOWN;
  /* If the peer serves no reads, ours would wait for ever. */
  good &= address->reads > 0;
  good &= address->atomics <= IBV_ATOMIC_GLOB;
  good &= address->notifies > 0 && address->notifies <= 1u << 20;
  good &= rdt_records_valid_capacity(address->ring_capacity);
  for (uint32_t i = 0; i < address->queue_count && i < RDT_VERBS_MAX_QUEUES; i++)
    good &= address->queues[i].qpn <= MAX_24_BITS && address->queues[i].psn <= MAX_24_BITS;
  return good;
}

rdt_status rdt_verbs_address_decode(const rdt_bundle *bundle, rdt_verbs_address *address) {
  rdt_wire wire;
  memset(address, 0, sizeof(*address));
  rdt_wire_load(&wire, bundle->bytes, bundle->size);
  address->link_layer = rdt_wire_get_u32(&wire);
  address->mtu = rdt_wire_get_u32(&wire);
  address->lid = rdt_wire_get_u32(&wire);
  address->gid_type = rdt_wire_get_u32(&wire);
  if (rdt_wire_get_bytes(&wire, address->gid, sizeof(address->gid)) != sizeof(address->gid))
    wire.bad = true;
  address->reads = rdt_wire_get_u32(&wire);
  address->atomics = rdt_wire_get_u32(&wire);
  address->notifies = rdt_wire_get_u32(&wire);
  address->ring = rdt_wire_get_u64(&wire);
  address->ring_capacity = rdt_wire_get_u64(&wire);
  address->credit = rdt_wire_get_u64(&wire);
  address->rkey = rdt_wire_get_u32(&wire);
  address->queue_count = rdt_wire_get_u32(&wire);
  if (address->queue_count == 0 || address->queue_count > RDT_VERBS_MAX_QUEUES) wire.bad = true;
  for (uint32_t i = 0; i < address->queue_count && !wire.bad; i++) {
    address->queues[i].qpn = rdt_wire_get_u32(&wire);
    address->queues[i].psn = rdt_wire_get_u32(&wire);
  }
  rdt_status status = rdt_wire_close(&wire);
  if (status == RDT_OK && !plausible(address))
    status = rdt_fail(RDT_ERR_PROTOCOL, "the peer's verbs address has impossible values");
  return status;
}

rdt_status rdt_verbs_region_encode(uint64_t address, const rdt_verbs_keys *keys,
                                   rdt_bundle *bundle) {
  rdt_wire wire;
  rdt_wire_begin(&wire, 0, 0);
  rdt_wire_put_u64(&wire, address);
  for (uint32_t i = 0; i < keys->count; i++) rdt_wire_put_u32(&wire, keys->rkeys[i]);
  return rdt_wire_unload(&wire, bundle->bytes, sizeof(bundle->bytes), &bundle->size);
}

rdt_status rdt_verbs_region_decode(const rdt_bundle *bundle, uint64_t *address,
                                   rdt_verbs_keys *keys) {
  rdt_wire wire;
  rdt_wire_load(&wire, bundle->bytes, bundle->size);
  *address = rdt_wire_get_u64(&wire);
  keys->count = 0;
  do keys->rkeys[keys->count++] = rdt_wire_get_u32(&wire);
  while (!wire.bad && wire.at < wire.size && keys->count < RDT_VERBS_MAX_QUEUES);
  return rdt_wire_close(&wire);
}
