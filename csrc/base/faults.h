/* SPDX-License-Identifier: Apache-2.0
 *
 * Which faults the setting FAULTS asks for, and when: "seed=7,post=0.01,delay=0.1:5ms,break=#40". A kind of
 * fault is asked for with a probability, or as #n for the n-th time only. Whether the n-th occasion of a kind
 * has its fault depends on the seed, the kind and n alone, so a run that does the same again meets the
 * same faults.
 */
#ifndef RDT_BASE_FAULTS_H
#define RDT_BASE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* KIND(name, word, milliseconds that it lasts unless given, or 0 for kinds that do not last) */
#define RDT_FAULT_TABLE(KIND)                                                             \
  KIND(POST, "post", 0)         /* a write or read is refused: memory cannot be pinned */ \
  KIND(FAIL, "fail", 0)         /* one completes with an error, which ends the channel */ \
  KIND(DELAY, "delay", 5)       /* one is reported later */                               \
  KIND(DROP, "drop", 0)         /* one is never reported */                               \
  KIND(CREDIT, "credit", 5)     /* nothing is taken for a while */                        \
  KIND(STALL, "stall", 5)       /* the thread that polls stands still */                  \
  KIND(BREAK, "break", 0)       /* the channel ends */                                    \
  KIND(REGISTER, "register", 0) /* memory cannot be registered */                         \
  KIND(MAP, "map", 0)           /* a peer's region cannot be reached */                   \
  KIND(UNMAPPED, "unmapped", 0) /* with 1, no region is used in place: devices copy */    \
  KIND(CONNECT, "connect", 0)   /* an endpoint cannot be connected */                     \
  KIND(HANG, "hang", 1000)      /* connecting it takes that long */                       \
  KIND(CORRUPT_WRITE, "corrupt_write", 0)   /* a bit of what is written turns over */     \
  KIND(CORRUPT_READ, "corrupt_read", 0)     /* of what was read */                        \
  KIND(CORRUPT_NOTIFY, "corrupt_notify", 0) /* of a notification's payload */             \
  KIND(REFUSE, "refuse", 0)       /* verbs: the device refuses a list of work requests */ \
  KIND(DUPLICATE, "duplicate", 0) /* verbs: the device reports a work request twice */

typedef enum rdt_fault_kind {
#define RDT_FAULT_ENUM(name, word, lasts) RDT_FAULT_##name,
  RDT_FAULT_TABLE(RDT_FAULT_ENUM)
#undef RDT_FAULT_ENUM
      RDT_FAULT_KINDS
} rdt_fault_kind;

/* Puts the setting's new text in force, at once and for the whole process; counting begins anew. RDT_ERR_RANGE
 * with what is wrong with it: then nothing changes. Not from two threads at a time. */
rdt_status rdt_faults_set(const char *text);
/* Are there any? Devices that are opened then have their transports wrapped. */
bool rdt_faults_wanted(void);
/* Does this occasion have its fault? Counted, and logged at DEBUG as having happened to `whom`. */
bool rdt_fault_happens(rdt_fault_kind kind, const char *whom);
/* Are there faults of this kind? */
bool rdt_fault_possible(rdt_fault_kind kind);
/* How long those of this kind last. */
int64_t rdt_fault_us(rdt_fault_kind kind);

#endif
