/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/lent.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"

#define LEASE_BYTES 4096u
#define REMEDY "use memory of rdmatensor (empty, allocate), or connect over another transport"

typedef struct lease {
  atomic_uint open;
} lease;

/* What the bundle's bytes are. */
typedef struct description {
  uint64_t address, lent; /* the second is LENT; the description of shared pages is shorter */
} description;
#define LENT 1u

struct rdt_shm_lent {
  uint64_t address;
  lease *lease;
  int lease_fd;
};

struct rdt_shm_borrowed {
  uint64_t address;
  const lease *lease;
  int process; /* a pidfd: while it is not readable, `pid` is that process's */
  pid_t pid;
};

rdt_status rdt_shm_lend(const rdt_region_memory *memory, rdt_shm_lent **lent_out) {
  if (memory->access & RDT_ACCESS_WRITE || memory->one_peer)
    return rdt_fail(
        RDT_ERR_UNSUPPORTED,
        "the %llu bytes at %p cannot be shared with other processes for writing, because "
        "rdmatensor did not allocate them: register them with access READ, or " REMEDY,
        (unsigned long long)memory->size, memory->address);
  rdt_shm_lent *lent = calloc(1, sizeof(*lent));
  if (!lent) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  rdt_status status = rdt_memory_create(LEASE_BYTES, &lent->lease_fd, (void **)&lent->lease);
  if (status != RDT_OK) {
    free(lent);
    return status;
  }
  lent->address = (uintptr_t)memory->address;
  atomic_store(&lent->lease->open, 1);
  *lent_out = lent;
  return RDT_OK;
}

void rdt_shm_lent_end(rdt_shm_lent *lent) {
  atomic_store(&lent->lease->open, 0);
  munmap(lent->lease, LEASE_BYTES);
  close(lent->lease_fd);
  free(lent);
}

rdt_status rdt_shm_lent_export(const rdt_shm_lent *lent, rdt_bundle *bundle) {
  const description bytes = {.address = lent->address, .lent = LENT};
  int page;
  rdt_status status = rdt_memory_reopen_readonly(lent->lease_fd, &page);
  if (status != RDT_OK) return status;
  int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  if (self < 0) {
    status =
        rdt_fail(RDT_ERR_UNSUPPORTED,
                 "the region's memory cannot be shared, and nobody can read it, because pidfd_open "
                 "failed (%s): " REMEDY,
                 strerror(errno));
    close(page);
    return status;
  }
  memcpy(bundle->bytes, &bytes, sizeof(bytes));
  bundle->size = sizeof(bytes);
  bundle->fds.fd[0] = page;
  bundle->fds.fd[1] = self;
  bundle->fds.count = 2;
  return RDT_OK;
}

bool rdt_shm_is_lent(const rdt_bundle *bundle) { return bundle->size == sizeof(description); }

/* Returns the number of the process in this PID namespace, or 0: it has none, or `pidfd` is none. */
static pid_t process_of(int pidfd) {
  char path[64], line[256];
  int pid = 0;
  snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof(line), file))
    if (sscanf(line, "Pid: %d", &pid) == 1) break;
  if (file) fclose(file);
  return pid > 0 ? pid : 0;
}

static rdt_status explain(int error) {
  switch (error) {
    case EPERM:
      return rdt_fail(
          RDT_ERR_UNSUPPORTED,
          "the kernel does not let this process read memory of the peer's that cannot be "
          "shared (process_vm_readv): " REMEDY
          ", or permit it (kernel.yama.ptrace_scope=0, CAP_SYS_PTRACE)");
    case ENOSYS:
      return rdt_fail(RDT_ERR_UNSUPPORTED,
                      "this system cannot read memory of the peer's that cannot be shared "
                      "(process_vm_readv): " REMEDY);
    case EFAULT:
      return rdt_fail(RDT_ERR_NO_REGION, "the peer has unmapped the region's memory");
    case ESRCH:
      return rdt_fail(RDT_ERR_CONNECTION_LOST, "the peer's process has ended");
    default:
      return rdt_fail_errno(error, "cannot read the peer's memory");
  }
}

static rdt_status read_all(const rdt_shm_borrowed *borrowed, uint64_t from, char *to,
                           uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    struct iovec here = {to + done, size - done};
    struct iovec there = {(void *)(uintptr_t)(from + done), size - done};
    ssize_t got = process_vm_readv(borrowed->pid, &here, 1, &there, 1, 0);
    if (got <= 0) return explain(got < 0 ? errno : EFAULT);
    done += (uint64_t)got;
  }
  return RDT_OK;
}

static bool lives(const rdt_shm_borrowed *borrowed) {
  struct pollfd look = {.fd = borrowed->process, .events = POLLIN};
  return poll(&look, 1, 0) == 0;
}

rdt_status rdt_shm_borrowed_read(const rdt_shm_borrowed *borrowed, uint64_t offset, void *to,
                                 uint64_t size) {
  rdt_status status = read_all(borrowed, borrowed->address + offset, to, size);
  /* Until here the bytes may be of a process that got the number, or of what came after the region. */
  if (!lives(borrowed)) return explain(ESRCH);
  atomic_thread_fence(memory_order_seq_cst);
  if (!atomic_load(&((lease *)borrowed->lease)->open))
    return rdt_fail(RDT_ERR_NO_REGION, "the peer has closed the region");
  return status;
}

static rdt_status open_process(rdt_shm_borrowed *borrowed) {
  char byte;
  borrowed->pid = process_of(borrowed->process);
  if (borrowed->pid) return rdt_shm_borrowed_read(borrowed, 0, &byte, 1);
  return rdt_fail(RDT_ERR_UNSUPPORTED,
                  "the region lies in memory that cannot be shared, of a process in another PID "
                  "namespace: " REMEDY);
}

rdt_status rdt_shm_borrow(rdt_bundle *bundle, rdt_shm_borrowed **borrowed_out) {
  description bytes;
  memcpy(&bytes, bundle->bytes, sizeof(bytes));
  if (bytes.lent != LENT || bundle->fds.count != 2)
    return rdt_fail(RDT_ERR_PROTOCOL, "the peer's description of a region is malformed");
  rdt_shm_borrowed *borrowed = calloc(1, sizeof(*borrowed));
  if (!borrowed) return rdt_fail(RDT_ERR_NO_MEMORY, "no memory left");
  borrowed->address = bytes.address;
  int page = rdt_fds_take(&bundle->fds);
  borrowed->process = rdt_fds_take(&bundle->fds);
  rdt_status status = rdt_memory_map(page, 0, LEASE_BYTES, false, (void **)&borrowed->lease);
  close(page);
  if (status == RDT_OK) status = open_process(borrowed);
  if (status == RDT_OK)
    *borrowed_out = borrowed;
  else
    rdt_shm_give_back(borrowed);
  return status;
}

void rdt_shm_give_back(rdt_shm_borrowed *borrowed) {
  if (borrowed->lease) munmap((void *)borrowed->lease, LEASE_BYTES);
  close(borrowed->process);
  free(borrowed);
}
