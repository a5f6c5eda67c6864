/* SPDX-License-Identifier: Apache-2.0
 *
 * The faults that the setting FAULTS injects, as in "seed=7,post=0.01,delay=0.1:5ms,break=#40".
 * "rate=1.25G,latency=20us" emulates a link, by sleeping.
 * Each kind of fault has a probability, or #n for the n-th occasion only, and "transport=shm" limits all
 * to one transport. Whether the n-th
 * occasion has a fault depends only on the seed, the kind and n, so a run that repeats another
 * meets the same faults.
 */
#ifndef RDT_BASE_FAULTS_H
#define RDT_BASE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor.h"

/* KIND(name, word, default duration in milliseconds, or 0 for kinds without a duration) */
#define RDT_FAULT_TABLE(KIND)                                                               \
  KIND(POST, "post", 0)          /* a write or read is refused: memory cannot be pinned */  \
  KIND(FAIL, "fail", 0)          /* one completes with an error, which ends the channel */  \
  KIND(DELAY, "delay", 5)        /* one is reported later */                                \
  KIND(DROP, "drop", 0)          /* one is never reported */                                \
  KIND(CREDIT, "credit", 5)      /* nothing is taken for a while */                         \
  KIND(STALL, "stall", 5)        /* the thread that polls stands still */                   \
  KIND(BREAK, "break", 0)        /* the channel ends */                                     \
  KIND(REGISTER, "register", 0)  /* memory cannot be registered */                          \
  KIND(MAP, "map", 0)            /* a peer's region cannot be reached */                    \
  KIND(UNMAPPED, "unmapped", 0)  /* with 1, no region is used in place: devices copy */     \
  KIND(CONNECT, "connect", 0)    /* an endpoint cannot be connected */                      \
  KIND(HANG, "hang", 1000)       /* connecting it takes that long */                        \
  KIND(DESTROY, "destroy", 1000) /* destroying it takes that long */                        \
  KIND(CORRUPT_WRITE, "corrupt_write", 0)   /* a bit of what is written turns over */       \
  KIND(CORRUPT_READ, "corrupt_read", 0)     /* of what was read */                          \
  KIND(CORRUPT_NOTIFY, "corrupt_notify", 0) /* of a notification's payload */               \
  KIND(REFUSE, "refuse", 0)         /* verbs: the device refuses a list of work requests */ \
  KIND(DUPLICATE, "duplicate", 0)   /* verbs: the device reports a work request twice */    \
  KIND(CALL_DELAY, "call_delay", 5) /* TensorFlow: a message of a call is sent later */     \
  KIND(CALL_BREAK, "call_break", 0) /* its channel ends before it */                        \
  KIND(CALL_DUPLICATE, "call_duplicate", 0) /* it is sent twice */

typedef enum rdt_fault_kind {
#define RDT_FAULT_ENUM(name, word, lasts) RDT_FAULT_##name,
  RDT_FAULT_TABLE(RDT_FAULT_ENUM)
#undef RDT_FAULT_ENUM
      RDT_FAULT_KINDS
} rdt_fault_kind;

/* Applies the setting's new text at once to the whole process, and restarts the counts. Returns
 * RDT_ERR_INVALID and changes nothing if the text is malformed. Not thread-safe. */
rdt_status rdt_faults_set(const char *text);
/* Reports whether any faults are configured. A device that opens then wraps its transports. */
bool rdt_faults_wanted(void);
/* Reports whether this occasion has a fault. A fault is counted, and logged at DEBUG with
 * `whom`. */
bool rdt_fault_happens(rdt_fault_kind kind, const char *whom);
/* Reports whether the faults are for this transport too, as "transport=NAME" says. */
bool rdt_faults_concern(const char *transport);
/* Reports whether faults of this kind are configured. */
bool rdt_fault_possible(rdt_fault_kind kind);
/* Reports whether "rate=" or "latency=" emulates a link of this process. */
bool rdt_link_emulated(void);
/* Returns how long so many bytes take, and what an empty link takes besides. */
double rdt_link_us(uint64_t bytes);
int64_t rdt_link_latency_us(void);
/* Returns how long a fault of this kind lasts. */
int64_t rdt_fault_us(rdt_fault_kind kind);

#endif
