/* SPDX-License-Identifier: Apache-2.0
 *
 * The one log of the process.
 */
#ifndef RDT_BASE_LOG_H
#define RDT_BASE_LOG_H

#include <stdbool.h>

#include "rdmatensor.h"

/* Applies LOG_LEVEL and LOG_FORMAT. Before the first call, lines up to INFO are logged as text. */
void rdt_log_configure(rdt_log_level level, bool json);
/* Writes one line into the sink if `level` is enabled by LOG_LEVEL. Thread-safe. */
void rdt_log(rdt_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rdt_log_write(rdt_log_level level, const char *line);

#endif
