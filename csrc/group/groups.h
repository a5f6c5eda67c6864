/* SPDX-License-Identifier: Apache-2.0
 *
 * What the rest of the core calls of groups. A device's groups talk over channels of their own
 * (RDT_PURPOSE_GROUPS), which all groups between two devices share.
 */
#ifndef RDT_GROUP_GROUPS_H
#define RDT_GROUP_GROUPS_H

#include "core/objects.h"

rdt_groups *rdt_groups_new(rdt_device *device);
/* Members that still wait for others to join give up. */
void rdt_groups_interrupt(rdt_device *device);
/* Fails what is under way with RDT_ERR_CLOSED and waits for the threads that work on it. */
void rdt_groups_stop(rdt_device *device);
void rdt_groups_free(rdt_groups *groups);

/* From the progress thread: a channel of groups is up; is down; its peer touches nothing of ours any more. */
void rdt_groups_connected(rdt_channel *channel);
void rdt_groups_down(rdt_channel *channel);
void rdt_groups_released(rdt_channel *channel);
/* A message came; on the thread that polls the channel. */
void rdt_groups_take(rdt_channel *channel, uint64_t type, const void *data, size_t size);
/* Drives what the progress thread drives, and deadlines; the number of operations that moved. */
int rdt_groups_progress(rdt_device *device);
/* Are there deadlines that only the progress thread watches? */
bool rdt_groups_need_ticks(const rdt_device *device);

#endif
