/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C against the vectors of RFC 3720 and against the polynomial itself, bit by bit.
 */
#include <string.h>

#include "base/crc32c.h"
#include "unit.h"

#define LARGE 100000

static uint8_t bytes[LARGE + 64];

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *data, uint64_t size) {
  crc = ~crc;
  for (uint64_t i = 0; i < size; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

static void expect(uint32_t wanted, uint32_t crc, const void *data, uint64_t size) {
  EXPECT(rdt_crc32c(crc, data, size) == wanted);
  EXPECT(rdt_crc32c_portable(crc, data, size) == wanted);
}

/* RFC 3720, B.4, whose bytes are in the order of transmission. */
static void test_vectors(void) {
  static const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0,
                                           0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 20, 0, 0, 0, 24,
                                           40,   0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,  0, 0, 0, 0};
  uint8_t data[32];
  memset(data, 0, sizeof(data));
  expect(0x8a9136aa, 0, data, sizeof(data));
  memset(data, 0xff, sizeof(data));
  expect(0x62a8ab43, 0, data, sizeof(data));
  for (int i = 0; i < 32; i++) data[i] = (uint8_t)i;
  expect(0x46dd794e, 0, data, sizeof(data));
  for (int i = 0; i < 32; i++) data[i] = (uint8_t)(31 - i);
  expect(0x113fdb5c, 0, data, sizeof(data));
  expect(0xd9963a56, 0, read_command, sizeof(read_command));
  expect(0xe3069283, 0, "123456789", 9); /* the check value of catalogues */
  expect(0, 0, NULL, 0);
  expect(0x1234, 0x1234, NULL, 0);
}

/* Every length and alignment that the loops treat differently, and where blocks of streams begin. */
static void test_lengths(void) {
  static const uint64_t blocks[] = {3 * 256, 2 * 3 * 256, 3 * 8192, 3 * 8192 + 3 * 256,
                                    2 * 3 * 8192};
  for (uint64_t offset = 0; offset < 16; offset++)
    for (uint64_t size = 0; size <= 100; size++)
      expect(bit_by_bit(0xdeadbeef, bytes + offset, size), 0xdeadbeef, bytes + offset, size);
  for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
    for (uint64_t size = blocks[i] - 9; size <= blocks[i] + 9; size++)
      expect(bit_by_bit(0, bytes + size % 8, size), 0, bytes + size % 8, size);
  expect(bit_by_bit(0, bytes, LARGE), 0, bytes, LARGE);
}

static void test_pieces(void) {
  uint32_t whole = rdt_crc32c(0, bytes, LARGE);
  for (uint64_t at = 0; at <= LARGE; at += 777)
    expect(whole, rdt_crc32c(0, bytes, at), bytes + at, LARGE - at);
}

/* What it is for: no single bit turns over unseen. */
static void test_bits(void) {
  uint32_t whole = rdt_crc32c(0, bytes, 1000);
  for (size_t bit = 0; bit < 8 * 1000; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    EXPECT(rdt_crc32c(0, bytes, 1000) != whole);
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

int main(void) {
  uint32_t number = 1;
  for (size_t i = 0; i < sizeof(bytes); i++) {
    number = number * 1664525u + 1013904223u;
    bytes[i] = (uint8_t)(number >> 24);
  }
  test_vectors();
  test_lengths();
  test_pieces();
  test_bits();
  return 0;
}
