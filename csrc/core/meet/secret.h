/* SPDX-License-Identifier: Apache-2.0
 *
 * The secret that the devices of a cluster share, and by which they recognise each other.
 */
#ifndef RDT_CORE_MEET_SECRET_H
#define RDT_CORE_MEET_SECRET_H

#include "base/mac.h"

#define RDT_SECRET_MIN 16
#define RDT_SECRET_MAX 4096

typedef struct rdt_secret rdt_secret;

/* Reads the file, less line ends at its end. The caller frees the secret. Returns
 * RDT_ERR_INVALID, with the remedy, if the file cannot be read, is not a regular file, belongs
 * to another user than us or root, is open to the group or others, or is too short or too long.
 * Returns RDT_ERR_UNSUPPORTED without libcrypto. */
rdt_status rdt_secret_read(const char *path, rdt_secret **secret);
/* Reads the file that the setting SECRET_FILE names. *secret is NULL if the setting is empty. */
rdt_status rdt_secret_configured(rdt_secret **secret);
/* Overwrites and frees a secret. Ignores NULL. */
void rdt_secret_free(rdt_secret *secret);
/* Computes the authentication code of `data` under the secret. Thread-safe. */
rdt_status rdt_secret_mac(const rdt_secret *secret, const void *data, size_t size,
                          uint8_t mac[RDT_MAC_SIZE]);

#endif
