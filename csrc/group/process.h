/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads memory of another process of this host that is in no region through the kernel
 * (process_vm_readv). That is one copy, where staging takes two. The system may forbid it (ptrace
 * scope, containers), so members try it when they meet.
 */
#ifndef RDT_GROUP_PROCESS_H
#define RDT_GROUP_PROCESS_H

#include <sys/types.h>

#include "core/objects.h"

/* Returns the process at the other end of a channel of a local transport; 0 if it is unknown. */
pid_t rdt_group_process_of(const rdt_channel *channel);
/* Copies [address, address + size) of the process to `to`. Returns RDT_ERR_CONNECTION_LOST with
 * the cause. */
rdt_status rdt_group_process_read(pid_t process, uint64_t address, void *to, uint64_t size);

#endif
