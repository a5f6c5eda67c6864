/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes with the text of the last error of each thread.
 */
#ifndef RDT_BASE_STATUS_H
#define RDT_BASE_STATUS_H

#include "rdmatensor.h"

/* Settings come from environment variables with this prefix, and error texts name them. */
#define RDT_ENV_PREFIX "RDMATENSOR_"
/* The names of all transports, including those that this build lacks, best first. Settings list them. */
#define RDT_TRANSPORT_NAMES "shm,verbs,tcp"

/* Records the formatted text as the calling thread's last error and returns `status`: the first
 * function that knows the cause calls it, callers only pass the status on. */
rdt_status rdt_fail(rdt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Does the same as rdt_fail(RDT_ERR_SYSTEM, ...), and appends ": <strerror(error)>". `error` is
 * an errno value. */
rdt_status rdt_fail_errno(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Checks the status of a peer's refusal. Returns it if it is an error of the table, else
 * RDT_ERR_REFUSED. Returns RDT_ERR_CONNECTION_LOST if the peer's device is closed. */
rdt_status rdt_status_refused(rdt_status status);

#endif
