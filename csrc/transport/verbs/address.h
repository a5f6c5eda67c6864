/* SPDX-License-Identifier: Apache-2.0
 *
 * What two endpoints exchange before they are connected, and its wire format.
 */
#ifndef RDT_TRANSPORT_VERBS_ADDRESS_H
#define RDT_TRANSPORT_VERBS_ADDRESS_H

#include "transport/transport.h"

#define RDT_VERBS_MAX_QUEUES 8u

typedef struct rdt_verbs_address {
  uint32_t link_layer; /* IBV_LINK_LAYER_... */
  uint32_t mtu;        /* enum ibv_mtu */
  uint32_t lid;
  uint32_t gid_type; /* rdt_verbs_gid_type */
  uint8_t gid[16];
  uint32_t reads;                       /* reads and atomics that this end serves at a time */
  uint32_t atomics;                     /* enum ibv_atomic_cap of its device */
  uint32_t notifies;                    /* receives that it keeps posted for notifications */
  uint64_t ring, ring_capacity, credit; /* addresses in its block */
  uint32_t rkey;                        /* of the block */
  uint32_t queue_count;
  struct {
    uint32_t qpn, psn;
  } queues[RDT_VERBS_MAX_QUEUES];
} rdt_verbs_address;

/* Returns RDT_ERR_RANGE if the address does not fit, which never happens. */
rdt_status rdt_verbs_address_encode(const rdt_verbs_address *address, rdt_bundle *bundle);
/* Returns RDT_ERR_PROTOCOL unless the bundle is an address with possible values. */
rdt_status rdt_verbs_address_decode(const rdt_bundle *bundle, rdt_verbs_address *address);

/* The keys to a region: one that is valid for all queue pairs, or one for each. */
typedef struct rdt_verbs_keys {
  uint32_t count, rkeys[RDT_VERBS_MAX_QUEUES];
} rdt_verbs_keys;

/* Encodes where a region lies, for the peer's import. */
rdt_status rdt_verbs_region_encode(uint64_t address, const rdt_verbs_keys *keys,
                                   rdt_bundle *bundle);
/* Returns RDT_ERR_PROTOCOL unless there is at least one key, and not too many. */
rdt_status rdt_verbs_region_decode(const rdt_bundle *bundle, uint64_t *address,
                                   rdt_verbs_keys *keys);

#endif
