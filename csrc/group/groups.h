/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions through which a device's channels reach its groups. All groups between two devices
 * share a channel (RDT_PURPOSE_GROUPS). client.c registers the functions.
 */
#ifndef RDT_GROUP_GROUPS_H
#define RDT_GROUP_GROUPS_H

#include "core/client.h"

typedef struct rdt_groups rdt_groups;

static inline rdt_groups *rdt_groups_of(const rdt_device *device) {
  return rdt_client_state(device, RDT_PURPOSE_GROUPS);
}

/* arrivals.c: see core/client.h for the threads that call these. */
void rdt_groups_connected(rdt_channel *channel);
void rdt_groups_down(rdt_channel *channel);
void rdt_groups_released(rdt_channel *channel);
void rdt_groups_take(rdt_channel *channel, uint64_t type, const void *data, size_t size);
/* drivers.c: drives what the progress thread drives, and looks after deadlines. Returns the number of operations
 * that moved. */
int rdt_groups_progress(rdt_device *device);

#endif
