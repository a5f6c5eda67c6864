/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ways of rdt_crc32c (rdmatensor.h), for tests.
 */
#ifndef RDT_BASE_CRC32C_H
#define RDT_BASE_CRC32C_H

#include "rdmatensor.h"

/* On any processor. Thread-safe, as rdt_crc32c is. */
uint32_t rdt_crc32c_portable(uint32_t crc, const void *data, uint64_t size);

#endif
