/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_BASE_STATUS_H
#define RDT_BASE_STATUS_H

#include "rdmatensor.h"

/* Settings come from environment variables with this prefix, and error texts name them. */
#define RDT_ENV_PREFIX "RDMATENSOR_"

/* Records the formatted text as the calling thread's last error and returns `status`: the first
 * function that knows the cause calls it, callers only pass the status on. */
rdt_status rdt_fail(rdt_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* As rdt_fail(RDT_ERR_SYSTEM, ...) with ": <strerror(error)>" appended; `error` is an errno value. */
rdt_status rdt_fail_errno(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A status that a peer gave for a refusal: itself if it is an error of the table, else RDT_ERR_REFUSED. */
rdt_status rdt_status_refused(rdt_status status);

#endif
