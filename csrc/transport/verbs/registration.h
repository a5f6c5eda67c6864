/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers memory with a device. The pages are pinned: they count against RLIMIT_MEMLOCK, and
 * stay resident until rdt_verbs_dereg_mr.
 */
#ifndef RDT_TRANSPORT_VERBS_REGISTRATION_H
#define RDT_TRANSPORT_VERBS_REGISTRATION_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#include "rdmatensor.h"

/* How this process uses registered memory. */
typedef enum rdt_verbs_local_use {
  RDT_VERBS_LOCAL_SOURCE, /* the device only reads it, so it may be read-only memory; `access` must be NONE or READ */
  RDT_VERBS_LOCAL_TARGET /* the device may write into it, for us or for peers */
} rdt_verbs_local_use;

/* In place of rdt_access bits: peers reach the memory through memory windows only. */
#define RDT_VERBS_ACCESS_WINDOWS UINT32_C(0x80000000)
/* Beside them: peers may use atomic operations, which the device must have. */
#define RDT_VERBS_ACCESS_ATOMIC UINT32_C(0x40000000)

/* Converts what peers may do (rdt_access bits, RDT_VERBS_ACCESS_ATOMIC) to the device's bits. */
int rdt_verbs_remote_access(uint32_t access);

/* Registers `size` > 0 bytes at `address` for local use as `use` and for peers as `access`
 * (rdt_access bits and RDT_VERBS_ACCESS_ATOMIC, or RDT_VERBS_ACCESS_WINDOWS), and touches pages that are not there yet, from several threads: the kernel would
 * do the same, one by one. Blocks until all are there, pinned: long for gigabytes. The caller owns `mr`
 * (rdt_verbs_dereg_mr) and keeps the memory mapped as long.
 *
 * RDT_ERR_LIMIT: more than RLIMIT_MEMLOCK permits, with needed, present, limit and remedy.
 * RDT_ERR_INVALID: nothing is mapped there, or not with the access needed, or nothing to register.
 * RDT_ERR_NO_MEMORY, RDT_ERR_UNSUPPORTED, RDT_ERR_SYSTEM: as the message explains. Thread-safe. */
rdt_status rdt_verbs_register(struct ibv_pd *pd, void *address, uint64_t size, uint32_t access,
                              rdt_verbs_local_use use, struct ibv_mr **mr);

/* Checks, before memory is allocated, whether `size` more bytes could be pinned. Returns RDT_OK,
 * or RDT_ERR_LIMIT with the same message. Thread-safe. */
rdt_status rdt_verbs_check_memlock(uint64_t size);
/* Returns the bytes that the limit still permits; UINT64_MAX if there is no limit. */
uint64_t rdt_verbs_registrable(void);

/* The arithmetic, apart from the machine */

#define RDT_VERBS_NO_LIMIT UINT64_MAX

typedef struct rdt_verbs_memlock {
  uint64_t limit;  /* bytes, or RDT_VERBS_NO_LIMIT */
  uint64_t pinned; /* bytes pinned by this process already */
  bool exempt;     /* CAP_IPC_LOCK */
} rdt_verbs_memlock;

/* Reads VmPin and CapEff from the text of /proc/self/status. A missing line counts as 0. */
void rdt_verbs_memlock_parse(const char *status_text, rdt_verbs_memlock *memlock);
/* Returns the bytes of all pages of `page` bytes (a power of two) that [address, address + size)
 * touches. */
uint64_t rdt_verbs_pinned_bytes(uint64_t address, uint64_t size, uint64_t page);
/* Returns RDT_OK, or RDT_ERR_LIMIT with the bytes needed, those pinned, the limit and the
 * remedy. */
rdt_status rdt_verbs_memlock_check(const rdt_verbs_memlock *memlock, uint64_t needed);

#endif
