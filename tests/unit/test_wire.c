/* SPDX-License-Identifier: Apache-2.0
 *
 * Control messages: what is written is read, and every malformed one is refused.
 */
#include <string.h>

#include "base/status.h"
#include "base/wire.h"
#include "unit.h"

static void write_sample(rdt_wire *wire) {
  rdt_wire_begin(wire, RDT_MESSAGE_FIND, 42);
  rdt_wire_put_u64(wire, 0x1122334455667788ull);
  rdt_wire_put_u32(wire, 7);
  rdt_wire_put_text(wire, "name");
  EXPECT_STATUS(RDT_OK, rdt_wire_end(wire));
}

static rdt_status read_sample(rdt_wire *wire, size_t size) {
  char text[16];
  rdt_status status = rdt_wire_open(wire, size);
  if (status != RDT_OK) return status;
  uint64_t number = rdt_wire_get_u64(wire);
  uint32_t small = rdt_wire_get_u32(wire);
  rdt_wire_get_text(wire, text, sizeof(text));
  status = rdt_wire_close(wire);
  if (status == RDT_OK)
    EXPECT(number == 0x1122334455667788ull && small == 7 && strcmp(text, "name") == 0);
  return status;
}

static void test_round_trip(void) {
  rdt_wire wire;
  write_sample(&wire);
  EXPECT(wire.data[16] == 0x88 && wire.data[23] == 0x11); /* little-endian, whatever the machine */
  EXPECT_STATUS(RDT_OK, read_sample(&wire, wire.size));
  EXPECT(wire.type == RDT_MESSAGE_FIND && wire.sequence == 42);
}

static void test_truncated(void) {
  for (size_t size = 0;; size++) {
    rdt_wire wire;
    write_sample(&wire);
    if (size == wire.size) return;
    EXPECT_STATUS(RDT_ERR_PROTOCOL, read_sample(&wire, size));
    /* Also when the header agrees with the shorter body. */
    if (size < RDT_WIRE_HEADER_SIZE) continue;
    wire.data[8] = (uint8_t)(size - RDT_WIRE_HEADER_SIZE);
    EXPECT_STATUS(RDT_ERR_PROTOCOL, read_sample(&wire, size));
  }
}

/* No single flipped byte may be accepted as another well-formed structure of the wrong size. */
static void test_flipped(void) {
  rdt_wire good;
  write_sample(&good);
  for (size_t at = 0; at < RDT_WIRE_HEADER_SIZE - 4; at++) {
    if (at == 6 || at == 7) continue; /* the type is the reader's business */
    rdt_wire wire = good;
    wire.data[at] ^= 0xff;
    EXPECT_STATUS(RDT_ERR_PROTOCOL, read_sample(&wire, good.size));
  }
}

static void test_foreign(void) {
  rdt_wire wire;
  memcpy(wire.data, "GET / HTTP/1.1\r\n\r\n", 18);
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_wire_open(&wire, 18));
  EXPECT(strstr(rdt_last_error(), "does not speak"));
  write_sample(&wire);
  wire.data[4] = 9;
  EXPECT_STATUS(RDT_ERR_PROTOCOL, rdt_wire_open(&wire, wire.size));
  EXPECT(strstr(rdt_last_error(), "version 9"));
}

static void test_overlong(void) {
  rdt_wire wire;
  char text[RDT_WIRE_MESSAGE_SIZE];
  memset(text, 'x', sizeof(text));
  rdt_wire_begin(&wire, RDT_MESSAGE_HELLO, 0);
  rdt_wire_put_bytes(&wire, text, sizeof(text));
  EXPECT_STATUS(RDT_ERR_RANGE, rdt_wire_end(&wire));
}

static void test_text_of_a_peer(void) {
  const struct {
    const char *bytes;
    rdt_status wanted;
  } cases[] = {{"abc", RDT_OK},
               {"gr\xc3\xbc", RDT_OK},
               {"a\0b", RDT_ERR_PROTOCOL},
               {"a\nb", RDT_ERR_PROTOCOL},
               {"a\x1b[", RDT_ERR_PROTOCOL}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    rdt_wire wire;
    char text[16];
    rdt_wire_begin(&wire, RDT_MESSAGE_HELLO, 0);
    rdt_wire_put_bytes(&wire, cases[i].bytes, 3);
    EXPECT_STATUS(RDT_OK, rdt_wire_end(&wire));
    EXPECT_STATUS(RDT_OK, rdt_wire_open(&wire, wire.size));
    rdt_wire_get_text(&wire, text, sizeof(text));
    EXPECT_STATUS(cases[i].wanted, rdt_wire_close(&wire));
  }
}

/* A peer whose device is closed is lost. This end's own device is open. */
static void test_refusals(void) {
  EXPECT(rdt_status_refused(RDT_ERR_CLOSED) == RDT_ERR_CONNECTION_LOST);
  EXPECT(rdt_status_refused(RDT_ERR_LIMIT) == RDT_ERR_LIMIT);
  EXPECT(rdt_status_refused(RDT_OK) == RDT_ERR_REFUSED);
  EXPECT(rdt_status_refused((rdt_status)-9999) == RDT_ERR_REFUSED);
}

int main(void) {
  test_round_trip();
  test_truncated();
  test_flipped();
  test_foreign();
  test_overlong();
  test_text_of_a_peer();
  test_refusals();
  return 0;
}
