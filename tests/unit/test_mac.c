/* SPDX-License-Identifier: Apache-2.0
 *
 * HMAC-SHA256 against the vectors of RFC 4231. tests/security compares it with Python's.
 */
#include <string.h>

#include "base/mac.h"
#include "unit.h"

static void fill(uint8_t *bytes, size_t size, uint8_t with) { memset(bytes, with, size); }

static void expect(const void *key, size_t key_size, const void *data, size_t size,
                   const char *wanted) {
  uint8_t mac[RDT_MAC_SIZE];
  char text[2 * RDT_MAC_SIZE + 1];
  EXPECT_STATUS(RDT_OK, rdt_mac(key, key_size, data, size, mac));
  for (size_t i = 0; i < sizeof(mac); i++) snprintf(text + 2 * i, 3, "%02x", mac[i]);
  EXPECT(strcmp(text, wanted) == 0);
}

static void test_vectors(void) {
  uint8_t key[131], data[50];
  fill(key, sizeof(key), 0x0b);
  expect(key, 20, "Hi There", 8,
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  expect("Jefe", 4, "what do ya want for nothing?", 28,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  fill(key, sizeof(key), 0xaa);
  fill(data, sizeof(data), 0xdd);
  expect(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  expect(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_comparison(void) {
  uint8_t a[RDT_MAC_SIZE] = {1}, b[RDT_MAC_SIZE] = {1};
  EXPECT(rdt_mac_equal(a, b));
  for (size_t bit = 0; bit < 8 * sizeof(a); bit++) {
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    EXPECT(!rdt_mac_equal(a, b));
    b[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

int main(void) {
  EXPECT_STATUS(RDT_OK, rdt_mac_load());
  test_vectors();
  test_comparison();
  return 0;
}
