/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDT_BASE_LOG_H
#define RDT_BASE_LOG_H

#include "rdmatensor.h"

/* One line into the sink if `level` is enabled by LOG_LEVEL. Thread-safe. */
void rdt_log(rdt_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
