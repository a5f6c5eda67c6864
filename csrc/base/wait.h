/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for a descriptor, until a deadline or until the calling thread's device is closed.
 */
#ifndef RDT_BASE_WAIT_H
#define RDT_BASE_WAIT_H

#include "base/clock.h"
#include "rdmatensor.h"

/* From now on every rdt_wait_ready of the calling thread ends with RDT_ERR_CLOSED as soon as `fd` is readable.
 * -1 ends none. */
void rdt_wait_interrupt_by(int fd);
/* Waits until `fd` is ready for `events` (those of poll); a negative one never is. RDT_ERR_DEADLINE says that the
 * peer did not answer in time, and names `what` was waited for. */
rdt_status rdt_wait_ready(int fd, short events, rdt_deadline deadline, const char *what);

#endif
