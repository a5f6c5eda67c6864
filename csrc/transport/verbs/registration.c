/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs/registration.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/status.h"
#include "transport/verbs/library.h"
#include "transport/verbs/pretouch.h"

#define REMEDY                                                                                   \
  "raise it: ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1; " \
  "Kubernetes: the capability IPC_LOCK"

/* Reads the number after `label` in the text of /proc/self/status; 0 if there is none. */
static uint64_t status_field(const char *text, const char *label, int base) {
  const char *line = strstr(text, label);
  /* A label may also occur inside another line, such as the one with the process's name. */
  while (line && line != text && line[-1] != '\n') line = strstr(line + 1, label);
  return line ? strtoull(line + strlen(label), NULL, base) : 0;
}

void rdt_verbs_memlock_parse(const char *status_text, rdt_verbs_memlock *memlock) {
  memlock->pinned = status_field(status_text, "VmPin:", 10) * 1024;
  memlock->exempt = (status_field(status_text, "CapEff:", 16) >> CAP_IPC_LOCK & 1) != 0;
}

uint64_t rdt_verbs_pinned_bytes(uint64_t address, uint64_t size, uint64_t page) {
  uint64_t first = address & ~(page - 1), last = (address + size + page - 1) & ~(page - 1);
  return last - first;
}

static void size_text(uint64_t bytes, char text[32]) {
  if (bytes < 10 << 20)
    snprintf(text, 32, "%llu KiB", (unsigned long long)(bytes + 1023) / 1024);
  else
    snprintf(text, 32, "%llu MiB", (unsigned long long)(bytes + (1 << 20) - 1) >> 20);
}

rdt_status rdt_verbs_memlock_check(const rdt_verbs_memlock *memlock, uint64_t needed) {
  char need[32], have[32], limit[32];
  if (memlock->exempt || memlock->limit == RDT_VERBS_NO_LIMIT) return RDT_OK;
  if (memlock->pinned <= memlock->limit && needed <= memlock->limit - memlock->pinned)
    return RDT_OK;
  size_text(needed, need);
  size_text(memlock->pinned, have);
  size_text(memlock->limit, limit);
  return rdt_fail(RDT_ERR_LIMIT,
                  "cannot pin %s of memory: %s are pinned already and this process may pin %s "
                  "(RLIMIT_MEMLOCK); " REMEDY,
                  need, have, limit);
}

/* Reads the lines of /proc/self/status that rdt_verbs_memlock_parse needs. Others can have any
 * length. */
static void read_status(char *text, size_t size) {
  char line[128];
  size_t used = 0;
  FILE *file = fopen("/proc/self/status", "re");
  text[0] = '\0';
  while (file && fgets(line, sizeof(line), file))
    if ((strncmp(line, "VmPin:", 6) == 0 || strncmp(line, "CapEff:", 7) == 0) &&
        used + strlen(line) < size)
      used += (size_t)snprintf(text + used, size - used, "%s", line);
  if (file) fclose(file);
}

/* Reads what the kernel compares. It counts pages pinned for devices (VmPin) apart from pages
 * locked by mlock (VmLck), and applies the limit to each alone. */
static void read_memlock(rdt_verbs_memlock *memlock) {
  struct rlimit limit;
  char text[256];
  read_status(text, sizeof(text));
  rdt_verbs_memlock_parse(text, memlock);
  memlock->limit = RDT_VERBS_NO_LIMIT;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    memlock->limit = limit.rlim_cur;
}

rdt_status rdt_verbs_check_memlock(uint64_t size) {
  rdt_verbs_memlock memlock;
  read_memlock(&memlock);
  return rdt_verbs_memlock_check(&memlock, size);
}

uint64_t rdt_verbs_registrable(void) {
  rdt_verbs_memlock memlock;
  read_memlock(&memlock);
  if (memlock.exempt || memlock.limit == RDT_VERBS_NO_LIMIT) return UINT64_MAX;
  return memlock.pinned < memlock.limit ? memlock.limit - memlock.pinned : 0;
}

int rdt_verbs_remote_access(uint32_t access) {
  int bits = 0;
  if (access & RDT_ACCESS_READ) bits |= IBV_ACCESS_REMOTE_READ;
  if (access & RDT_ACCESS_WRITE) bits |= IBV_ACCESS_REMOTE_WRITE;
  if (access & RDT_VERBS_ACCESS_ATOMIC) bits |= IBV_ACCESS_REMOTE_ATOMIC;
  return bits;
}

static int device_access(uint32_t access, rdt_verbs_local_use use) {
  int bits = use == RDT_VERBS_LOCAL_TARGET ? IBV_ACCESS_LOCAL_WRITE : 0;
  return bits | (access == RDT_VERBS_ACCESS_WINDOWS ? IBV_ACCESS_MW_BIND
                                                    : rdt_verbs_remote_access(access));
}

/* ENOMEM has three causes, of which only the limit can be identified. It applies even with the
 * capability inside a user namespace. */
static rdt_status explain_no_memory(uint64_t size, uint64_t pinned, const char *device) {
  rdt_verbs_memlock memlock;
  read_memlock(&memlock);
  memlock.exempt = false;
  rdt_status status = rdt_verbs_memlock_check(&memlock, pinned);
  if (status != RDT_OK) return status;
  return rdt_fail(RDT_ERR_NO_MEMORY,
                  "cannot register %llu bytes with %s: the machine has not enough free memory, or "
                  "the device no room for another registration",
                  (unsigned long long)size, device);
}

static rdt_status explain(int error, void *address, uint64_t size, uint64_t pinned,
                          const char *device) {
  unsigned long long bytes = size;
  switch (error) {
    case ENOMEM:
      return explain_no_memory(size, pinned, device);
    case EFAULT:
      return rdt_fail(RDT_ERR_INVALID,
                      "cannot register the %llu bytes at %p with %s: they are not all mapped, are "
                      "read-only, or are a file's (only memory can be pinned)",
                      bytes, address, device);
    case EINVAL:
      return rdt_fail(RDT_ERR_INVALID,
                      "cannot register the %llu bytes at %p with %s: it does not take a range of "
                      "this size, or this access",
                      bytes, address, device);
    case EOPNOTSUPP:
      return rdt_fail(RDT_ERR_UNSUPPORTED,
                      "cannot register the %llu bytes at %p with %s: it cannot pin this kind of "
                      "memory",
                      bytes, address, device);
    case EAGAIN:
      return rdt_fail(RDT_ERR_LIMIT,
                      "cannot register %llu bytes with %s: this cgroup's rdma.max permits no more "
                      "objects of the device",
                      bytes, device);
    default:
      return rdt_fail_errno(error, "cannot register the %llu bytes at %p with %s", bytes, address,
                            device);
  }
}

rdt_status rdt_verbs_register(struct ibv_pd *pd, void *address, uint64_t size, uint32_t access,
                              rdt_verbs_local_use use, struct ibv_mr **mr_out) {
  const rdt_verbs_functions *library = rdt_verbs_library();
  if (!library) return RDT_ERR_UNSUPPORTED;
  if (!address || size == 0 || size > SIZE_MAX - (uintptr_t)address)
    return rdt_fail(RDT_ERR_INVALID, "there is no memory of %llu bytes at %p to register",
                    (unsigned long long)size, address);
  if (use == RDT_VERBS_LOCAL_SOURCE && (access & RDT_ACCESS_WRITE))
    return rdt_fail(RDT_ERR_INVALID, "a source that is only read cannot be written by peers");
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t pinned = rdt_verbs_pinned_bytes((uintptr_t)address, size, page);
  rdt_status status = rdt_verbs_check_memlock(pinned);
  if (status != RDT_OK) return status;
  rdt_verbs_pretouch(address, size, use == RDT_VERBS_LOCAL_TARGET);
  errno = 0;
  struct ibv_mr *mr = library->reg_mr(pd, address, size, device_access(access, use));
  if (!mr)
    return explain(errno, address, size, pinned, library->get_device_name(pd->context->device));
  *mr_out = mr;
  return RDT_OK;
}
