/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash and the comparison are OpenSSL's; HMAC's two hashes around them are put together here. OpenSSL's
 * own HMAC calls a hundred functions of its library by name, and TensorFlow exports many of the same names
 * (BoringSSL's): where its symbols are global, OpenSSL 3.0 ends up in those, and crashes. The functions used
 * here call nothing that has state.
 */
#include "base/mac.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "base/openssl.h"
#include "base/status.h"

#define BLOCK 64 /* bytes of a block of SHA-256 */

/* OpenSSL 3, 4 and 1.1 have the same declarations. The version that most programs have already
 * loaded comes first. */
static const char *const libraries[] = {"libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1"};

static struct {
  int (*init)(void *state);
  int (*update)(void *state, const void *data, size_t size);
  int (*final)(unsigned char *hash, void *state);
  int (*compare)(const void *a, const void *b, size_t size);
} crypto;

static char load_error[256]; /* "" once loaded */
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* Computes the SHA-256 of two pieces. */
static bool hash(const void *first, size_t first_size, const void *second, size_t second_size,
                 uint8_t out[RDT_MAC_SIZE]) {
  alignas(16) uint8_t state[256]; /* SHA256_CTX has 112 bytes */
  bool done = crypto.init(state) && crypto.update(state, first, first_size) &&
              crypto.update(state, second, second_size) && crypto.final(out, state);
  explicit_bzero(state, sizeof(state));
  return done;
}

/* RFC 2104, section 2. */
static bool hmac(const void *key, size_t key_size, const void *data, size_t size,
                 uint8_t mac[RDT_MAC_SIZE]) {
  uint8_t inner[BLOCK] = {0}, outer[BLOCK];
  bool done = true;
  if (key_size > BLOCK)
    done = hash(key, key_size, "", 0, inner);
  else
    memcpy(inner, key, key_size);
  for (size_t i = 0; i < BLOCK; i++) {
    outer[i] = inner[i] ^ 0x5c;
    inner[i] ^= 0x36;
  }
  done = done && hash(inner, BLOCK, data, size, mac) && hash(outer, BLOCK, mac, RDT_MAC_SIZE, mac);
  explicit_bzero(inner, BLOCK);
  explicit_bzero(outer, BLOCK);
  return done;
}

rdt_status rdt_mac(const void *key, size_t key_size, const void *data, size_t size,
                   uint8_t mac[RDT_MAC_SIZE]) {
  if (hmac(key, key_size, data, size, mac)) return RDT_OK;
  return rdt_fail(RDT_ERR_SYSTEM, "OpenSSL's libcrypto does not compute SHA-256");
}

bool rdt_mac_equal(const uint8_t a[RDT_MAC_SIZE], const uint8_t b[RDT_MAC_SIZE]) {
  return crypto.compare(a, b, RDT_MAC_SIZE) == 0;
}

/* RFC 4231, test case 2. */
static bool knows_the_answer(void) {
  static const uint8_t wanted[RDT_MAC_SIZE] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                               0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                               0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                               0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  uint8_t mac[RDT_MAC_SIZE], other[RDT_MAC_SIZE];
  memcpy(other, wanted, sizeof(other));
  other[RDT_MAC_SIZE - 1] ^= 1;
  return rdt_mac("Jefe", 4, "what do ya want for nothing?", 28, mac) == RDT_OK &&
         rdt_mac_equal(mac, wanted) && !rdt_mac_equal(mac, other);
}

static bool is_usable(void *library) {
  return rdt_openssl_find(library, "SHA256_Init", &crypto.init) &&
         rdt_openssl_find(library, "SHA256_Update", &crypto.update) &&
         rdt_openssl_find(library, "SHA256_Final", &crypto.final) &&
         rdt_openssl_find(library, "CRYPTO_memcmp", &crypto.compare) && knows_the_answer();
}

/* Takes the first library that works: OpenSSL can be built without its deprecated functions. */
static void load(void) {
  bool found = false;
  for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
    void *library = rdt_openssl_open(libraries[i]);
    if (library && is_usable(library)) return;
    found = found || library;
  }
  snprintf(load_error, sizeof(load_error), "%s",
           found ? "OpenSSL's libcrypto does not compute SHA-256 in this process"
                 : "a secret needs OpenSSL's libcrypto.so.3 or .4, which is not installed: "
                   "apt install libssl3, dnf install openssl-libs");
}

rdt_status rdt_mac_load(void) {
  pthread_once(&load_once, load);
  return load_error[0] ? rdt_fail(RDT_ERR_UNSUPPORTED, "%s", load_error) : RDT_OK;
}
