/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of settings: one is refused or is in force, within its range, and others stay as they are. The texts
 * that have a form of their own are read too: DEVICE and GID_INDEX.
 */
#include <inttypes.h>

#include "base/config.h"
#include "fuzz.h"
#ifdef RDT_HAVE_VERBS
#include "transport/verbs/ports.h"
#endif

static void check_in_force(size_t row, const char *set) {
  rdt_config_entry entry;
  char text[512];
  uint64_t number, low, high;
  FUZZ_EXPECT(rdt_config_describe(row, &entry) == RDT_OK);
  FUZZ_EXPECT(rdt_config_get(entry.name, text, sizeof(text)) == RDT_OK);
  if (set) FUZZ_EXPECT(strcmp(text, set) == 0);
  if (rdt_config_get_u64(entry.name, &number) != RDT_OK) return;
  FUZZ_EXPECT(sscanf(entry.range, "%" SCNu64 "..%" SCNu64, &low, &high) == 2);
  FUZZ_EXPECT(number >= low && number <= high);
}

static void set_value(size_t row, const char *value) {
  rdt_config_entry entry;
  char before[512];
  FUZZ_EXPECT(rdt_config_describe(row, &entry) == RDT_OK);
  FUZZ_EXPECT(rdt_config_get(entry.name, before, sizeof(before)) == RDT_OK);
  bool taken = rdt_config_set(entry.name, value) == RDT_OK;
  check_in_force(row, taken ? value : before);
  FUZZ_EXPECT(rdt_config_set(entry.name, entry.default_value) == RDT_OK);
}

#ifdef RDT_HAVE_VERBS
static void read_verbs_settings(const char *value) {
  char name[IBV_SYSFS_NAME_MAX];
  uint8_t port;
  int index;
  if (*value && rdt_verbs_parse_device(value, name, &port) == RDT_OK)
    FUZZ_EXPECT(memchr(name, '\0', sizeof(name)) && name[0]);
  if (rdt_verbs_parse_gid_index(value, "mlx5_1", &index) == RDT_OK) FUZZ_EXPECT(index >= -1);
}
#else
static void read_verbs_settings(const char *value) { (void)value; }
#endif

/* A number of a row, or a name if that is 255, then a value. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  uint8_t row = fuzz_u8(&input);
  char text[1024];
  size_t length;
  const uint8_t *bytes = fuzz_bytes(&input, sizeof(text) - 1, &length);
  memcpy(text, bytes, length);
  text[length] = '\0';
  if (row < rdt_config_count()) {
    set_value(row, text);
  } else {
    uint64_t number;
    rdt_config_set(text, "1");
    rdt_config_get_u64(text, &number);
    rdt_config_set("LOG_LEVEL", "info");
  }
  read_verbs_settings(text);
  return 0;
}

static uint8_t row_called(const char *name) {
  rdt_config_entry entry;
  for (size_t row = 0; row < rdt_config_count(); row++)
    if (rdt_config_describe(row, &entry) == RDT_OK && strcmp(entry.name, name) == 0)
      return (uint8_t)row;
  return 255;
}

/* Every row with its default, and values that have a form. */
size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  static const char *const values[][2] = {{"PLAN_SLOTS", "64K"},
                                          {"ARENA_LIMIT", "3GiB"},
                                          {"PLAN_LIMIT", "1T"},
                                          {"REMOTE_ALLOC_LIMIT", "18446744073709551615"},
                                          {"GID_INDEX", "mlx5_1:3,rxe0:1"},
                                          {"DEVICE", "mlx5_1:1"},
                                          {"TRANSPORTS", "shm,verbs"},
                                          {"FAULTS", "seed=7,post=0.01,delay=0.1:5ms,break=#40"},
                                          {"no such row", "PLAN_SLOTS"}};
  fuzz_output out = {seed, 0, capacity};
  rdt_config_entry entry;
  size_t rows = rdt_config_count(), value = number - rows;
  if (number < rows) {
    FUZZ_EXPECT(rdt_config_describe(number, &entry) == RDT_OK);
    fuzz_put_number(&out, number, 1);
    fuzz_put(&out, entry.default_value, strlen(entry.default_value));
  } else if (value < sizeof(values) / sizeof(values[0])) {
    fuzz_put_number(&out, row_called(values[value][0]), 1);
    fuzz_put(&out, values[value][1], strlen(values[value][1]));
  }
  return out.size;
}
