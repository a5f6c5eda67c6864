/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of another process of this host that lies in no region, read through the kernel
 * (process_vm_readv): one copy, where staging takes two. The system may forbid it (ptrace scope, containers),
 * so members try it when they meet.
 */
#ifndef RDT_GROUP_PROCESS_H
#define RDT_GROUP_PROCESS_H

#include <sys/types.h>

#include "core/objects.h"

/* The process at the other end of a channel of a local transport; 0 if that is not known. */
pid_t rdt_process_of(const rdt_channel *channel);
/* Copies [address, address + size) of the process to `to`. RDT_ERR_CONNECTION_LOST with the cause. */
rdt_status rdt_process_read(pid_t process, uint64_t address, void *to, uint64_t size);

#endif
