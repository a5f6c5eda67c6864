/* SPDX-License-Identifier: Apache-2.0 */
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/config.h"

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};

static void write_to_stderr(void *context, rdt_log_level level, const char *line) {
  (void)context;
  fprintf(stderr, "rdmatensor: %s: %s\n", level_names[level], line);
}

static rdt_log_fn log_sink = write_to_stderr;
static void *log_context;

void rdt_log_set_sink(rdt_log_fn sink, void *context) {
  log_context = context;
  log_sink = sink ? sink : write_to_stderr;
}

void rdt_log_line(rdt_log_level level, const char *line) {
  if (level >= RDT_LOG_ERROR && level <= RDT_LOG_DEBUG && level <= rdt_config_log_level())
    log_sink(log_context, level, line);
}

void rdt_log(rdt_log_level level, const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  rdt_log_line(level, line);
}
