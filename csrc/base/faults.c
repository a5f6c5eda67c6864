/* SPDX-License-Identifier: Apache-2.0 */
#include "base/faults.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

#define LONGEST_MS 600000
/* Bytes per second of an emulated link. */
#define SLOWEST 1000.0
#define FASTEST 1e15

static const struct {
  const char *word;
  int64_t lasts_ms;
} kinds[RDT_FAULT_KINDS] = {
#define ROW(name, word, lasts) {word, lasts},
    RDT_FAULT_TABLE(ROW)
#undef ROW
};

typedef struct fault_rate {
  double probability;
  uint64_t only; /* the number of the only occasion, counted from 1; 0 if probability decides */
  int64_t lasts_us;
} fault_rate;

typedef struct fault_plan {
  uint64_t seed, transport; /* the transport's name, as pack() makes it; 0: all */
  fault_rate rates[RDT_FAULT_KINDS];
  uint64_t bytes_per_s; /* of the emulated link; 0: no limit */
  int64_t latency_us;
} fault_plan;

static _Atomic bool any; /* kind is in force */
/* Threads read this while it is replaced, so for a moment some kinds may have their old values. */
static _Atomic uint64_t seed, transport, bytes_per_s;
static _Atomic int64_t latency_us;
static struct {
  _Atomic double probability;
  _Atomic uint64_t only, occasions, happened;
  _Atomic int64_t lasts_us;
} in_force[RDT_FAULT_KINDS];

static int find_kind(const char *word) {
  for (int i = 0; i < RDT_FAULT_KINDS; i++)
    if (strcmp(kinds[i].word, word) == 0) return i;
  return -1;
}

static bool parse_whole(const char *text, uint64_t *number) {
  char *end;
  if (!isdigit((unsigned char)*text)) return false;
  *number = strtoull(text, &end, 10);
  return *end == '\0';
}

/* "5ms", "20us", "1s" */
static bool parse_duration(const char *text, int64_t *us) {
  static const struct {
    const char *unit;
    int64_t us;
  } units[] = {{"us", 1}, {"ms", 1000}, {"s", 1000000}};
  char *end;
  if (!isdigit((unsigned char)*text)) return false;
  unsigned long long number = strtoull(text, &end, 10);
  for (size_t i = 0; i < 3; i++) {
    if (strcmp(end, units[i].unit) != 0) continue;
    if (number > (unsigned long long)(LONGEST_MS * 1000ll / units[i].us)) return false;
    *us = (int64_t)number * units[i].us;
    return true;
  }
  return false;
}

/* "1.25G", "800M", "100k" or "5000": bytes per second */
static bool parse_speed(const char *text, uint64_t *speed) {
  static const char units[] = "kMG";
  char *end;
  if (!isdigit((unsigned char)*text)) return false;
  double number = strtod(text, &end);
  const char *unit = *end ? strchr(units, *end) : NULL;
  if (*end && (!unit || end[1])) return false;
  for (const char *at = units; unit && at <= unit; at++) number *= 1000;
  if (!(number >= SLOWEST && number <= FASTEST)) return false;
  *speed = (uint64_t)number;
  return true;
}

/* "0.01" or "#12" */
static bool parse_rate(const char *text, fault_rate *rate) {
  char *end;
  if (*text == '#') return parse_whole(text + 1, &rate->only) && rate->only > 0;
  if (!isdigit((unsigned char)*text)) return false;
  rate->probability = strtod(text, &end);
  return *end == '\0' && rate->probability <= 1;
}

/* A short name as a number, which threads can replace. */
static uint64_t pack(const char *name) {
  uint64_t packed = 0;
  memcpy(&packed, name, strnlen(name, sizeof(packed)));
  return packed;
}

static rdt_status malformed(const char *item) {
  return rdt_fail(RDT_ERR_INVALID,
                  "%sFAULTS has \"%s\": give seed=N, transport=NAME, rate=BYTES, latency=TIME, "
                  "or KIND=RATE or KIND=RATE:TIME, where BYTES are those of a second, like 1.25G, "
                  "at least 1k, RATE is a "
                  "number from 0 to 1 or #n for the n-th time, and TIME is like 5ms, at most 600s",
                  RDT_ENV_PREFIX, item);
}

static rdt_status unknown_kind(const char *word) {
  char known[256] = "";
  for (int i = 0; i < RDT_FAULT_KINDS; i++)
    rdt_text_append(known, sizeof(known), "%s%s", i ? ", " : "", kinds[i].word);
  return rdt_fail(RDT_ERR_INVALID, "%sFAULTS: there is no fault \"%s\"; choose from %s",
                  RDT_ENV_PREFIX, word, known);
}

static rdt_status unknown_transport(const char *name) {
  return rdt_fail(RDT_ERR_INVALID, "%sFAULTS: there is no transport \"%s\"; choose from %s",
                  RDT_ENV_PREFIX, name, RDT_TRANSPORT_NAMES);
}

/* Parses "KIND=RATE[:TIME]", and writes into `item` as it does. */
static rdt_status parse_item(fault_plan *plan, char *item) {
  char whole[256];
  snprintf(whole, sizeof(whole), "%s", item);
  char *value = strchr(item, '=');
  if (!value) return malformed(whole);
  *value++ = '\0';
  if (strcmp(item, "seed") == 0) return parse_whole(value, &plan->seed) ? RDT_OK : malformed(whole);
  if (strcmp(item, "transport") == 0) {
    if (!rdt_text_lists(RDT_TRANSPORT_NAMES, ',', value)) return unknown_transport(value);
    plan->transport = pack(value);
    return RDT_OK;
  }
  if (strcmp(item, "rate") == 0)
    return parse_speed(value, &plan->bytes_per_s) ? RDT_OK : malformed(whole);
  if (strcmp(item, "latency") == 0)
    return parse_duration(value, &plan->latency_us) ? RDT_OK : malformed(whole);
  int kind = find_kind(item);
  if (kind < 0) return unknown_kind(item);
  char *duration = strchr(value, ':');
  if (duration) *duration++ = '\0';
  fault_rate *rate = &plan->rates[kind];
  if (!parse_rate(value, rate) || (duration && kinds[kind].lasts_ms == 0) ||
      (duration && !parse_duration(duration, &rate->lasts_us)))
    return malformed(whole);
  return RDT_OK;
}

static rdt_status parse(fault_plan *plan, const char *text) {
  char item[256];
  for (int i = 0; i < RDT_FAULT_KINDS; i++) plan->rates[i].lasts_us = kinds[i].lasts_ms * 1000;
  for (const char *at = text; rdt_text_next(&at, item, sizeof(item));) {
    rdt_status status = parse_item(plan, item);
    if (status != RDT_OK) return status;
  }
  return RDT_OK;
}

rdt_status rdt_faults_set(const char *text) {
  fault_plan plan = {0};
  rdt_status status = parse(&plan, text);
  if (status != RDT_OK) return status;
  atomic_store(&seed, plan.seed);
  atomic_store(&transport, plan.transport);
  atomic_store(&bytes_per_s, plan.bytes_per_s);
  atomic_store(&latency_us, plan.latency_us);
  bool wanted = rdt_link_emulated();
  for (int i = 0; i < RDT_FAULT_KINDS; i++) {
    atomic_store(&in_force[i].probability, plan.rates[i].probability);
    atomic_store(&in_force[i].only, plan.rates[i].only);
    atomic_store(&in_force[i].lasts_us, plan.rates[i].lasts_us);
    atomic_store(&in_force[i].occasions, 0);
    wanted |= rdt_fault_possible((rdt_fault_kind)i);
  }
  atomic_store(&any, wanted);
  return RDT_OK;
}

bool rdt_link_emulated(void) {
  return atomic_load_explicit(&bytes_per_s, memory_order_relaxed) > 0 ||
         atomic_load_explicit(&latency_us, memory_order_relaxed) > 0;
}

double rdt_link_us(uint64_t bytes) {
  uint64_t speed = atomic_load(&bytes_per_s);
  return speed ? (double)bytes * 1e6 / (double)speed : 0;
}

int64_t rdt_link_latency_us(void) { return atomic_load(&latency_us); }

/* The n-th number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), without computing those
 * before it. */
static uint64_t mix(uint64_t n) {
  uint64_t z = (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

static double uniform(rdt_fault_kind kind, uint64_t occasion) {
  return (double)(mix(mix(mix(atomic_load(&seed)) ^ (uint64_t)kind) ^ occasion) >> 11) * 0x1p-53;
}

bool rdt_fault_possible(rdt_fault_kind kind) {
  return atomic_load(&in_force[kind].only) > 0 || atomic_load(&in_force[kind].probability) > 0;
}

bool rdt_faults_concern(const char *name) {
  uint64_t only = atomic_load(&transport);
  return only == 0 || only == pack(name);
}

bool rdt_faults_wanted(void) { return atomic_load_explicit(&any, memory_order_relaxed); }

bool rdt_fault_happens(rdt_fault_kind kind, const char *whom) {
  if (!rdt_fault_possible(kind)) return false;
  uint64_t occasion = atomic_fetch_add(&in_force[kind].occasions, 1) + 1;
  uint64_t only = atomic_load(&in_force[kind].only);
  bool happens =
      only ? occasion == only : uniform(kind, occasion) < atomic_load(&in_force[kind].probability);
  if (!happens) return false;
  atomic_fetch_add(&in_force[kind].happened, 1);
  rdt_log(RDT_LOG_DEBUG, "fault injected: %s, occasion %llu, %s", kinds[kind].word,
          (unsigned long long)occasion, whom);
  return true;
}

int64_t rdt_fault_us(rdt_fault_kind kind) { return atomic_load(&in_force[kind].lasts_us); }

int64_t rdt_fault_occasion(const char *kind, const char *name, const char *whom) {
  if (!rdt_faults_wanted() || !rdt_faults_concern(name)) return -1;
  int found = find_kind(kind);
  if (found < 0 || !rdt_fault_happens((rdt_fault_kind)found, whom)) return -1;
  return rdt_fault_us((rdt_fault_kind)found);
}

rdt_status rdt_fault_count(size_t index, const char **name, uint64_t *count) {
  if (index >= RDT_FAULT_KINDS || !name || !count)
    return rdt_fail(RDT_ERR_INVALID, "there are %d kinds of faults", RDT_FAULT_KINDS);
  *name = kinds[index].word;
  *count = atomic_load(&in_force[index].happened);
  return RDT_OK;
}
