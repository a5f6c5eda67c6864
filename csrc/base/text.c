/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t item_length(const char *at, char separator) {
  const char *end = strchr(at, separator);
  return end ? (size_t)(end - at) : strlen(at);
}

bool rdt_text_lists(const char *list, char separator, const char *word) {
  size_t wanted = strlen(word);
  for (const char *at = list; *at;) {
    size_t length = item_length(at, separator);
    if (length == wanted && memcmp(at, word, length) == 0) return true;
    at += length;
    at += *at == separator;
  }
  return false;
}

bool rdt_text_next(const char **at, char *item, size_t size) {
  size_t length = item_length(*at, ',');
  if (!**at) return false;
  snprintf(item, size, "%.*s", (int)length, *at);
  *at += length;
  *at += **at == ',';
  return true;
}

void rdt_text_append(char *text, size_t size, const char *format, ...) {
  size_t used = strlen(text);
  va_list args;
  va_start(args, format);
  vsnprintf(text + used, size - used, format, args);
  va_end(args);
}

/* Reads a port and moves *at behind it; 0 if there is none. */
static uint16_t read_port(const char **at) {
  char *end;
  if (!isdigit((unsigned char)**at)) return 0;
  unsigned long port = strtoul(*at, &end, 10);
  *at = end;
  return port <= UINT16_MAX ? (uint16_t)port : 0;
}

bool rdt_text_ports(const char *text, uint16_t *first, uint16_t *last) {
  const char *at = text;
  *first = *last = 0;
  if (strcmp(text, "") == 0 || strcmp(text, "0") == 0) return true;
  *first = *last = read_port(&at);
  if (*at == '-') {
    at++;
    *last = read_port(&at);
  }
  return !*at && *first > 0 && *first <= *last;
}

void rdt_text_clean(char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (iscntrl((unsigned char)text[i])) text[i] = '?';
}
