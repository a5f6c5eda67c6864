/* SPDX-License-Identifier: Apache-2.0
 *
 * The secret that the devices of a cluster share, and by which they know each other.
 */
#ifndef RDT_CORE_MEET_SECRET_H
#define RDT_CORE_MEET_SECRET_H

#include "base/mac.h"

#define RDT_SECRET_MIN 16
#define RDT_SECRET_MAX 4096

typedef struct rdt_secret rdt_secret;

/* Reads the file; line ends at its end are no part of the secret. RDT_ERR_INVALID, with the remedy, if it
 * cannot be read, is no regular file, is another user's (root's is fine), is open to the group or others,
 * or is too short or too long; RDT_ERR_UNSUPPORTED without libcrypto. The caller frees it. */
rdt_status rdt_secret_read(const char *path, rdt_secret **secret);
/* That of the setting SECRET_FILE; NULL, with RDT_OK, if it is empty. */
rdt_status rdt_secret_configured(rdt_secret **secret);
/* Overwrites it first. NULL is ignored. */
void rdt_secret_free(rdt_secret *secret);
/* The code of `data` under the secret. Thread-safe. */
rdt_status rdt_secret_mac(const rdt_secret *secret, const void *data, size_t size,
                          uint8_t mac[RDT_MAC_SIZE]);

#endif
