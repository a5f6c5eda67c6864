/* SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include <ctype.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/faults.h"
#include "base/log.h"
#include "base/text.h"

extern char **environ;

typedef enum { NUMBER, CHOICE, TEXT } row_kind;

typedef struct {
  const char *name, *default_text, *choices, *doc;
  row_kind kind;
  uint64_t default_number, minimum, maximum;
} config_row;

static const config_row rows[RDT_CONFIG_COUNT] = {
#define NUMBER_ROW(name, value, low, high, doc) \
  {#name, NULL, NULL, doc, NUMBER, (value), (low), (high)},
#define CHOICE_ROW(name, value, choices, doc) {#name, value, choices, doc, CHOICE, 0, 0, 0},
#define TEXT_ROW(name, value, doc) {#name, value, NULL, doc, TEXT, 0, 0, 0},
#define CONSTANT_ROW(name, value, low, high) NUMBER_ROW(name, value, low, high, NULL)
    RDT_CONFIG_TABLE(NUMBER_ROW, CHOICE_ROW, TEXT_ROW) RDT_CONFIG_CONSTANTS(CONSTANT_ROW)};

static struct {
  char text[RDT_CONFIG_TEXT_SIZE];
  uint64_t number;
} values[RDT_CONFIG_COUNT];
static char default_texts[RDT_CONFIG_COUNT][24], ranges[RDT_CONFIG_COUNT][64];
static char environment_error[512];
static pthread_mutex_t config_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

/* "64", "64K", "64KiB", "2G": a whole number with an optional binary suffix. */
static int parse_number(const char *text, uint64_t *number) {
  static const char suffixes[] = "KMGT";
  char *end;
  if (!isdigit((unsigned char)*text)) return 0;
  unsigned long long value = strtoull(text, &end, 10);
  const char *suffix = *end ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
  int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
  if (suffix) {
    end++;
    if (strcmp(end, "iB") == 0 || strcmp(end, "B") == 0) end += strlen(end);
  }
  if (*end || (shift && value >> (64 - shift))) return 0;
  *number = (uint64_t)value << shift;
  return 1;
}

static rdt_log_level level_from(const char *text) {
  static const char initials[] = "ewid";
  return (rdt_log_level)(strchr(initials, text[0]) - initials);
}

/* The log does not read settings; this passes them on. */
static void configure_log(void) {
  const char *level = values[RDT_CONFIG_LOG_LEVEL].text,
             *format = values[RDT_CONFIG_LOG_FORMAT].text;
  if (*level) rdt_log_configure(level_from(level), strcmp(format, "json") == 0);
}

/* Checks `text` against the row and puts it in force. */
static rdt_status assign(rdt_config_id id, const char *text) {
  const config_row *row = &rows[id];
  uint64_t number = 0;
  if (strlen(text) >= RDT_CONFIG_TEXT_SIZE)
    return rdt_fail(RDT_ERR_INVALID, "%s is longer than %d characters", row->name,
                    RDT_CONFIG_TEXT_SIZE - 1);
  if (row->kind == NUMBER &&
      (!parse_number(text, &number) || number < row->minimum || number > row->maximum))
    return rdt_fail(RDT_ERR_INVALID, "%s%s is \"%s\": give a whole number in %s", RDT_ENV_PREFIX,
                    row->name, text, ranges[id]);
  if (row->kind == CHOICE && !rdt_text_lists(row->choices, '|', text))
    return rdt_fail(RDT_ERR_INVALID, "%s%s is \"%s\": choose one of %s", RDT_ENV_PREFIX, row->name,
                    text, row->choices);
  uint16_t first, last;
  if (id == RDT_CONFIG_BIND_PORT && !rdt_text_ports(text, &first, &last))
    return rdt_fail(RDT_ERR_INVALID,
                    "%s%s is \"%s\": give a port, 1 to %d, or a range such as 7000-7010",
                    RDT_ENV_PREFIX, row->name, text, UINT16_MAX);
  rdt_status status = id == RDT_CONFIG_FAULTS ? rdt_faults_set(text) : RDT_OK;
  if (status != RDT_OK) return status;
  snprintf(values[id].text, RDT_CONFIG_TEXT_SIZE, "%s", text);
  values[id].number = number;
  if (id == RDT_CONFIG_LOG_LEVEL || id == RDT_CONFIG_LOG_FORMAT) configure_log();
  return RDT_OK;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Levenshtein distance, one row at a time; names are short. */
static size_t distance(const char *a, const char *b) {
  size_t cost[64], columns = strlen(b);
  if (columns >= 64) return 64;
  for (size_t j = 0; j <= columns; j++) cost[j] = j;
  for (size_t i = 1; a[i - 1]; i++) {
    size_t diagonal = cost[0];
    cost[0] = i;
    for (size_t j = 1; j <= columns; j++) {
      size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = cost[j];
      cost[j] = smaller(change, smaller(cost[j], cost[j - 1]) + 1);
    }
  }
  return cost[columns];
}

static const char *nearest_name(const char *name) {
  size_t best = 0;
  for (size_t i = 1; i < RDT_CONFIG_SETTINGS; i++)
    if (distance(name, rows[i].name) < distance(name, rows[best].name)) best = i;
  return rows[best].name;
}

static int find_row(const char *name) {
  for (int i = 0; i < RDT_CONFIG_COUNT; i++)
    if (strcmp(rows[i].name, name) == 0) return i;
  return -1;
}

static rdt_status unknown_name(const char *name) {
  return rdt_fail(RDT_ERR_INVALID, "there is no setting %s; the nearest is %s", name,
                  nearest_name(name));
}

/* The lab, the build and the tests have variables of their own, which are no settings. */
static bool is_others(const char *name) {
  const char *const prefixes[] = {"LAB_", "BUILD_", "TEST_"};
  for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

void rdt_config_unknown_variables(void (*found)(const char *name, const char *nearest)) {
  for (char **variable = environ; variable && *variable; variable++) {
    char name[64];
    if (strncmp(*variable, RDT_ENV_PREFIX, strlen(RDT_ENV_PREFIX)) != 0) continue;
    const char *start = *variable + strlen(RDT_ENV_PREFIX);
    snprintf(name, sizeof(name), "%.*s", (int)smaller(strcspn(start, "="), 63), start);
    int id = find_row(name);
    if ((id < 0 || id >= RDT_CONFIG_SETTINGS) && !is_others(name)) found(name, nearest_name(name));
  }
}

static void load(void) {
  for (int i = 0; i < RDT_CONFIG_COUNT; i++) {
    const config_row *row = &rows[i];
    char variable[96];
    if (row->kind == NUMBER) {
      snprintf(default_texts[i], sizeof(default_texts[i]), "%llu",
               (unsigned long long)row->default_number);
      snprintf(ranges[i], sizeof(ranges[i]), "%llu..%llu", (unsigned long long)row->minimum,
               (unsigned long long)row->maximum);
    }
    assign((rdt_config_id)i, row->kind == NUMBER ? default_texts[i] : row->default_text);
    snprintf(variable, sizeof(variable), "%s%s%s", RDT_ENV_PREFIX, row->doc ? "" : "TEST_",
             row->name);
    const char *text = getenv(variable);
    /* Empty is unset, as scripts mean it. */
    if (text && *text && assign((rdt_config_id)i, text) != RDT_OK && !environment_error[0])
      snprintf(environment_error, sizeof(environment_error), "%s", rdt_last_error());
  }
}

static void load_once(void) { pthread_once(&config_once, load); }

rdt_status rdt_config_check(void) {
  load_once();
  return environment_error[0] ? rdt_fail(RDT_ERR_INVALID, "%s", environment_error) : RDT_OK;
}

uint64_t rdt_config_number(rdt_config_id id) {
  load_once();
  pthread_mutex_lock(&config_lock);
  uint64_t number = values[id].number;
  pthread_mutex_unlock(&config_lock);
  return number;
}

void rdt_config_text(rdt_config_id id, char *value, size_t size) {
  load_once();
  pthread_mutex_lock(&config_lock);
  snprintf(value, size, "%s", values[id].text);
  pthread_mutex_unlock(&config_lock);
}

/* Callers outside the library may log before anything has read a setting. */
void rdt_log_line(rdt_log_level level, const char *line) {
  load_once();
  rdt_log_write(level, line);
}

size_t rdt_config_count(void) { return RDT_CONFIG_SETTINGS; }

rdt_status rdt_config_describe(size_t index, rdt_config_entry *entry) {
  if (index >= RDT_CONFIG_SETTINGS || !entry)
    return rdt_fail(RDT_ERR_INVALID, "the table of settings has %d rows", RDT_CONFIG_SETTINGS);
  load_once();
  const config_row *row = &rows[index];
  entry->name = row->name;
  entry->doc = row->doc;
  entry->default_value = row->kind == NUMBER ? default_texts[index] : row->default_text;
  entry->range = row->kind == NUMBER ? ranges[index] : row->kind == CHOICE ? row->choices : "text";
  return RDT_OK;
}

rdt_status rdt_config_get(const char *name, char *value, size_t size) {
  int id = name ? find_row(name) : -1;
  if (id < 0) return unknown_name(name ? name : "");
  char text[RDT_CONFIG_TEXT_SIZE];
  rdt_config_text((rdt_config_id)id, text, sizeof(text));
  if (!value || size <= strlen(text))
    return rdt_fail(RDT_ERR_INVALID, "the value of %s needs %zu bytes", name, strlen(text) + 1);
  memcpy(value, text, strlen(text) + 1);
  return RDT_OK;
}

rdt_status rdt_config_get_u64(const char *name, uint64_t *value) {
  int id = name ? find_row(name) : -1;
  if (id < 0) return unknown_name(name ? name : "");
  if (rows[id].kind != NUMBER || !value)
    return rdt_fail(RDT_ERR_INVALID, "%s is not a number", name);
  *value = rdt_config_number((rdt_config_id)id);
  return RDT_OK;
}

rdt_status rdt_config_set(const char *name, const char *value) {
  int id = name ? find_row(name) : -1;
  if (id < 0) return unknown_name(name ? name : "");
  if (!value) return rdt_fail(RDT_ERR_INVALID, "no value given for %s", name);
  load_once();
  pthread_mutex_lock(&config_lock);
  rdt_status status = assign((rdt_config_id)id, value);
  pthread_mutex_unlock(&config_lock);
  return status;
}
