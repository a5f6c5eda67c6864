/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings: defaults, environment, overrides and refusals.
 */
#include <string.h>

#include "base/config.h"
#include "unit.h"

int main(void) {
  char text[64];
  uint64_t number;
  setenv("RDMATENSOR_SPIN_US", "123", 1);
  setenv("RDMATENSOR_TEST_RING_BYTES", "1MiB", 1);
  setenv("RDMATENSOR_QUEUE_DEPTH", "128", 1);
  setenv("RDMATENSOR_POLICY", "maybe", 1);
  setenv("RDMATENSOR_DISABLE", "", 1);
  EXPECT(rdt_config_number(RDT_CONFIG_SPIN_US) == 123);
  EXPECT(rdt_config_number(RDT_CONFIG_RING_BYTES) == 1u << 20);
  EXPECT(rdt_config_number(RDT_CONFIG_QUEUE_DEPTH) == 256); /* without TEST_ it is no variable */
  EXPECT(rdt_config_number(RDT_CONFIG_DISABLE) == 0);

  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_check());
  EXPECT(strstr(rdt_last_error(), "RDMATENSOR_POLICY") &&
         strstr(rdt_last_error(), "auto|rdma|grpc"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_device_open(NULL, &(rdt_device *){NULL}));
  EXPECT_STATUS(RDT_OK, rdt_config_get("POLICY", text, sizeof(text)));
  EXPECT(strcmp(text, "auto") == 0); /* the refused value is not in force */

  EXPECT_STATUS(RDT_OK, rdt_config_set("ARENA_LIMIT", "2g"));
  EXPECT_STATUS(RDT_OK, rdt_config_get_u64("ARENA_LIMIT", &number));
  EXPECT(number == 2ull << 30);
  const char *bad[] = {"", "-1", "1x", "1KK", "99999999999999999999T", "0x10"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("ARENA_LIMIT", bad[i]));
  /* All faults at once have room, and what is too long is refused, not cut. */
  static const char *kinds[] = {"delay",      "credit",        "stall",   "call_delay", "post",
                                "fail",       "drop",          "break",   "register",   "map",
                                "connect",    "hang",          "destroy", "duplicate",  "refuse",
                                "call_break", "call_duplicate"};
  char faults[RDT_CONFIG_TEXT_SIZE + 1] = "seed=1000000000", same[RDT_CONFIG_TEXT_SIZE];
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
    snprintf(faults + strlen(faults), sizeof(faults) - strlen(faults), ",%s=0.0123456789",
             kinds[i]);
  EXPECT(strlen(faults) > 255);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", faults));
  EXPECT_STATUS(RDT_OK, rdt_config_get("FAULTS", same, sizeof(same)));
  EXPECT(strcmp(same, faults) == 0);
  EXPECT_STATUS(RDT_OK, rdt_config_set("FAULTS", ""));
  memset(faults, 'x', sizeof(faults) - 1);
  faults[sizeof(faults) - 1] = 0;
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("DEVICE", faults));
  EXPECT(strstr(rdt_last_error(), "DEVICE is longer than 511 characters"));
  const char *good_ports[] = {"", "0", "1", "7000", "7000-7000", "7000-7010", "65535"};
  for (size_t i = 0; i < sizeof(good_ports) / sizeof(good_ports[0]); i++)
    EXPECT_STATUS(RDT_OK, rdt_config_set("BIND_PORT", good_ports[i]));
  const char *bad_ports[] = {"65536",   "0-9",   "9-0",   "7010-7000",
                             "7000-",   "-7000", "7000,", "+70-80",
                             "70 - 80", "x",     "70-x",  "99999999999999999999"};
  for (size_t i = 0; i < sizeof(bad_ports) / sizeof(bad_ports[0]); i++)
    EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("BIND_PORT", bad_ports[i]));
  EXPECT(strstr(rdt_last_error(), "7000-7010"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("SPIN_US", "1000001"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_set("SPIN_UZ", "1"));
  EXPECT(strstr(rdt_last_error(), "SPIN_US"));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_get("POLICY", text, 3));
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_get_u64("POLICY", &number));

  rdt_config_entry entry;
  for (size_t i = 0; i < rdt_config_count(); i++) {
    EXPECT_STATUS(RDT_OK, rdt_config_describe(i, &entry));
    EXPECT(entry.name && entry.default_value && entry.range && strlen(entry.doc) > 10);
    EXPECT(strcmp(entry.name, "RING_BYTES") != 0); /* a constant, which tests can set */
  }
  EXPECT_STATUS(RDT_ERR_INVALID, rdt_config_describe(rdt_config_count(), &entry));
  return 0;
}
