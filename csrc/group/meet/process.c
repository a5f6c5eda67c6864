/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads memory of another process of this host that is in no region through the kernel
 * (process_vm_readv). That is one copy, where staging takes two. The system may forbid it (ptrace
 * scope, containers), so members try it when they meet.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/status.h"
#include "group/meet/meet.h"

#define MOST (1u << 30) /* bytes of one call, of which the system takes at most 2 GB */

pid_t rdt_group_process_of(const rdt_channel *channel) {
  struct ucred peer = {0};
  socklen_t size = sizeof(peer);
  if (!channel->transport->local) return 0;
  return getsockopt(channel->control.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

rdt_status rdt_group_process_read(pid_t process, uint64_t address, void *to, uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    uint64_t left = size - done;
    struct iovec own = {(char *)to + done, left < MOST ? left : MOST};
    struct iovec theirs = {(void *)(uintptr_t)(address + done), own.iov_len};
    ssize_t read = process_vm_readv(process, &own, 1, &theirs, 1, 0);
    if (read <= 0) {
      char reason[128];
      return rdt_fail(RDT_ERR_CONNECTION_LOST, "memory of process %d cannot be read: %s",
                      (int)process,
                      read < 0 ? strerror_r(errno, reason, sizeof(reason)) : "nothing came");
    }
    done += (uint64_t)read;
  }
  return RDT_OK;
}
