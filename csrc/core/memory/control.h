/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_CORE_MEMORY_CONTROL_H
#define RDT_CORE_MEMORY_CONTROL_H

#include "core/objects.h"

/* A request to a peer: FIND by `key`, or by `name` if that is not empty, or ALLOC with `size`
 * and `access`. */
typedef struct rdt_region_request {
  rdt_message_type type;
  uint64_t key;
  const char *name;
  uint64_t size;
  uint32_t access;
} rdt_region_request;

/* Sends the request and waits for the answer: the region's description and what this end may do, which are
 * untrusted, and the bundle to import it with. The caller owns the bundle's descriptors. */
rdt_status rdt_control_ask(rdt_channel *channel, const rdt_region_request *request, int timeout_ms,
                           rdt_region_info *info, rdt_region_atomics *atomics, rdt_bundle *bundle);
/* Reads one message and, while the channel is up, answers it. Progress thread only. Returns
 * RDT_IN_PROGRESS if there is none, and RDT_ERR_CANCELLED at the peer's goodbye. At the end of
 * the stream, and only then, it sets channel->peer_gone and returns RDT_ERR_CONNECTION_LOST.
 * After any other failure the peer may still be there and read what we lent it. */
rdt_status rdt_control_receive(rdt_channel *channel);
/* Tells the peer that a region which it allocated for us is used no more, and frees this struct, of which it uses
 * `info.key` and `next`. Never waits; any thread. */
void rdt_control_give_back(rdt_channel *channel, rdt_remote_region *region);
/* Does the same for a region that the peer allocated but that could not be opened. */
void rdt_control_give_back_key(rdt_channel *channel, uint64_t key);
/* Sends what the socket did not take before. Progress thread only. */
void rdt_control_flush(rdt_channel *channel);
void rdt_control_say_goodbye(rdt_channel *channel);
/* Ends every wait for an answer. Progress thread only. */
void rdt_control_fail_calls(rdt_channel *channel, rdt_status why);

#endif
