/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic rdt_log_level least_severe = RDT_LOG_INFO;
static atomic_bool as_json;

static const char *const level_names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
static const char *const json_levels[] = {"error", "warn", "info", "debug"};
/* The prefixes that name the component a line comes from. Lines without one come from the core. */
static const char *const components[] = {"tensorflow", "plan", "verbs", "metrics"};

#define JSON_SIZE 8192
static const char json_end[] = "\"}\n";

typedef struct {
  char text[JSON_SIZE];
  size_t size;
} json_line;

/* Appends all of `text`, or nothing if no room would remain for the end of the line. */
static int put(json_line *line, const char *text, size_t size) {
  if (size > sizeof(line->text) - sizeof(json_end) - line->size) return 0;
  memcpy(line->text + line->size, text, size);
  line->size += size;
  return 1;
}

/* Returns the length of the UTF-8 character at `text`, which is zero-terminated, or 0 if it is
 * none. RFC 3629, section 4. */
static size_t utf8_size(const unsigned char *text) {
  unsigned char first = text[0], low = 0x80, high = 0xbf;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (first == 0xe0) low = 0xa0;
  if (first == 0xed) high = 0x9f;
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;
  if (text[1] < low || text[1] > high) return 0;
  for (size_t i = 2; i < size; i++)
    if ((text[i] & 0xc0) != 0x80) return 0;
  return size;
}

/* Escapes the text, because lines quote peers, who may send any bytes. RFC 8259, section 7. */
static void put_quoted(json_line *line, const char *text) {
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    size_t size = utf8_size(at);
    char escaped[8];
    int length = 0;
    if (size == 0)
      length = snprintf(escaped, sizeof(escaped), "\\ufffd");
    else if (*at == '"' || *at == '\\')
      length = snprintf(escaped, sizeof(escaped), "\\%c", *at);
    else if (*at < 0x20)
      length = snprintf(escaped, sizeof(escaped), "\\u%04x", *at);
    if (!(length ? put(line, escaped, (size_t)length) : put(line, (const char *)at, size))) return;
    at += size ? size : 1;
  }
}

/* Writes one object per line: time (UTC, RFC 3339), level, pid, component, message. */
static void write_json(rdt_log_level level, const char *text) {
  json_line line = {.size = 0};
  const char *component = "core";
  for (size_t i = 0; i < sizeof(components) / sizeof(components[0]); i++) {
    size_t size = strlen(components[i]);
    if (strncmp(text, components[i], size) != 0 || strncmp(text + size, ": ", 2) != 0) continue;
    component = components[i];
    text += size + 2;
    break;
  }
  struct timespec now;
  struct tm utc;
  char day[32], head[160];
  clock_gettime(CLOCK_REALTIME, &now);
  strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &utc));
  int length = snprintf(
      head, sizeof(head),
      "{\"time\":\"%s.%06ldZ\",\"level\":\"%s\",\"pid\":%ld,\"component\":\"%s\",\"message\":\"",
      day, now.tv_nsec / 1000, json_levels[level], (long)getpid(), component);
  put(&line, head, (size_t)length);
  put_quoted(&line, text);
  memcpy(line.text + line.size, json_end, sizeof(json_end));
  /* One call per line, so that lines of several threads and processes stay whole. */
  fputs(line.text, stderr);
}

static void write_to_stderr(void *context, rdt_log_level level, const char *line) {
  (void)context;
  if (atomic_load_explicit(&as_json, memory_order_relaxed))
    write_json(level, line);
  else
    fprintf(stderr, "rdmatensor: %s: %s\n", level_names[level], line);
}

static rdt_log_fn log_sink = write_to_stderr;
static void *log_context;

void rdt_log_set_sink(rdt_log_fn sink, void *context) {
  log_context = context;
  log_sink = sink ? sink : write_to_stderr;
}

void rdt_log_configure(rdt_log_level level, bool json) {
  atomic_store(&least_severe, level);
  atomic_store(&as_json, json);
}

void rdt_log_write(rdt_log_level level, const char *line) {
  if (level >= RDT_LOG_ERROR && level <= RDT_LOG_DEBUG &&
      level <= atomic_load_explicit(&least_severe, memory_order_relaxed))
    log_sink(log_context, level, line);
}

void rdt_log(rdt_log_level level, const char *format, ...) {
  char line[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof(line), format, args);
  va_end(args);
  rdt_log_write(level, line);
}
