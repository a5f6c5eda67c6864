/* SPDX-License-Identifier: Apache-2.0
 *
 * HMAC-SHA256 (RFC 2104) with the SHA-256 of OpenSSL's libcrypto, which is opened when a secret is first used.
 */
#ifndef RDT_BASE_MAC_H
#define RDT_BASE_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDT_MAC_SIZE 32

/* Opens libcrypto. Returns RDT_ERR_UNSUPPORTED, and names the package, if none is usable.
 * Thread-safe. */
rdt_status rdt_mac_load(void);
/* Computes the authentication code of `data` under `key`. Call rdt_mac_load first. Thread-safe. */
rdt_status rdt_mac(const void *key, size_t key_size, const void *data, size_t size,
                   uint8_t mac[RDT_MAC_SIZE]);
/* Compares in constant time. Call rdt_mac_load first. */
bool rdt_mac_equal(const uint8_t a[RDT_MAC_SIZE], const uint8_t b[RDT_MAC_SIZE]);

#endif
