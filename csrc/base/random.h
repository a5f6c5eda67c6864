/* SPDX-License-Identifier: Apache-2.0
 *
 * Unguessable random numbers from the system.
 */
#ifndef RDT_BASE_RANDOM_H
#define RDT_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* Fills `bytes` with unguessable random numbers from the system; RDT_ERR_SYSTEM if it gives none. Takes at most
 * 256 bytes, which getrandom(2) never delivers in part. */
rdt_status rdt_random(void *bytes, size_t size);
/* Draws an unguessable number other than 0. */
rdt_status rdt_random_id(uint64_t *id);

#endif
