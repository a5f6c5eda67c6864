/* SPDX-License-Identifier: Apache-2.0
 *
 * The two implementations of rdt_crc32c (rdmatensor.h), for tests.
 */
#ifndef RDT_BASE_CRC32C_H
#define RDT_BASE_CRC32C_H

#include "rdmatensor.h"

/* Works on any processor. Thread-safe. */
uint32_t rdt_crc32c_portable(uint32_t crc, const void *data, uint64_t size);

#endif
